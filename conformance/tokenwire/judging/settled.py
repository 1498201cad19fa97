"""What was read of a run is settled: it stays until all is judged, and nothing in it points back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled() -> Iterator[None]:
    """Keep the garbage collector from running, until the end of the block.

    What is read and what is seen of it are trees of values, by the million: nothing of them is garbage until
    they are dropped, and then no collector is needed. Whenever enough of them have come, it would look
    through all the others: a quarter of the time of a replay, and more of a long one.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
