"""The spool: a buffer that carries the bytes of all connections, with their times, from the proxy to the
judging process.

The spool is a file without a name, mapped into the memory of both processes. The proxy only appends records.
Recorded requests contain credentials, so the file is in memory if the system supports this. Otherwise the
file is deleted from its folder immediately.

The file has segments. The records since the last `publish` are a batch, which lies within one segment; the
judging process reads batches in order. A segment is reused when all of its batches are released. The latest
free segment is reused first, because its memory is probably still in the processor cache.
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
"""The size of a segment in bytes."""
_LEAST_BUFFER = 128 << 10
"""The least size of a buffer for bytes from the target.

If a segment has less free space than this, the next segment is used.
"""
_HEADER = struct.Struct("<IBdI")
"""The header of a record: connection, kind, time, and size of the data."""
_HEADER_SIZE = _HEADER.size


class Kind(IntEnum):
    """The kinds of records."""

    OPENED = 0
    REQUEST = 1
    """Bytes from the client that look like the beginning of a request."""
    SENT = 2
    """Other bytes from the client."""
    RECEIVED = 3
    """Bytes from the target."""
    CLIENT_ENDED = 4
    """The client will not send any more."""
    TARGET_ENDED = 5
    """The target will not send any more."""
    CLOSED = 6
    LOST = 7
    """Records are missing, because the spool was full.

    Everything up to the next REQUEST record is to be ignored.
    """


_KINDS = tuple(Kind)


class Record(NamedTuple):
    """A record: something that happened on a connection."""

    position: int
    """The total size of all earlier records in bytes, which identifies the record."""
    connection: int
    kind: Kind
    time: float
    """The time on the monotonic clock, which all processes on a machine share."""
    data: Piece
    """The bytes of the record.

    They may be a view into the spool, which is valid until the batch is released.
    """


class Batch(NamedTuple):
    """A range of records in the file, within one segment."""

    start: int
    end: int
    position: int
    """The position of the batch's first record."""
    requests: int
    """The number of REQUEST records in the batch."""


