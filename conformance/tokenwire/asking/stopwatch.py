"""Measures how a run's time divides between the server and this program."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Measures from the start of the process.

    The server's time is the time in which exchanges run, minus the processor time that this program uses
    meanwhile. All other time is the program's own: loading, pauses, judging, reporting. If the server and
    this program work at once on two cores, that time counts as the program's. So the program's share is never
    reported too small.
    """

    clock: Callable[[], float] = time.perf_counter
    processor: Callable[[], float] = time.process_time
    _began: float = field(init=False)
    _under_way: int = field(default=0, init=False)
    _since: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _asked_s: float = field(default=0.0, init=False)
    _computed_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        # Before this point, the process has only imported modules.
        self._began = self.clock() - self.processor()

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Count the time in this context as time of a running exchange."""
        if not self._under_way:
            self._since = self.clock(), self.processor()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._asked_s += self.clock() - self._since[0]
                self._computed_s += self.processor() - self._since[1]

    def words(self) -> str:
        """Describe the server's share of the time so far, in a sentence."""
        whole = self.clock() - self._began
        waited = max(0.0, self._asked_s - self._computed_s)
        return f"Took {whole:.1f} s, {waited:.1f} s of it waiting for the server."
