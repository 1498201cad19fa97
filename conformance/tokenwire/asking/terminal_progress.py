"""How far a run is: a bar on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from tokenwire.asking.run import Progress
from tokenwire.asking.scenario import Conversation
from tokenwire.record import Stream

LINE_EVERY_S = 30.0
"""Off a terminal. Long enough for a log to stay readable, short enough to show that the run is alive."""


class Meter:
    """Counts what is done of one phase of a run, and shows it; a context manager."""

    def __init__(
        self,
        console: Console,
        phase: str,
        *,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn(phase, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn(
                "[dim]{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
            ),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total)
        self._phase = phase
        self._clock = clock
        self._begun = self._told = clock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, *, done: int = 0, total: int | None = None, words: str | None = None) -> None:
        """So much more is done, of so much in all; `words` say what was last."""
        self._bar.update(self._task, advance=done, total=total, description=words)
        now = self._clock()
        if not self._bar.console.is_terminal and now - self._told >= LINE_EVERY_S:
            self._told = now
            (task,) = self._bar.tasks
            so_far = f"{task.completed:.0f} of {task.total or 0:.0f} after {now - self._begun:.0f} s"
            line = f"{self._phase}: {so_far}; {task.description}"
            self._bar.console.print(line, markup=False, soft_wrap=True)


class TerminalProgress(Progress):
    """Scenarios talked through, and the exchange that was answered last; a context manager."""

    def __init__(self, console: Console) -> None:
        self._meter = Meter(console, "asking")
        self._exchanges = 0

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
        self._meter.show(words=f"{self._exchanges} exchanges, last {stream.exchange.name}")

    def finished(self, conversation: Conversation) -> None:  # noqa: ARG002  # only that it is over
        self._meter.show(done=1)