class Spool:
    """The writing side of the spool. `size`: in bytes, at least two segments.

    A record that does not fit is dropped. Its connection gets a LOST record as soon as there is space.
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
        """The number of reasons not to reuse each segment: the batches in the segment, and pending sends from
        its memory.
        """
        self.scratch = memoryview(bytearray(_LEAST_BUFFER))
        """A buffer outside of the spool, for bytes that are dropped."""
        self._segment = 0
        """The number of the segment that is being written."""
        self._start, self._next, self._end = 0, 0, SEGMENT
        """Offsets: the beginning of the next batch, the next record, and the end of the segment."""
        self._position = 0
        self._requests = 0
        """The number of REQUEST records since the last `publish`."""
        self._sealed = False
        self._dropped: list[tuple[int, Kind]] = []
        """The connections and kinds of records that were dropped and must be appended later."""
        self.batches: deque[Batch] = deque()
        """The batches that were published and are not released yet, the oldest first."""

    @property
    def crowded(self) -> bool:
        """True if less than half of the segments are free. New exchanges are then not recorded."""
        return len(self._free) < self._few

    @property
    def waiting(self) -> int:
        """The size of all records that are not released, in bytes."""
        return self._next - self._start + sum(batch.end - batch.start for batch in self.batches)

    def append(self, connection: int, kind: Kind, data: bytes = b"") -> bool:
        """Append a record; return False if it was dropped."""
        size, start = len(data), self._next
        begin = start + _HEADER_SIZE
        end = begin + size
        if end > self._end:
            return self._append_behind(connection, kind, data)
        _HEADER.pack_into(self._memory, start, connection, kind, time.monotonic(), size)
        self._memory[begin:end] = data
        self._next = end
        return True

    def buffer(self) -> memoryview:
        """Return a buffer for the data of the next record. `append_received` must follow."""
        while self._end - self._next < _LEAST_BUFFER:
            if not self._begin_segment():
                return self.scratch
        return self._memory[self._next + _HEADER_SIZE : self._end]

    def append_received(self, connection: int, kind: Kind, size: int) -> bool:
        """Append a record with the first `size` bytes of the last buffer; return False if it was dropped."""
        start = self._next
        # There was no space, so `buffer` has returned `scratch`.
        if self._end - start < _LEAST_BUFFER:
            return self._drop(connection, kind)
        _HEADER.pack_into(self._memory, start, connection, kind, time.monotonic(), size)
        self._next = start + _HEADER_SIZE + size
        return True

    def append_request(self, connection: int, data: bytes) -> bool:
        """Append a REQUEST record; return False if it was dropped, or if the spool is crowded."""
        if self.crowded or not self.append(connection, Kind.REQUEST, data):
            return False
        self._requests += 1
        return True

    def _append_behind(self, connection: int, kind: Kind, data: bytes) -> bool:
        """Append a record that does not fit into the rest of the segment."""
        if _HEADER_SIZE + len(data) > SEGMENT:
            # A record must fit into a segment, so it is divided. Only the first half of a request is a
            # REQUEST record.
            half, rest = len(data) // 2, Kind.SENT if kind == Kind.REQUEST else kind
            return self.append(connection, kind, data[:half]) and self.append(connection, rest, data[half:])
        if self._begin_segment():
            return self.append(connection, kind, data)
        return self._drop(connection, kind)

    def _begin_segment(self) -> bool:
        """Begin a free segment; return False if none is free."""
        if self._sealed:
            return False
        self.publish()
        if self._free:
            self._write_from(self._free.pop())
            return True
        self._end = self._next  # A later, smaller record must not be written before the dropped record.
        return False

    def _drop(self, connection: int, kind: Kind) -> bool:
        if not self._sealed and kind != Kind.OPENED:
            self._dropped.append((connection, Kind.CLOSED if kind == Kind.CLOSED else Kind.LOST))
        return False

    def _write_from(self, segment: int) -> None:
        """Begin to write a segment, with the dropped records first."""
        self._segment = segment
        self._start = self._next = segment * SEGMENT
        self._end = self._next + SEGMENT
        dropped, self._dropped = self._dropped, []
        for connection, kind in dropped:
            self.append(connection, kind)

    def publish(self) -> None:
        """Make a batch of the records since the last call."""
        if self._next > self._start:
            self.batches.append(Batch(self._start, self._next, self._position, self._requests))
            self._pins[self._segment] += 1
            self._position += self._next - self._start
            self._start, self._requests = self._next, 0

    def release(self) -> Batch:
        """Release the oldest batch, which was read or is lost."""
        batch = self.batches.popleft()
        self.unpin(batch.start // SEGMENT)
        return batch

    def pin(self) -> int:
        """Keep the segment of the last buffer until `unpin`, because its bytes are still to be sent."""
        # The pending bytes may be in `scratch`, so a new scratch buffer is created.
        self.scratch = memoryview(bytearray(len(self.scratch)))
        self._pins[self._segment] += 1
        return self._segment

    def unpin(self, segment: int) -> None:
        self._pins[segment] -= 1
        if not self._pins[segment]:
            if segment != self._segment:
                self._free.append(segment)
            elif self._next == self._start and not self._sealed:
                # Everything in this segment was read. It is reused at once, because its memory is still in
                # the cache.
                self._write_from(segment)

    def seal(self) -> None:
        """Drop all records from now on."""
        self.publish()
        self._sealed, self._end = True, self._next

    def close(self) -> None:
        """Close the file. Its memory is freed when the judging process has ended as well."""
        os.close(self.fd)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tokenwire-watch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SpoolReader:
    """The reading side of the spool, in the judging process."""

    def __init__(self, fd: int, size: int) -> None:
        self._memory = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))

    def records(self, start: int, end: int, position: int) -> Iterator[Record]:
        """Yield the records of a batch."""
        position -= start
        while start < end:
            connection, kind, when, size = _HEADER.unpack_from(self._memory, start)
            begin = start + _HEADER_SIZE
            data = self._memory[begin : begin + size]
            yield Record(position + start, connection, _KINDS[kind], when, data)
            start = begin + size
