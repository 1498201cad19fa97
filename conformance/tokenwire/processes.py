"""Processes that share work: they are forked off, so each knows what its parent knows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from multiprocessing import current_process, get_all_start_methods, get_context, parent_process
from multiprocessing.connection import wait
from threading import Semaphore, Thread
from typing import Any, TypeVar

_WAITING = 16
"""What comes of so many parts for each process may wait for that of a part before them."""
_MOST_AT_ONCE = 64

Part = TypeVar("Part")
Told = TypeVar("Told")

_work: Callable[[Any], Any] | None = None
"""What a process does with each part; its parent had it before the fork."""


def _begin(work: Callable[[Any], Any]) -> None:
    global _work  # noqa: PLW0603  # a process has one parent
    _work = work
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process where its parent is killed: nobody waits for what it does."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(0)


def _do(part: Any) -> Any:
    assert _work is not None
    return _work(part)


def shared_out(work: Callable[[Part], Told], parts: Iterable[Part], jobs: int) -> Iterator[Told]:
    """What comes of all parts, in their order; the next of so many processes that is free does each.

    Only parts and what comes of them pass between processes: whatever else the work needs, each has of its
    parent. One process does all where a single one is wanted, where there is one part, and where this one may
    not fork. Raises BrokenProcessPool if one of several was killed.
    """
    coming = iter(parts)
    begin = list(islice(coming, 2 if jobs > 1 and _may_fork() else 0))
    coming = chain(begin, coming)
    if len(begin) < 2:
        yield from map(work, coming)
        return
    pending: deque[Future[Told]] = deque()
    room = Semaphore(2 * jobs)
    with ProcessPoolExecutor(jobs, get_context("fork"), _begin, (work,)) as pool:
        for part in coming:
            room.acquire()
            pending.append(pool.submit(_do, part))
            pending[-1].add_done_callback(lambda _: room.release())
            while pending and (pending[0].done() or len(pending) > _WAITING * jobs):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def together(
    parts: Iterable[Part], size: Callable[[Part], int], room: int = 1 << 20
) -> Iterator[tuple[Part, ...]]:
    """Parts in their order, as many together as one process is given at once: a few large ones, or more small
    ones; the last takes up what is left of the room, or more.

    `size` tells how many bytes of a capture or of answers a part is.
    """
    some: list[Part] = []
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
    """Whether this system has processes that know what their parent knows, and this process may have some."""
    return "fork" in get_all_start_methods() and not current_process().daemon
