"""Worker processes that are made by fork, and so share the memory of their parent."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import (
    active_children,
    current_process,
    get_all_start_methods,
    get_context,
    parent_process,
)
from multiprocessing.connection import wait
from threading import Semaphore, Thread
from typing import Any, TypeVar

_WAITING = 16
"""The maximum number of results per worker that wait for an earlier result."""
_MOST_AT_ONCE = 64

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")

_work: Callable[[Any], Any] | None = None
"""The function that a worker runs. It is set when the worker starts."""


def _begin(work: Callable[[Any], Any]) -> None:
    global _work  # noqa: PLW0603  # each process has a single parent
    _work = work
    # Ctrl-C reaches all processes of a terminal. The parent decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process ends, and then exit, because nothing reads the results any more."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(0)


def _do(part: Any) -> Any:
    assert _work is not None
    return _work(part)


def shared_out(work: Callable[[_Part], _Result], parts: Iterable[_Part], jobs: int) -> Iterator[_Result]:
    """Distribute parts to worker processes, and yield the results in the order of the parts.

    Only parts and results pass between processes. This process does all the work itself if `jobs` is 1, if
    there is only one part, or if the system cannot fork. The workers end when the generator is closed. Raises
    BrokenProcessPool if a worker was killed.
    """
    coming = iter(parts)
    begin = list(islice(coming, 2 if jobs > 1 and _may_fork() else 0))
    coming = chain(begin, coming)
    if len(begin) < 2:
        yield from map(work, coming)
        return
    pending: deque[Future[_Result]] = deque()
    # Parts are generated as workers become free, because all parts together may exceed the memory.
    room = Semaphore(2 * jobs)
    others = set(active_children())
    with ProcessPoolExecutor(jobs, get_context("fork"), _begin, (work,)) as pool:
        try:
            for part in coming:
                room.acquire()
                pending.append(pool.submit(_do, part))
                pending[-1].add_done_callback(lambda _: room.release())
                while pending and (pending[0].done() or len(pending) > _WAITING * jobs):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - others:
                worker.terminate()
            raise


class Helper:
    """A process that works on one part after another.

    If this system cannot fork, a thread is used instead. The process is forked at once, so that it inherits
    only connections that are already open. The process ends with its parent.
    """

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._forks = _may_fork()
        self._work = work
        self._pool = self._begun()

    def _begun(self) -> Executor:
        pool: Executor = (
            ProcessPoolExecutor(1, get_context("fork"), _begin, (self._work,))
            if self._forks
            else ThreadPoolExecutor(1)
        )
        pool.submit(int).result()
        return pool

    def submit(self, part: Any) -> Future[Any]:
        """Submit a part, and return a future for its result.

        The future raises BrokenProcessPool if the process was killed. The next part then gets a new process.
        """
        work = _do if self._forks else self._work
        try:
            return self._pool.submit(work, part)
        except BrokenProcessPool:
            self._pool = self._begun()
            return self._pool.submit(work, part)

    def close(self) -> None:
        """End the process, even if work is left."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def together(
    parts: Iterable[_Part], size: Callable[[_Part], int], room: int = 1 << 20
) -> Iterator[tuple[_Part, ...]]:
    """Yield batches of parts, in order.

    A batch has a few large parts or many small parts. A batch ends with the part that brings its size to
    `room` bytes. `size` returns the size of a part in bytes.
    """
    some: list[_Part] = []
    left = room
    for part in parts:
        some.append(part)
        left -= size(part) + room // _MOST_AT_ONCE
        if left <= 0:
            yield tuple(some)
            some, left = [], room
    if some:
        yield tuple(some)


def _may_fork() -> bool:
    """True if the system can fork, and this process is allowed to."""
    return "fork" in get_all_start_methods() and not current_process().daemon
