"""The progress bar of a live run, for terminals only."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tokenwire.asking.run import Progress
from tokenwire.asking.scenario import Conversation
from tokenwire.record import Stream


class TerminalProgress(Progress):
    """Scenarios talked through, and the exchange that was answered last; a context manager."""

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("asking"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)
        self._exchanges = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def planned(self, conversations: int) -> None:
        self._bar.update(self._task, total=conversations)

    def answered(self, stream: Stream) -> None:
        self._exchanges += 1
        words = f"{self._exchanges} exchanges, last {stream.exchange.name}"
        self._bar.update(self._task, description=words)

    def finished(self, conversation: Conversation) -> None:  # noqa: ARG002  # only that it is over
        self._bar.advance(self._task)
