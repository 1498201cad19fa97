"""What was read of a run is settled: it stays until all is judged, and nothing in it points back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled() -> Iterator[None]:
    """Let the garbage collector pass over everything that exists by now, until the end of the block.

    Checks make observations by the hundred thousand, beside millions of values that were read. Whenever
    enough of the former have come, it looks through all of the latter: a quarter of the time of a replay.
    Not to be nested: the end of an inner block ends the outer one.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
