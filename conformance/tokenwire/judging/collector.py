"""Fewer runs of the garbage collector while answers are parsed and judged, because nearly all objects stay in
use.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS = 100_000
"""The number of allocations after which the collector searches for cycles."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Run the garbage collector less often within the block.

    A run and its observations are millions of objects that live until all of them are dropped. By default,
    the collector runs after every 700 allocations and visits these objects again and again. That takes a
    quarter of the time of a replay.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
