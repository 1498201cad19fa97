"""The table of `reference/DIFFERENCES.md`: where the reference answers otherwise than a recorded server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DIFFERENCES = Path(__file__).parents[2] / "reference" / "DIFFERENCES.md"
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Difference:
    """One thing in one exchange that differs."""

    exchange: str
    """Folder, file and name: `sglang/A_base/a_gen_ids`."""
    what: str
    """`status A B`, `lacks PATH TYPE`, `adds PATH TYPE` or `value PATH`."""

    def __str__(self) -> str:
        return f"{self.exchange}: {self.what}"


@dataclass(frozen=True)
class Deliberate:
    """A row of the table. `*` in its patterns stands for anything."""

    title: str
    exchanges: tuple[str, ...]
    differences: tuple[str, ...]

    def explains(self, difference: Difference) -> bool:
        return fits(self.exchanges, difference.exchange) and fits(self.differences, difference.what)


def fits(patterns: Iterable[str], text: str) -> bool:
    """Whether one of the patterns matches all of the text."""
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text) for pattern in patterns)


def read_deliberate_differences() -> list[Deliberate]:
    """The rows: title, theirs, ours, why, exchanges, differences; the last two in code spans."""
    rows = []
    for line in DIFFERENCES.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 6 and "`" in cells[4]:
            rows.append(Deliberate(cells[0], tuple(CODE.findall(cells[4])), tuple(CODE.findall(cells[5]))))
    return rows
