"""Several engines (data parallel): each request runs on one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from tokenwire_reference.core.request import Request, Row
from tokenwire_reference.core.request_extras import Extra
from tokenwire_reference.running.engine_runner import EngineRunner

if TYPE_CHECKING:
    from tokenwire_reference.core.engine import Engine

_Result = TypeVar("_Result")

DP_RANK = Extra[int | None]("dp_rank", None)
"""The index of the engine that runs a request; None with a single engine, or until an engine is chosen."""


class Ranks:
    """Runs several engines, with the interface of `EngineRunner`.

    Must be used on the event loop. If a rank fails, its requests end, and it gets no further requests. The
    server continues as long as one rank works.
    """

    def __init__(self, runners: Sequence[EngineRunner]) -> None:
        self._runners = runners
        self._under_way: list[set[str]] = [set() for _ in runners]
        self._begun = [0 for _ in runners]
        self.on_failure: Callable[[], None] = lambda: None
        """A function that is called on an engine's thread after all engines have failed."""
        for runner in runners:
            runner.on_failure = self._rank_failed

    @property
    def failure(self) -> BaseException | None:
        """The error of the first engine that failed, after all engines have failed; None before."""
        failures = [runner.failure for runner in self._runners]
        return None if None in failures else failures[0]

    def _rank_failed(self) -> None:
        if self.failure is not None:
            self.on_failure()

    def start(self) -> None:
        for runner in self._runners:
            runner.start()

    def stop(self) -> None:
        for runner in self._runners:
            runner.stop()

    def add(self, request: Request, *, aborted: bool = False) -> None:
        """Run a request on the rank that the request names, or else on the least busy rank."""
        rank = DP_RANK.of(request)
        if rank is None:
            rank = min(range(len(self._runners)), key=self._business)
            DP_RANK.put(request, rank)
        self._begun[rank] += 1
        self._under_way[rank].add(request.rid)
        self._runners[rank].add(request, aborted=aborted)

    def _business(self, rank: int) -> tuple[bool, int, int]:
        """Return a sort key that puts the least busy rank first.

        Equally busy ranks are ordered by the number of requests that they have begun.
        """
        return self._runners[rank].failure is not None, len(self._under_way[rank]), self._begun[rank]

    def delivered(self, rows: Sequence[Row]) -> None:
        """Remove requests that ended."""
        for row in rows:
            rank = DP_RANK.of(row.record)
            if row.finish is not None and rank is not None:
                self._under_way[rank].discard(row.record.rid)

    def abort(self, rid: str) -> None:
        for runner, under_way in zip(self._runners, self._under_way, strict=True):
            if rid in under_way:
                runner.abort(rid)

    def each(self, function: Callable[[Engine], _Result]) -> list[Future[_Result]]:
        """Run a function on every engine, between two steps of that engine."""
        return [future for runner in self._runners for future in runner.each(function)]
