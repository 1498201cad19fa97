"""The folder of violations: a capture for each exchange, in the folder of the violated requirement.

`tokenwire replay` reads the folder. Beyond its cap, the oldest captures of the requirement that uses the most
space are deleted, so that a frequent violation does not push out a rare one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path

from tokenwire.wire.capture import CaptureWriter
from tokenwire.wire.exchange import Exchange


class ViolationFolder:
    """Writes captures. cap: bytes of all captures together. Raises OSError if the folder cannot be
    created.
    """

    def __init__(self, folder: Path, cap: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._cap = cap
        self._writer = CaptureWriter(folder, compress=True)
        self._kept: dict[str, deque[tuple[Path, int]]] = defaultdict(deque)
        """The captures of each requirement, oldest first, with their sizes."""
        # Captures of earlier watchers count towards the cap.
        for path in sorted(folder.glob("*/*.jsonl.gz")):
            self._kept[path.parent.name].append((path, path.stat().st_size))

    def keep(self, requirement: str, exchange: Exchange) -> str:
        """Write an exchange that violates a requirement, make space, and return the path of its capture.

        The path is empty if the capture alone exceeds the cap. Raises OSError.
        """
        stamp = exchange.started.replace(":", "").replace("+0000", "Z")
        name = f"{requirement}/{stamp}-{exchange.label}"
        path = self._folder / f"{name}.jsonl.gz"
        try:
            with self._writer.open(name) as file:
                file.exchange(exchange)
        except OSError:
            path.unlink(missing_ok=True)  # half a capture is useless
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
