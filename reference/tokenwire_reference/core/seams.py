"""Seams: points at which a request's processing can be overridden. No torch, no HTTP.

By default, each seam of `Seams` returns its argument. A fault, for example, overrides some seams. `use_seams`
applies the override to all samples and prompts of the current HTTP request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")


class Seams:
    """All seams, with methods that change nothing."""

    # Seams in the engine and the output streamer, on the engine's thread.

    def stop_rules(self, rules: _T) -> _T:
        """Change the rules that decide when the request is done."""
        return rules

    def prefix_secrets(self, secrets: _T) -> _T:
        """Change the values that must be equal for requests to share cached prefixes."""
        return secrets

    def due(self, request: Any, sent: int, due: bool) -> bool:
        """True if a live request emits now. `sent` is the number of its tokens that were already sent."""
        del request, sent
        return due

    def published(self, request: Any, row: _T) -> _T:
        """Change the row that the output streamer emits.

        The new row has the same range of tokens, from this record or from another record.
        """
        del request
        return row

    # Seams in the request manager and the detokenizer, on the event loop.

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
        """Change the emission that a consumer takes.

        The reader's cursors are still at the end of the previous emission.
        """
        del reader
        return emission

    def leaving(self) -> bool:
        """True if the server reacts when the client disconnects."""
        return True

    def flushing(self) -> bool:
        """True if a flush request really empties the cache."""
        return True

    def pausing(self) -> bool:
        """True if a pause really pauses the engine."""
        return True

    def aborting(self, rid: str, live: Collection[str], names: Sequence[str]) -> Sequence[str]:
        """Return the requests that an abort of `rid` ends."""
        del rid, live
        return names

    def colliding(self, rid: str, abort: Callable[[str], None]) -> None:
        """Called when a request is refused because a live request has the same id.

        `abort` ends the live request.
        """

    def ended(self, rid: str, abort: Callable[[str], None]) -> None:
        """Called at the end of a request. `abort` ends the request that has this id at that time."""


_current: ContextVar[Seams] = ContextVar("seams", default=Seams())  # noqa: B039 - it has no state to share


def current_seams() -> Seams:
    """Return the seams of the current HTTP request."""
    return _current.get()


def use_seams(seams: Seams) -> None:
    """Use these seams for the rest of the current HTTP request."""
    _current.set(seams)
