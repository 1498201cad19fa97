"""Reduces runs of the garbage collector while a run is parsed and judged, because nearly all objects are in
use.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS = 100_000
"""The number of allocations before the collector searches for cycles."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Run the collector seldom until the end of the block.

    A run and its observations are millions of objects that stay until all are dropped. By default, the
    collector runs after 700 allocations and traverses objects again and again, which takes a quarter of the
    time of a replay.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
