"""A directory of pages: one file for each cached prefix, checked when it is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

logger = logging.getLogger(__name__)
CHECKSUM_BYTES = 32


class PageFiles:
    """Pages of one model, under `directory/fingerprint`: another model never sees them.

    Files are written whole or not at all, so that servers may share a directory.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self._directory = directory / fingerprint
        self._directory.mkdir(parents=True, exist_ok=True)

    def write(self, digest: bytes, payload: Sequence[Tensor]) -> None:
        path = self._path(digest)
        if not path.exists():
            data = save({f"{index:04}": tensor for index, tensor in enumerate(payload)})
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(_checksum(data) + data)
            draft.replace(path)

    def read(self, digest: bytes) -> list[Tensor] | None:
        """The page, or None where there is none. A damaged file is removed: it is only a cache."""
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        data = content[CHECKSUM_BYTES:]
        if content[:CHECKSUM_BYTES] != _checksum(data):
            logger.warning("%s is damaged and was removed; its prefix is computed anew", path)
            path.unlink(missing_ok=True)
            return None
        return [tensor for _, tensor in sorted(load(data).items())]

    def _path(self, digest: bytes) -> Path:
        return self._directory / f"{digest.hex()}.page"


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=CHECKSUM_BYTES).digest()
