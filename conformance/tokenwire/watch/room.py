"""Shared memory for the bodies of exchanges: the judge's process reads it, so each byte is copied once.

Memory that is new to a process is paid for page by page, which takes several times as long as copying. So it
is given out in blocks, and a block that was given back last is given out next.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Sequence
from functools import cache

BLOCK = 16 << 10
"""Bytes: little for an exchange that has but a few, and enough for most events."""
_READY_AT_ONCE = 256
"""Blocks."""
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux since 5.14."""


class Room:
    """At least one block; `size` in bytes is what all blocks may take together."""

    def __init__(self, size: int) -> None:
        count = max(1, size // BLOCK)
        self.fd = _nameless()
        os.ftruncate(self.fd, count * BLOCK)
        self.size = count * BLOCK
        self._map = mmap.mmap(self.fd, self.size)
        self.memory = memoryview(self._map)
        self._free = list(reversed(range(count)))
        self._made_ready = 0
        """Blocks whose pages are there; those behind them were never given out."""

    @property
    def free(self) -> int:
        """How many blocks are not given out."""
        return len(self._free)

    def borrow(self) -> int | None:
        """A block; None where none is left."""
        if not self._free:
            return None
        block = self._free.pop()
        if block >= self._made_ready:
            self._make_ready()
        return block

    def _make_ready(self) -> None:
        """Have the system make the pages of the next blocks at once, where it can: else each is made when it
        is written to, which takes longer.
        """
        start = self._made_ready * BLOCK
        length = min(_READY_AT_ONCE * BLOCK, self.size - start)
        self._made_ready += length // BLOCK
        with contextlib.suppress(OSError, ValueError):
            self._map.madvise(_POPULATE_WRITE, start, length)

    def give_back(self, blocks: Sequence[int]) -> None:
        self._free += blocks

    def close(self) -> None:
        self.memory.release()
        self._map.close()
        os.close(self.fd)


def _nameless() -> int:
    """A file in memory where the system has such, else a temporary one that has no name any more."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tokenwire-watch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Body:
    """The pieces of a body, in blocks that are filled one after the other."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._memory = room.memory
        self._at = self._left = 0
        self.blocks: list[int] = []
        self.lengths: list[int] = []
        self.times: list[float] = []

    def more(self) -> bool:
        """Borrow another block; false where none is left."""
        block = self._room.borrow()
        if block is None:
            return False
        self.blocks.append(block)
        self._at, self._left = block * BLOCK, BLOCK
        return True

    def add(self, at: float, piece: bytes) -> bool:
        """Keep a piece that came at this time; false where there is no room for it."""
        size = len(piece)
        self.lengths.append(size)
        self.times.append(at)
        done = 0
        while size - done > self._left:
            end = done + self._left
            self._memory[self._at : self._at + self._left] = piece[done:end]
            done = end
            if not self.more():
                return False
        rest = size - done
        self._memory[self._at : self._at + rest] = piece[done:] if done else piece
        self._at += rest
        self._left -= rest
        return True

    def give_back(self) -> None:
        self._room.give_back(self.blocks)
        self.blocks = []


@cache
def _shared(fd: int, size: int) -> memoryview:
    """The room of another process, to be read."""
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))


def pieces(fd: int, size: int, blocks: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """The pieces of a body that lie in these blocks of a room."""
    memory = _shared(fd, size)
    body = b"".join(memory[block * BLOCK : (block + 1) * BLOCK] for block in blocks)
    found, at = [], 0
    for length in lengths:
        found.append(body[at : at + length])
        at += length
    return found
