"""Histories that clients may continue: turns of sessions, conversations of responses; the latest,
within a bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import to_json

_MOST_SESSIONS = 1024
_MOST_TOKENS = 1 << 20
"""Of all turns together, their budgets counted."""
_MOST_BYTES = 16 << 20
"""Of all conversations together, as JSON."""

Key = TypeVar("Key", bound=Hashable)
_Value = TypeVar("_Value")


class Latest(Generic[Key, _Value]):
    """Keeps values by their keys, and forgets the oldest where all together are larger than a bound."""

    def __init__(self, most: int, size: Callable[[_Value], int]) -> None:
        self._most = most
        self._size_of = size
        self._kept: OrderedDict[Key, tuple[_Value, int]] = OrderedDict()
        self._size = 0

    def __iter__(self) -> Iterator[Key]:
        return iter(self._kept)

    def get(self, key: Key) -> _Value | None:
        return self._kept.get(key, (None, 0))[0]

    def put(self, key: Key, value: _Value) -> None:
        """Keep a value in the place of one with its key; nothing of one that is larger than the bound."""
        self.forget(key)
        size = self._size_of(value)
        if size > self._most:
            return
        self._kept[key] = value, size
        self._size += size
        while self._size > self._most:
            self.forget(next(iter(self._kept)))

    def forget(self, key: Key) -> None:
        self._size -= self._kept.pop(key, (None, 0))[1]


Conversations = Latest[str, Sequence[Any]]
"""The id of a response to all messages up to its end."""


def conversations() -> Conversations:
    return Latest(_MOST_BYTES, lambda messages: len(to_json(list(messages))))


class Sessions:
    """The open sessions, and the turns in them by their request ids."""

    def __init__(self) -> None:
        self._open: dict[str, None] = {}
        self._turns: Latest[tuple[str, str], Request] = Latest(_MOST_TOKENS, _tokens)

    def open(self, session: str) -> bool:
        """Open a session. False where it is open, or where there are too many."""
        if session in self._open or len(self._open) >= _MOST_SESSIONS:
            return False
        self._open[session] = None
        return True

    def close(self, session: str) -> None:
        """Forget a session with its turns; an unknown one changes nothing."""
        self._open.pop(session, None)
        for turn in [turn for turn in self._turns if turn[0] == session]:
            self._turns.forget(turn)

    def history(self, asked: Mapping[str, Any]) -> Sequence[int]:
        """Return the ids before the prompt of a turn. Raises RefusalError."""
        session, rid, offset = asked.get("id"), asked.get("rid"), asked.get("offset") or 0
        if session not in self._open:
            raise RefusalError(f"Invalid request: session id {session} does not exist")
        if rid is None:
            return ()
        turn = self._turns.get((session, rid))
        if turn is None or turn.finish is None:
            raise RefusalError(f"session_params.rid {rid!r} is not a finished turn of the session")
        ids = (*turn.prompt_token_ids, *turn.output_ids)
        return ids[:offset] if offset > 0 else ids

    def add(self, session: str, request: Request) -> None:
        """Keep a turn that later ones may go on from."""
        self._turns.put((session, request.rid), request)


def _tokens(request: Request) -> int:
    return len(request.prompt_token_ids) + (request.sampling.max_new_tokens or 0)
