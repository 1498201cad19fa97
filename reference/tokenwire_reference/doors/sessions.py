"""Sessions: turns that the server keeps, so that a client sends only what is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.errors import RefusalError

_MOST_SESSIONS = 1024
_MOST_TOKENS = 1 << 20
"""Of all turns together, their budgets counted; the oldest are forgotten."""


class Sessions:
    """The open sessions, and the turns in them by their request ids."""

    def __init__(self) -> None:
        self._open: dict[str, None] = {}
        self._turns: OrderedDict[tuple[str, str], Request] = OrderedDict()
        self._tokens = 0

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
            self._forget(turn)

    def history(self, asked: Mapping[str, Any]) -> Sequence[int]:
        """The ids that stand before the prompt of a turn. Raises RefusalError."""
        session, rid, offset = asked.get("id"), asked.get("rid"), asked.get("offset") or 0
        if session not in self._open:
            raise RefusalError(f"Invalid request: session id {session} does not exist")
        if rid is None:
            return ()
        turn = self._turns.get((session, rid))
        if turn is None or turn.finish is None:
            raise RefusalError(f"session_params.rid {rid!r} is no turn of the session that has ended")
        ids = (*turn.prompt_token_ids, *turn.output_ids)
        return ids[:offset] if offset > 0 else ids

    def add(self, session: str, request: Request) -> None:
        """Keep a turn that later ones may go on from, in the place of an earlier one with its id."""
        turn = (session, request.rid)
        if turn in self._turns:
            self._forget(turn)
        self._turns[turn] = request
        self._tokens += _size(request)
        while self._tokens > _MOST_TOKENS:
            self._forget(next(iter(self._turns)))

    def _forget(self, turn: tuple[str, str]) -> None:
        self._tokens -= _size(self._turns.pop(turn))


def _size(request: Request) -> int:
    return len(request.prompt_token_ids) + (request.sampling.max_new_tokens or 0)
