"""A directory of pages: one file for each cached prefix, checked when it is read.

Servers may share a directory, and any of them may die at any moment. So a file appears whole or not at all,
nothing but the directory itself knows what is in it, and every server copes with files that others remove.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from tokenwire_reference.cache.prefix_tiers import TierError

logger = logging.getLogger(__name__)
CHECKSUM_BYTES = 32
MARGIN = 0.1
"""Share of the limit that is freed beyond need, so that the directory is not listed at every write."""


@dataclass(frozen=True, order=True)
class _File:
    last_used: int
    path: Path
    size: int


class PageFiles:
    """Pages of one model, under `directory/fingerprint`: another model never sees them.

    `max_bytes` bounds what all models have in `directory`; the least recently used files go first. A file's
    modification time says when it was last used, to every server and beyond its end. Several servers at once
    may each exceed the bound by `MARGIN`.
    """

    def __init__(self, directory: Path, fingerprint: str, *, max_bytes: int | None = None) -> None:
        self._directory = directory
        self._pages = directory / fingerprint
        self._pages.mkdir(parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._used = 0
        self._make_room(0)

    def expect(self, payload: Sequence[Tensor]) -> None:
        """Raise ValueError where not one page like this fits."""
        size = len(_content(payload))
        if self._max_bytes is not None and size > self._max_bytes:
            raise ValueError(
                f"{self._directory} may hold {self._max_bytes} bytes and a page takes {size}; "
                "raise --hicache-storage-max-bytes"
            )

    def write(self, digest: bytes, payload: Sequence[Tensor]) -> None:
        path = self._path(digest)
        if path.exists():
            return
        content = _content(payload)
        self._make_room(len(content))
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(content)
        _touch(draft)
        draft.replace(path)
        self._used += len(content)

    def read(self, digest: bytes) -> list[Tensor] | None:
        """The page, or None where there is none. A damaged file is removed: it is only a cache."""
        path = self._path(digest)
        try:
            content = path.read_bytes()
            _touch(path)
        except FileNotFoundError:
            return None
        data = content[CHECKSUM_BYTES:]
        if content[:CHECKSUM_BYTES] != _checksum(data):
            logger.warning("%s is damaged and was removed; its prefix is computed anew", path)
            path.unlink(missing_ok=True)
            return None
        return [tensor for _, tensor in sorted(load(data).items())]

    def check_integrity(self) -> None:
        """Raise TierError where all files together take more than they may, or one of ours is no page."""
        used = sum(file.size for file in self._files())
        if self._max_bytes is not None and used > self._max_bytes:
            raise TierError(f"{self._directory} holds {used} bytes, and may hold {self._max_bytes}")
        drafts = sorted(self._pages.glob(f"*.{os.getpid()}"))
        if drafts:
            raise TierError(f"{drafts[0]} was not finished")

    def _make_room(self, size: int) -> None:
        """Remove files until `size` more bytes fit; what a server left when it died is a file like any."""
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
            except FileNotFoundError:  # another server made room
                continue
            files.append(_File(stat.st_mtime_ns, path, stat.st_size))
        return files

    def _path(self, digest: bytes) -> Path:
        return self._pages / f"{digest.hex()}.page"


def _content(payload: Sequence[Tensor]) -> bytes:
    data = save({f"{index:04}": tensor for index, tensor in enumerate(payload)})
    return _checksum(data) + data


def _touch(path: Path) -> None:
    """Note that a file is used now. The file system's own clock may be too coarse to tell two uses apart."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=CHECKSUM_BYTES).digest()
