"""The folder of violations: a capture for each violating exchange, in a folder for the requirement.

`tokenwire replay` can judge the folder. If the folder exceeds its limit, the oldest captures of the
requirement that uses most space are deleted. So a frequent violation does not displace a rare one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path

from tokenwire.wire.capture import CaptureWriter
from tokenwire.wire.exchange import Exchange


class ViolationFolder:
    """Writes captures of violating exchanges.

    cap: the maximum number of bytes of all captures together. Raises OSError if the folder cannot be created.
    """

    def __init__(self, folder: Path, cap: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._cap = cap
        self._writer = CaptureWriter(folder, compress=True)
        self._kept: dict[str, deque[tuple[Path, int]]] = defaultdict(deque)
        """The captures of each requirement with their sizes, the oldest first."""
        # Captures of earlier runs count towards the limit.
        for path in sorted(folder.glob("*/*.jsonl.gz")):
            self._kept[path.parent.name].append((path, path.stat().st_size))

    def keep(self, requirement: str, exchange: Exchange) -> str:
        """Write a violating exchange, delete old captures if necessary, and return the path of the new
        capture.

        Return an empty path if the capture alone exceeds the limit. Raises OSError.
        """
        stamp = exchange.started.replace(":", "").replace("+0000", "Z")
        name = f"{requirement}/{stamp}-{exchange.label}"
        path = self._folder / f"{name}.jsonl.gz"
        try:
            with self._writer.open(name) as file:
                file.exchange(exchange)
        except OSError:
            path.unlink(missing_ok=True)  # an incomplete capture is useless
            raise
        size = path.stat().st_size
        self._kept[requirement].append((path, size))
        self._make_room()
        return str(path) if path.exists() else ""

    def _make_room(self) -> None:
        sizes = {name: sum(size for _, size in captures) for name, captures in self._kept.items()}
        while sum(sizes.values()) > self._cap:
            largest = max(sizes, key=sizes.__getitem__)
            path, size = self._kept[largest].popleft()
            path.unlink(missing_ok=True)
            sizes[largest] -= size
