"""The spool: what passes on all connections, with its times, on its way to the judge's process.

It is a file without a name, mapped into memory, that both processes have open: the proxy appends records to
it, and does nothing else with what it forwards. Requests stand in it with their credentials, so it lies in
memory where the system has such files, and is removed from its folder at once where not.

The file is parted into segments. What was appended since the last call of `publish` is a batch: a piece of
one segment, which the judge reads from its beginning to its end. A segment is written again once all of its
batches are released, the latest first: its memory is most likely still in the cache of the processor.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from tokenwire.wire.http_answer import Piece

SEGMENT = 1 << 20
"""Bytes."""
_LEAST_PLACE = 128 << 10
"""Bytes: where less of a segment is left, what a target sends is received in the next one."""
_HEADER = struct.Struct("<IBdI")
"""The connection, the kind, the time and the size of the data behind it."""
_HEADER_SIZE = _HEADER.size


class Kind(IntEnum):
    """What a record says of its connection."""

    OPENED = 0
    REQUEST = 1
    """The client sent bytes that begin like a request."""
    SENT = 2
    """The client sent other bytes."""
    RECEIVED = 3
    """The target sent bytes."""
    CLIENT_ENDED = 4
    """The client sends nothing more."""
    TARGET_ENDED = 5
    """The target sends nothing more."""
    CLOSED = 6
    LOST = 7
    """There was no room for what came: bytes are missing up to the next REQUEST."""


_KINDS = tuple(Kind)


class Record(NamedTuple):
    """Something that happened on a connection."""

    position: int
    """How many bytes of records stand before it in all batches: it names what begins here."""
    connection: int
    kind: Kind
    time: float
    """On the monotonic clock, which all processes of a machine share."""
    data: Piece
    """A view is good as long as the batch is not released."""


class Batch(NamedTuple):
    """Records in a piece of the file."""

    start: int
    end: int
    position: int
    """That of the first record."""
    requests: int
    """How many of the records are a REQUEST."""


class Spool:
    """The end of the spool that the proxy writes to; `size` in bytes, and at least two segments.

    A record for which no room is left is dropped, and its connection is LOST once there is room again.
    """

    def __init__(self, size: int) -> None:
        count = max(2, size // SEGMENT)
        self.size = count * SEGMENT
        self.fd = _nameless_file()
        os.ftruncate(self.fd, self.size)
        self._memory = memoryview(mmap.mmap(self.fd, self.size))
        self._few = count // 2
        self._free = list(reversed(range(1, count)))
        self._pins = Counter[int]()
        """How often each segment is pinned: for each of its batches, and for what waits to be sent."""
        self.elsewhere = memoryview(bytearray(_LEAST_PLACE))
        """A place that is no part of the spool."""
        self._segment = 0
        """The one that is written."""
        self._start, self._at, self._end = 0, 0, SEGMENT
        """Where the next batch begins, where the next record goes, and up to where that may reach."""
        self._position = 0
        self._requests = 0
        """In the next batch."""
        self._sealed = False
        self._owed: list[tuple[int, Kind]] = []
        """Records without data that had no room."""
        self.batches: deque[Batch] = deque()
        """Those that are published and not released, oldest first."""

    @property
    def crowded(self) -> bool:
        """Whether exchanges had better not begin: those under way need the rest of the room."""
        return len(self._free) < self._few

    @property
    def waiting(self) -> int:
        """Bytes of records that are not released."""
        return self._at - self._start + sum(batch.end - batch.start for batch in self.batches)

    def append(self, connection: int, kind: Kind, data: bytes = b"") -> bool:
        """Append a record; false where it was dropped."""
        size, at = len(data), self._at
        begin = at + _HEADER_SIZE
        end = begin + size
        if end > self._end:
            return self._append_behind(connection, kind, data)
        _HEADER.pack_into(self._memory, at, connection, kind, time.monotonic(), size)
        self._memory[begin:end] = data
        self._at = end
        return True

    def place(self) -> memoryview:
        """Where the data of the next record may be written, which `append_placed` appends then."""
        while self._end - self._at < _LEAST_PLACE:
            if not self._begin_segment():
                return self.elsewhere
        return self._memory[self._at + _HEADER_SIZE : self._end]

    def append_placed(self, connection: int, kind: Kind, size: int) -> bool:
        """Append a record of what was written to the place that was just given; false where it is dropped."""
        at = self._at
        if self._end - at < _LEAST_PLACE:
            return self._drop(connection, kind)
        _HEADER.pack_into(self._memory, at, connection, kind, time.monotonic(), size)
        self._at = at + _HEADER_SIZE + size
        return True

    def append_request(self, connection: int, data: bytes) -> bool:
        """Append a record of the kind REQUEST, unless the spool is crowded; false where it was dropped."""
        if self.crowded or not self.append(connection, Kind.REQUEST, data):
            return False
        self._requests += 1
        return True

    def _append_behind(self, connection: int, kind: Kind, data: bytes) -> bool:
        """Append a record that does not fit into the segment."""
        if _HEADER_SIZE + len(data) > SEGMENT:
            half, rest = len(data) // 2, Kind.SENT if kind == Kind.REQUEST else kind
            return self.append(connection, kind, data[:half]) and self.append(connection, rest, data[half:])
        if self._begin_segment():
            return self.append(connection, kind, data)
        return self._drop(connection, kind)

    def _begin_segment(self) -> bool:
        """Go on in another segment; false where none is free."""
        if self._sealed:
            return False
        self.publish()
        if self._free:
            self._write_from(self._free.pop())
            return True
        self._end = self._at  # a smaller record must not overtake those that are owed
        return False

    def _drop(self, connection: int, kind: Kind) -> bool:
        if not self._sealed and kind != Kind.OPENED:
            self._owed.append((connection, Kind.CLOSED if kind == Kind.CLOSED else Kind.LOST))
        return False

    def _write_from(self, segment: int) -> None:
        """Go on at the beginning of a segment, with the records that are owed."""
        self._segment = segment
        self._start = self._at = segment * SEGMENT
        self._end = self._at + SEGMENT
        owed, self._owed = self._owed, []
        for connection, kind in owed:
            self.append(connection, kind)

    def publish(self) -> None:
        """Make a batch of what was appended."""
        if self._at > self._start:
            self.batches.append(Batch(self._start, self._at, self._position, self._requests))
            self._pins[self._segment] += 1
            self._position += self._at - self._start
            self._start, self._requests = self._at, 0

    def release(self) -> Batch:
        """The oldest batch is read, or nobody will read it."""
        batch = self.batches.popleft()
        self.unpin(batch.start // SEGMENT)
        return batch

    def pin(self) -> int:
        """Keep the memory of the place that was just given until the segment is unpinned: it is still to be
        sent.
        """
        self.elsewhere = memoryview(bytearray(len(self.elsewhere)))
        self._pins[self._segment] += 1
        return self._segment

    def unpin(self, segment: int) -> None:
        self._pins[segment] -= 1
        if not self._pins[segment]:
            if segment != self._segment:
                self._free.append(segment)
            elif self._at == self._start and not self._sealed:
                self._write_from(segment)

    def seal(self) -> None:
        """Drop all that comes from now on."""
        self.publish()
        self._sealed, self._end = True, self._at

    def close(self) -> None:
        """The memory itself goes with the last process that has it open."""
        os.close(self.fd)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tokenwire-watch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SpoolReader:
    """The end of the spool that the judge reads."""

    def __init__(self, fd: int, size: int) -> None:
        self._memory = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))

    def records(self, start: int, end: int, position: int) -> Iterator[Record]:
        """The records of a batch."""
        position -= start
        while start < end:
            connection, kind, at, size = _HEADER.unpack_from(self._memory, start)
            begin = start + _HEADER_SIZE
            data = self._memory[begin : begin + size]
            yield Record(position + start, connection, _KINDS[kind], at, data)
            start = begin + size
