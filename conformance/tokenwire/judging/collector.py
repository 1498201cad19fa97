"""Read and judge with few runs of the garbage collector: nearly all that was read of a run is in use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS = 100_000
"""The objects that are allocated before the collector looks for cycles among them."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Run the collector seldom, until the end of the block.

    A run and its observations are millions of objects that stay until all are dropped. By default, the
    collector runs after 700 allocations and traverses objects again and again: a quarter of the time of a
    replay.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
