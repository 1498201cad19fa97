"""The time of a run, divided between the server that answers and this program."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Runs from the start of the process on.

    The server's is the time in which at least one exchange is under way, less the processor time that this
    process takes meanwhile: whatever it computes then counts as its own, even where the server worked beside
    it on another core. All other time is this program's: loading, waiting between exchanges, judging,
    reporting. So the reported share is never too small.
    """

    clock: Callable[[], float] = time.perf_counter
    processor: Callable[[], float] = time.process_time
    _began: float = field(init=False)
    _under_way: int = field(default=0, init=False)
    _since: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _asked_s: float = field(default=0.0, init=False)
    _computed_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._began = self.clock() - self.processor()  # until now the process has only loaded

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Count the time of an exchange."""
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
        """Describe in a sentence how much of the time so far the server took."""
        whole = self.clock() - self._began
        waited = max(0.0, self._asked_s - self._computed_s)
        return f"Took {whole:.1f} s, {waited:.1f} s of it waiting for the server."
