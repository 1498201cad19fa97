"""How far the asking of a run is, on a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console

from tokenwire.asking.run import Progress
from tokenwire.asking.scenario import Conversation
from tokenwire.record import Stream
from tokenwire.report.meter import Meter


class TerminalProgress(Progress):
    """Shows finished scenarios and the last exchange; a context manager."""

    def __init__(self, console: Console) -> None:
        self._meter = Meter(console, "asking")
        self._exchanges = 0
        self._confirming = ""

    def __enter__(self) -> Self:
        self._meter.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._meter.__exit__(kind, error, trace)

    def planned(self, conversations: int) -> None:
        self._meter.show(total=conversations)

    def answered(self, stream: Stream) -> None:
        self._exchanges += 1
        self._meter.show(words=f"{self._confirming}{self._exchanges} exchanges, last {stream.exchange.name}")

    def confirming(self, done: int, total: int) -> None:
        self._confirming = f"confirming {done + 1} of {total}; "

    def waiting(self, words: str) -> None:
        self._meter.show(words=words)

    def finished(self, conversation: Conversation) -> None:  # noqa: ARG002  # only that it is over
        self._meter.show(done=1)
