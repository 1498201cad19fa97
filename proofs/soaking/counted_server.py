"""The server of the reference, which reports its allocated bytes on SIGUSR1, in the file whose path is in the
environment variable HELD_FILE.

The count comes from glibc. Python's own allocator (PYTHONMALLOC) and the caches of glibc for each thread
(GLIBC_TUNABLES) are switched off, because with them the count would miss small objects and include free ones.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from pathlib import Path

from tokenwire_reference.cli import main as serve

_FIELDS = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _Mallinfo(ctypes.Structure):
    """The result of `mallinfo2(3)`."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def main() -> None:
    """Run the command line of the reference."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    file = Path(os.environ["HELD_FILE"])

    def write_count(*_: object) -> None:
        gc.collect()
        counted = mallinfo()
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(str(counted.uordblks + counted.hblkhd), "ascii")
        unfinished.replace(file)

    signal.signal(signal.SIGUSR1, write_count)
    serve()


if __name__ == "__main__":
    main()
