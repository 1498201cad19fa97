"""Conversations that responses may go on from: the latest, as many as fit into a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from tokenwire_reference.doors.items.conversation import Message
from tokenwire_reference.doors.json_answer import to_json

MOST_BYTES = 16 << 20
"""Of all conversations together, as JSON."""


class StoredConversations:
    """Keeps what was said up to a response, and forgets the oldest."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, tuple[Sequence[Message], int]] = OrderedDict()
        self._bytes = 0

    def put(self, response_id: str, conversation: Sequence[Message]) -> None:
        """Keep a conversation; nothing of one that is larger than the bound."""
        size = len(to_json(list(conversation)))
        if size > self._most_bytes:
            return
        self._kept[response_id] = conversation, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed

    def get(self, response_id: str) -> Sequence[Message] | None:
        """What was said up to a response; None where it is not kept."""
        return self._kept.get(response_id, (None, 0))[0]
