"""Shows the progress of one phase of a run.

On a terminal, the progress is a bar. In a log, it is a line every half minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

LINE_EVERY_S = 30.0
"""Seconds between two lines in a log. The log stays short, and still shows that the run is alive."""


class Meter:
    """A context manager that counts and shows the progress of one phase of a run."""

    def __init__(
        self,
        console: Console,
        phase: str,
        *,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bar = Progress(
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
        self._begun = self._last_line = clock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, *, done: int = 0, total: int | None = None, words: str | None = None) -> None:
        """Count `done` further steps, and set the total. `words`: description of the last step."""
        self._bar.update(self._task, advance=done, total=total, description=words)
        now = self._clock()
        if not self._bar.console.is_terminal and now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            (task,) = self._bar.tasks
            so_far = f"{task.completed:.0f} of {task.total or 0:.0f} after {now - self._begun:.0f} s"
            self.say(f"{so_far}; {task.description}")

    def say(self, words: str) -> None:
        """Print a line, on a terminal above the bar."""
        self._bar.console.print(f"{self._phase}: {words}", markup=False, highlight=False, soft_wrap=True)
