"""A directory of pages: one file for each cached prefix, checked when it is read.

Servers may share a directory, and any of them may die at any moment. So a file appears completely or not at
all, there is no separate index, and every server tolerates that other servers remove files. The directory is
only a cache: a full disk, an unreadable file or a page of another model count as a miss. Failures are
counted, the first failure is logged, and the engine continues.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from tokenwire_reference.core.prefix_keys import PageKey
from tokenwire_reference.extras.prefix_tiers import TierError

logger = logging.getLogger(__name__)
CHECKSUM_BYTES = 32
MARGIN = 0.1
"""The additional share of the limit that is freed when the directory is full, so that not every write has to
list the directory.
"""


@dataclass(frozen=True, order=True)
class _File:
    last_used: int
    path: Path
    size: int


class PageFiles:
    """Pages of one model, in the folder `directory/fingerprint`, which only servers of this model use.

    `max_bytes` bounds the files of all models in `directory`. The least recently used files are removed
    first. Every server sets a file's modification time when it uses the file. Several servers at once may
    each exceed the bound by `MARGIN`.
    """

    def __init__(self, directory: Path, fingerprint: str, *, max_bytes: int | None = None) -> None:
        self._directory = directory
        self._pages = directory / fingerprint
        self._pages.mkdir(parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._used = 0
        self._shape: list[_Shape] | None = None
        self.failures = 0
        """The number of pages whose reading or writing has failed."""
        self._make_room(0)

    def expect(self, payload: Sequence[Tensor]) -> None:
        """Set the shape of the pages to read. Raises ValueError if `max_bytes` is less than one page."""
        self._shape = _shape(payload)
        size = CHECKSUM_BYTES + len(_data(payload))
        if self._max_bytes is not None and size > self._max_bytes:
            raise ValueError(
                f"{self._directory} may hold {self._max_bytes} bytes and a page takes {size}; "
                "raise --hicache-storage-max-bytes"
            )

    def write(self, key: PageKey, payload: Sequence[Tensor]) -> None:
        path = self._path(key)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            if path.exists():
                return
            data = _data(payload)
            content = _checksum(key, data) + data
            self._make_room(len(content))
            draft.write_bytes(content)
            _touch(draft)
            draft.replace(path)
            self._used += len(content)
        except OSError as error:
            self._failed(f"{path} was not written: {error}")
            with contextlib.suppress(OSError):  # a file that cannot be removed is ignored
                draft.unlink(missing_ok=True)

    def read(self, key: PageKey) -> list[Tensor] | None:
        """Return the page; None if there is no readable page. A damaged file is removed."""
        path = self._path(key)
        try:
            content = path.read_bytes()
            _touch(path)
            data = content[CHECKSUM_BYTES:]
            if content[:CHECKSUM_BYTES] != _checksum(key, data):
                self._failed(f"{path} is damaged or another page and was removed")
                path.unlink(missing_ok=True)
                return None
        except FileNotFoundError:
            return None
        except OSError as error:
            self._failed(f"{path} was not read: {error}")
            return None
        payload = [tensor for _, tensor in sorted(load(data).items())]
        if self._shape is not None and _shape(payload) != self._shape:
            self._failed(f"{path} holds a page of another shape")
            return None
        return payload

    def _failed(self, what: str) -> None:
        """Count a failure. Only the first is logged, because a full disk fails at every page."""
        self.failures += 1
        if self.failures == 1:
            logger.warning("%s; its prefix is computed anew. Further failures are only counted.", what)

    def check_integrity(self) -> None:
        """Check that all files together respect the limit, and that each file of this model is a complete
        page. Raises TierError.
        """
        used = sum(file.size for file in self._files())
        if self._max_bytes is not None and used > self._max_bytes:
            raise TierError(f"{self._directory} holds {used} bytes, and may hold {self._max_bytes}")
        drafts = sorted(self._pages.glob(f"*.{os.getpid()}"))
        if drafts:
            raise TierError(f"the file {drafts[0]} was not written completely")

    def _make_room(self, size: int) -> None:
        """Remove files until `size` more bytes fit, including files of dead servers."""
        if self._max_bytes is None or (size and self._used + size <= self._max_bytes):
            return
        files = sorted(self._files())
        self._used = sum(file.size for file in files)
        if self._used + size <= self._max_bytes:
            return
        most = max(0, min(int(self._max_bytes * (1 - MARGIN)), self._max_bytes - size))
        for file in files:
            if self._used <= most:
                return
            file.path.unlink(missing_ok=True)
            self._used -= file.size

    def _files(self) -> list[_File]:
        files = []
        for path in self._directory.glob("*/*"):
            try:
                stat = path.stat()
            except FileNotFoundError:  # Another server has removed the file.
                continue
            files.append(_File(stat.st_mtime_ns, path, stat.st_size))
        return files

    def _path(self, key: PageKey) -> Path:
        return self._pages / f"{key.digest.hex()}.page"


_Shape = tuple[torch.Size, torch.dtype]


def _shape(payload: Sequence[Tensor]) -> list[_Shape]:
    return [(tensor.shape, tensor.dtype) for tensor in payload]


def _data(payload: Sequence[Tensor]) -> bytes:
    return save({f"{index:04}": tensor for index, tensor in enumerate(payload)})


def _touch(path: Path) -> None:
    """Record that a file is used now. The file system's own clock may be too coarse to order two uses."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))


def _checksum(key: PageKey, data: bytes) -> bytes:
    """Return a checksum of a page and its key, including the ids.

    So a page under a wrong name counts as damaged.
    """
    return blake2b(key.digest + key.token_ids + data, digest_size=CHECKSUM_BYTES).digest()
