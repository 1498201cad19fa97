"""The spool: carries bytes and times of all connections from the proxy to the judge's process.

It is a file without a name, mapped into the memory of both processes; the proxy only appends records.
Requests in it contain credentials, so it is a file in memory if the system has such files, and otherwise
removed from its folder at once.

The file has segments. The records since the last `publish` are a batch, a piece of one segment, which the
judge reads in order. A segment is reused once all of its batches are released, the latest first: its memory
is most likely still in the cache of the processor.
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
"""Bytes of a segment."""
_LEAST_BUFFER = 128 << 10
"""Bytes of the least buffer: with less of a segment left, the target's bytes are received in the next one."""
_HEADER = struct.Struct("<IBdI")
"""The connection, the kind, the time and the size of the following data."""
_HEADER_SIZE = _HEADER.size


class Kind(IntEnum):
    """Kinds of records of a connection."""

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
    """The spool was full: bytes are missing up to the next REQUEST."""


_KINDS = tuple(Kind)


class Record(NamedTuple):
    """An event on a connection."""

    position: int
    """The number of bytes of all earlier records, which identifies the record."""
    connection: int
    kind: Kind
    time: float
    """The time on the monotonic clock, which all processes of a machine share."""
    data: Piece
    """The data; a view is valid until the batch is released."""


class Batch(NamedTuple):
    """The records in a piece of the file."""

    start: int
    end: int
    position: int
    """The position of the first record."""
    requests: int
    """The number of REQUEST records."""


class Spool:
    """The writer of the spool; `size` in bytes, at least two segments.

    A record that does not fit is dropped, and its connection gets LOST once there is space again.
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
        """The number of pins of each segment: one for each batch, and for each pending send."""
        self.scratch = memoryview(bytearray(_LEAST_BUFFER))
        """The buffer for dropped bytes, outside of the spool."""
        self._segment = 0
        """The segment in use."""
        self._start, self._next, self._end = 0, 0, SEGMENT
        """Offsets of the next batch and of the next record, and the end of the segment."""
        self._position = 0
        self._requests = 0
        """The number of requests in the next batch."""
        self._sealed = False
        self._dropped: list[tuple[int, Kind]] = []
        """Dropped records, without data."""
        self.batches: deque[Batch] = deque()
        """Published batches that are not released, oldest first."""

    @property
    def crowded(self) -> bool:
        """True if no exchange should begin, because the open ones need the remaining space."""
        return len(self._free) < self._few

    @property
    def waiting(self) -> int:
        """Bytes of records that are not released."""
        return self._next - self._start + sum(batch.end - batch.start for batch in self.batches)

    def append(self, connection: int, kind: Kind, data: bytes = b"") -> bool:
        """Append a record; False if it is dropped."""
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
        """Return the buffer for the data of the next record, before `append_received`."""
        while self._end - self._next < _LEAST_BUFFER:
            if not self._begin_segment():
                return self.scratch
        return self._memory[self._next + _HEADER_SIZE : self._end]

    def append_received(self, connection: int, kind: Kind, size: int) -> bool:
        """Append a record of the bytes in the last buffer; False if it is dropped."""
        start = self._next
        # `buffer` returned the scratch, because there was no space.
        if self._end - start < _LEAST_BUFFER:
            return self._drop(connection, kind)
        _HEADER.pack_into(self._memory, start, connection, kind, time.monotonic(), size)
        self._next = start + _HEADER_SIZE + size
        return True

    def append_request(self, connection: int, data: bytes) -> bool:
        """Append a REQUEST unless the spool is crowded; False if it is dropped."""
        if self.crowded or not self.append(connection, Kind.REQUEST, data):
            return False
        self._requests += 1
        return True

    def _append_behind(self, connection: int, kind: Kind, data: bytes) -> bool:
        """Append a record that does not fit into the segment."""
        if _HEADER_SIZE + len(data) > SEGMENT:
            # A record is in one segment; only the first half of a request is a REQUEST.
            half, rest = len(data) // 2, Kind.SENT if kind == Kind.REQUEST else kind
            return self.append(connection, kind, data[:half]) and self.append(connection, rest, data[half:])
        if self._begin_segment():
            return self.append(connection, kind, data)
        return self._drop(connection, kind)

    def _begin_segment(self) -> bool:
        """Begin a free segment; False without one."""
        if self._sealed:
            return False
        self.publish()
        if self._free:
            self._write_from(self._free.pop())
            return True
        self._end = self._next  # a smaller record must not overtake one that was dropped
        return False

    def _drop(self, connection: int, kind: Kind) -> bool:
        if not self._sealed and kind != Kind.OPENED:
            self._dropped.append((connection, Kind.CLOSED if kind == Kind.CLOSED else Kind.LOST))
        return False

    def _write_from(self, segment: int) -> None:
        """Write from the beginning of a segment, dropped records first."""
        self._segment = segment
        self._start = self._next = segment * SEGMENT
        self._end = self._next + SEGMENT
        dropped, self._dropped = self._dropped, []
        for connection, kind in dropped:
            self.append(connection, kind)

    def publish(self) -> None:
        """Publish the records so far as a batch."""
        if self._next > self._start:
            self.batches.append(Batch(self._start, self._next, self._position, self._requests))
            self._pins[self._segment] += 1
            self._position += self._next - self._start
            self._start, self._requests = self._next, 0

    def release(self) -> Batch:
        """Release the oldest batch, because it was read, or will not be."""
        batch = self.batches.popleft()
        self.unpin(batch.start // SEGMENT)
        return batch

    def pin(self) -> int:
        """Keep the memory of the last buffer until `unpin`, because it is still to be sent."""
        # Bytes to be sent may be in the scratch, so it gets new memory.
        self.scratch = memoryview(bytearray(len(self.scratch)))
        self._pins[self._segment] += 1
        return self._segment

    def unpin(self, segment: int) -> None:
        self._pins[segment] -= 1
        if not self._pins[segment]:
            if segment != self._segment:
                self._free.append(segment)
            elif self._next == self._start and not self._sealed:
                # Everything in the current segment was read, so its memory is still in the cache.
                self._write_from(segment)

    def seal(self) -> None:
        """Drop all further records."""
        self.publish()
        self._sealed, self._end = True, self._next

    def close(self) -> None:
        """Close the file; the memory is freed once the judge's process ends, too."""
        os.close(self.fd)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tokenwire-watch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SpoolReader:
    """The reader of the spool, in the judge's process."""

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
