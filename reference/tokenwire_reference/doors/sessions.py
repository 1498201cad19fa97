"""Stores the latest session turns and responses, which clients may continue or retrieve.

Their total size is bounded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import to_json

_MOST_SESSIONS = 1024
_MOST_TOKENS = 1 << 20
"""The maximum number of tokens of all stored turns, including the budgets of running turns."""
_MOST_BYTES = 16 << 20
"""The maximum size of all stored responses, and of all their conversations, in bytes of JSON."""
_MOST_MADE = 256
"""The maximum number of responses that are generated in the background at the same time."""

Key = TypeVar("Key", bound=Hashable)
_Value = TypeVar("_Value")


class Latest(Generic[Key, _Value]):
    """Keeps values by key, and removes the oldest beyond a total size."""

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
        """Store a value, and replace an earlier value with the same key.

        A value larger than the bound is not stored.
        """
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


class Responses:
    """The stored responses by their ids, including responses that are still generated."""

    def __init__(self) -> None:
        self._documents: Latest[str, Mapping[str, Any]] = Latest(_MOST_BYTES, lambda kept: len(to_json(kept)))
        self._conversations: Latest[str, Sequence[Any]] = Latest(
            _MOST_BYTES, lambda messages: len(to_json(list(messages)))
        )
        self._made: dict[str, asyncio.Task[None]] = {}

    def get(self, name: str) -> Mapping[str, Any] | None:
        """Return the document of a response; None if it is not stored."""
        return self._documents.get(name)

    def conversation(self, name: str) -> Sequence[Any] | None:
        """Return the messages up to the end of a response; None if it is not stored."""
        return self._conversations.get(name)

    def put(self, document: Mapping[str, Any], conversation: Sequence[Any] | None = None) -> None:
        """Store a response. Only a response with a conversation can be continued."""
        self._documents.put(document["id"], document)
        if conversation is not None:
            self._conversations.put(document["id"], conversation)

    def delete(self, name: str) -> None:
        """Remove a response, and end its generation if it is not complete. An unknown id has no effect."""
        self.cancel(name)
        self._documents.forget(name)
        self._conversations.forget(name)

    def make(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Generate a response in the background.

        Raises RefusalError if too many responses are being generated.
        """
        if len(self._made) >= _MOST_MADE:
            work.close()
            raise RefusalError(
                f"{_MOST_MADE} responses are made in the background; wait until one has ended", status=503
            )
        task = self._made[name] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._made.pop(name, None))

    def cancel(self, name: str) -> bool:
        """End the generation of a response. Return False if the response is not being generated."""
        task = self._made.get(name)
        return task is not None and task.cancel()


class Sessions:
    """The open sessions, and the turns in them by their request ids."""

    def __init__(self) -> None:
        self._open: dict[str, bool] = {}
        """The open sessions. The value is True if every turn continues the latest turn of the session."""
        self._turns: Latest[tuple[str, str], Request] = Latest(_MOST_TOKENS, _tokens)

    def open(self, session: str, *, appends: bool = False) -> bool:
        """Open a session.

        Return False if the session is already open, or if too many sessions are open. With `appends`, each
        turn continues the latest turn that was not aborted, and must not name another turn.
        """
        if session in self._open or len(self._open) >= _MOST_SESSIONS:
            return False
        self._open[session] = appends
        return True

    def close(self, session: str) -> None:
        """Remove a session with its turns. An unknown id has no effect."""
        self._open.pop(session, None)
        for turn in [turn for turn in self._turns if turn[0] == session]:
            self._turns.forget(turn)

    def history(self, asked: Mapping[str, Any]) -> Sequence[int]:
        """Return the ids that precede the prompt of a new turn. Raises RefusalError."""
        session, rid, offset = asked.get("id"), asked.get("rid"), asked.get("offset") or 0
        if session not in self._open:
            raise RefusalError(f"Invalid request: session id {session} does not exist")
        if self._open[session]:
            return self._latest(session, asked)
        if rid is None:
            return ()
        turn = self._turns.get((session, rid))
        if turn is None or turn.finish is None:
            raise RefusalError(f"session_params.rid {rid!r} is not a finished turn of the session")
        ids = (*turn.prompt_token_ids, *turn.output_ids)
        return ids[:offset] if offset > 0 else ids

    def _latest(self, session: str, asked: Mapping[str, Any]) -> Sequence[int]:
        """Return the ids of the latest turn that was not aborted. Raises RefusalError."""
        if asked.keys() & {"replace", "drop_previous_output"} or asked.get("offset"):
            raise RefusalError(
                "a turn of a streaming session only appends; remove offset, replace and "
                "drop_previous_output from session_params"
            )
        turns = [turn for key in self._turns if key[0] == session and (turn := self._turns.get(key))]
        if any(turn.finish is None for turn in turns):
            raise RefusalError("Streaming session already has an active request.")
        ended = [turn for turn in turns if turn.finish is not None and turn.finish.type != "abort"]
        return (*ended[-1].prompt_token_ids, *ended[-1].output_ids) if ended else ()

    def add(self, session: str, request: Request) -> None:
        """Store a turn, which later turns may continue."""
        self._turns.put((session, request.rid), request)


def _tokens(request: Request) -> int:
    return len(request.prompt_token_ids) + (request.sampling.max_new_tokens or 0)
