"""Judge without the garbage collector: nothing that was read of a run is garbage while it is judged."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the garbage collector from running, until the end of the block.

    A run and its observations are millions of values that stay until all are dropped. The collector would
    look through all of them again and again: a quarter of the time of a replay, and more of a long one.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
