"""What the watcher keeps of answers until they are judged, and how much that may be.

Large answers lie in blocks of memory that the judge's process shares: what the target sends is received right
there, and passed on from there, so that none of it is copied. What comes in small reads is gathered instead;
a block would hold little of it. Both take of one room, which has an end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache

BLOCK = 512 << 10
"""Bytes: as much as a transport of asyncio reads at once."""
LARGE = 16 << 10
"""Bytes of a read from which on an answer is received in blocks."""
_LEAST = LARGE
"""Bytes of a block below which the next one is begun."""
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux since 5.14."""


class Room:
    """Blocks, and an account of what is kept outside of them; `size` in bytes is what all of that may take
    together, and at least one block.

    A block that is given back while some of it still waits to be sent is not given out before that is sent.
    """

    def __init__(self, size: int) -> None:
        count = max(1, size // BLOCK)
        self.fd = _nameless()
        os.ftruncate(self.fd, count * BLOCK)
        self.size = count * BLOCK
        self.taken = 0
        """Bytes that are not free: whole blocks, and what is kept outside of them."""
        self._map = mmap.mmap(self.fd, self.size)
        self.memory = memoryview(self._map)
        self._free = list(reversed(range(count)))
        self._made_ready = 0
        """Blocks whose pages are there; those behind them were never given out."""
        self._filling: int | None = None
        """The block that holds what was stored last, up to `_filled`."""
        self._filled = 0
        self._stored: dict[int, int] = {}
        """How many of those that were stored in a block are still there."""
        self._unsent: dict[int, bool] = {}
        """Blocks of which something waits to be sent, and whether they were given back meanwhile."""

    def borrow(self) -> int | None:
        """A block; None where none is left."""
        if not self._free or self.taken + BLOCK > self.size:
            return None
        self.taken += BLOCK
        block = self._free.pop()
        if block == self._made_ready:
            self._make_ready(block)
        return block

    def _make_ready(self, block: int) -> None:
        """Have the system make the pages of a block at once, where it can: else each is made when it is
        written to, which takes longer.
        """
        self._made_ready += 1
        with contextlib.suppress(OSError, ValueError):
            self._map.madvise(_POPULATE_WRITE, block * BLOCK, BLOCK)

    def store(self, data: bytes) -> tuple[int, int] | None:
        """Copy bytes to where other such lie: the block, which is to be given back once for each time, and
        where in the room they begin; None where there is no room.
        """
        size = len(data)
        block = self._filling
        if block is None or self._filled + size > BLOCK:
            if size > BLOCK or (new := self.borrow()) is None:
                return None
            block = self._filling = new
            self._filled, self._stored[block] = 0, 0
        start = block * BLOCK + self._filled
        self.memory[start : start + size] = data
        self._filled += size
        self._stored[block] += 1
        return block, start

    def give_back(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block in self._stored:
                self._stored[block] -= 1
                if self._stored[block]:
                    continue
                del self._stored[block]
                if block == self._filling:
                    self._filling = None
                self._release(block)
            elif block in self._unsent:
                self._unsent[block] = True
            else:
                self._release(block)

    def _release(self, block: int) -> None:
        self.taken -= BLOCK
        self._free.append(block)

    def unsent(self, block: int) -> None:
        """Some of a block waits to be sent."""
        self._unsent.setdefault(block, False)

    def sent(self, block: int) -> None:
        """All of a block that waited was sent, or never will be."""
        if self._unsent.pop(block, False):
            self._release(block)

    def hold(self, size: int) -> bool:
        """Account for bytes outside of blocks; false where there is no room for them."""
        if self.taken + size > self.size:
            return False
        self.taken += size
        return True

    def let_go(self, size: int) -> None:
        """Bytes outside of blocks are kept no longer."""
        self.taken -= size

    def close(self) -> None:
        """The memory itself goes with the last view of it."""
        os.close(self.fd)


def _nameless() -> int:
    """A file in memory where the system has such, else a temporary one that has no name any more."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tokenwire-watch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


Stretch = tuple[int, int] | bytes
"""Reads one behind the other: where they lie in the room, from and to, or the bytes themselves."""


class Kept:
    """What is kept of one answer: each of its reads, with its time."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held = 0
        self.blocks: list[int] = []
        self.stretches: list[Stretch] = []
        self.lengths: list[int] = []
        self.times: list[float] = []

    @property
    def size(self) -> int:
        """Bytes of all reads."""
        return sum(self.lengths)

    @property
    def told_size(self) -> int:
        """Bytes that have to be told to the other process."""
        outside = sum(len(stretch) for stretch in self.stretches if isinstance(stretch, bytes))
        return outside + 16 * len(self.lengths)

    def lie(self, start: int, end: int) -> None:
        """More of it lies in the room, from here to there."""
        last = self.stretches[-1] if self.stretches else b""
        if isinstance(last, tuple) and last[1] == start:
            self.stretches[-1] = (last[0], end)
        else:
            self.stretches.append((start, end))

    def hold(self, size: int) -> bool:
        """Account for bytes that belong to it; false where there is no room for them."""
        if not self._room.hold(size):
            return False
        self._held += size
        return True

    def store(self) -> None:
        """Nothing more comes: put into the room what was gathered, as far as there is some."""
        stretches: list[Stretch] = []
        for stretch in self.stretches:
            if isinstance(stretch, bytes) and (stored := self._room.store(stretch)):
                block, start = stored
                self.blocks.append(block)
                self._room.let_go(len(stretch))
                self._held -= len(stretch)
                stretches.append((start, start + len(stretch)))
            else:
                stretches.append(stretch)
        self.stretches = stretches

    def give_back(self) -> None:
        self._room.give_back(self.blocks)
        self._room.let_go(self._held)
        self._held = 0
        self.blocks, self.stretches = [], []


class Intake:
    """Where one connection receives from the target: in blocks of what is kept of an answer, once a read of
    it was large, and as long as there are any.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._kept: Kept | None = None
        """What is kept of the answer that comes; None where nothing is."""
        self._block: int | None = None
        self._memory = room.memory
        self._end = 0
        """Where the block ends."""
        self.landed_at = 0
        """Where in the room the read ends that landed last; 0 if it does not lie there for this answer."""
        self._unsent: int | None = None
        self.switch: Callable[[bool], None] = lambda _: None
        """Told when the connection is to receive here, and when no longer."""

    def begin(self, kept: Kept | None) -> None:
        """From here on, an answer comes of which this is kept; the block stays with the one before."""
        self._kept = kept
        if self._block is not None:
            self._leave()

    def open(self) -> None:
        """A read of the answer was large, and it is kept."""
        if self._block is None and self._kept is not None:
            self._borrow()
            if self._block is not None:
                self.switch(True)

    def _borrow(self) -> None:
        assert self._kept is not None
        self._block = self._room.borrow()
        if self._block is not None:
            self._kept.blocks.append(self._block)
            self.landed_at = self._block * BLOCK
            self._end = self.landed_at + BLOCK

    def _leave(self) -> None:
        self._block = None
        self.landed_at = 0
        self.switch(False)

    def place(self) -> memoryview:
        """Where the next read may land."""
        return self._memory[self.landed_at : self._end]

    def landed(self, size: int) -> memoryview:
        """So many bytes have landed: these."""
        start = self.landed_at
        self.landed_at = end = start + size
        return self._memory[start:end]

    def heard(self) -> None:
        """What landed is kept: see to it that there is a place for the next read."""
        if self._end - self.landed_at < _LEAST and self._block is not None:
            self._borrow()
            if self._block is None:
                self._leave()

    def unsent(self) -> None:
        """Of what landed last, something waits to be sent."""
        if self._block is not None and self._unsent is None:
            self._unsent = self._block
            self._room.unsent(self._block)

    def sent(self) -> None:
        """Nothing waits any more."""
        if self._unsent is not None:
            self._room.sent(self._unsent)
            self._unsent = None


@cache
def _shared(fd: int, size: int) -> memoryview:
    """The room of another process, to be read."""
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))


def reads_in(
    fd: int, size: int, stretches: Sequence[Stretch], lengths: Sequence[int]
) -> Iterator[bytes | memoryview]:
    """The reads of an answer that lies in these stretches of a room."""
    following = iter(lengths)
    for stretch in stretches:
        data: bytes | memoryview
        if isinstance(stretch, tuple):
            start, end = stretch
            data = _shared(fd, size)[start:end]
        else:
            data = stretch
        at = 0
        while at < len(data):
            end = at + next(following)
            yield data[at:end]
            at = end
