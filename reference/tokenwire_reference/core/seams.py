"""Seams: where a request can be made to go another way than the engine would send it. No torch, no HTTP.

Each seam of `Seams` gives back what it was given. What overrides some of them (a fault, say) is shared by all
samples and prompts of an HTTP request, and comes with it from `use_seams` on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")


class Seams:
    """Every seam, and nothing changed at any."""

    # In the engine and the output streamer, on the engine's thread.

    def stop_rules(self, rules: _T) -> _T:
        """Change the rules that decide when the request is done."""
        return rules

    def prefix_secrets(self, secrets: _T) -> _T:
        """Change the values that requests must have in common to share cached prefixes."""
        return secrets

    def due(self, request: Any, sent: int, due: bool) -> bool:
        """True if a live request emits now; `sent` of its tokens have been sent."""
        del request, sent
        return due

    def published(self, request: Any, row: _T) -> _T:
        """Change the row that the output streamer emits: the same range of tokens, of this record
        or of another.
        """
        del request
        return row

    # In the request manager and the detokenizer, on the event loop.

    def detokenizer(self, detokenizer: _T) -> _T:
        """Change the detokenizer."""
        return detokenizer

    def text(self, reader: Any, text: str) -> str:
        """Return the whole text of a finished record."""
        del reader
        return text

    def format(self, format: _T) -> _T:  # noqa: A002
        """Change the format by which the text of a chat is split into channels."""
        return format

    def deltas(self, parser: Any, deltas: list[_T], *, ended: bool) -> list[_T]:
        """Change the new deltas in the channels of a choice; each choice has its own parser."""
        del parser, ended
        return deltas

    def taken(self, reader: Any, emission: _T) -> _T:
        """Change the emission that a consumer takes. The reader's cursors are still at the end of the
        emission before it.
        """
        del reader
        return emission

    def leaving(self) -> bool:
        """True if the server notices that the client has left."""
        return True

    def flushing(self) -> bool:
        """True if a flush empties the cache."""
        return True

    def aborting(self, rid: str, live: Collection[str], names: Sequence[str]) -> Sequence[str]:
        """Return the requests that an abort of `rid` ends."""
        del rid, live
        return names

    def colliding(self, rid: str, abort: Callable[[str], None]) -> None:
        """A request was refused for the id of a live one; `abort` ends that one."""

    def ended(self, rid: str, abort: Callable[[str], None]) -> None:
        """A request has ended; `abort` ends the one that has its id by then, if any."""


_current: ContextVar[Seams] = ContextVar("seams", default=Seams())  # noqa: B039 - it has no state to share


def current_seams() -> Seams:
    """Return the seams of the HTTP request that is being served."""
    return _current.get()


def use_seams(seams: Seams) -> None:
    """Use these seams for all that is done from here on for the HTTP request that is being served."""
    _current.set(seams)
