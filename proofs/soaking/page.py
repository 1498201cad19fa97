"""Write a page of the documentation with two small drawings of a soak's measured values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

Point = tuple[float, float]

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 628, 28, 224
_COLOURS = ("#3f51b5", "#e65100", "#2e7d32")
_POINTS = 160
"""The maximum number of points in a line, so that files are small."""


def picture(title: str, across: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """Draw lines as SVG. Equal numbers give equal bytes."""
    points = [point for line in lines.values() for point in line]
    furthest, highest = max(x for x, _ in points) or 1, max(y for _, y in points) * 1.05

    def place(x: float, y: float) -> tuple[str, str]:
        return (
            f"{_LEFT + (_RIGHT - _LEFT) * x / furthest:.1f}",
            f"{_BOTTOM - (_BOTTOM - _TOP) * y / highest:.1f}",
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="16" font-size="13">{escape(title)}</text>',
    ]
    for step in range(5):
        x, y = furthest * step / 4, highest * step / 4
        left, up = place(x, y)
        parts += [
            f'<path d="M{_LEFT} {up}H{_RIGHT}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{up}" text-anchor="end" dominant-baseline="middle">{y:.0f}</text>',
            f'<text x="{left}" y="{_BOTTOM + 16}" text-anchor="middle">{x:.0f}</text>',
        ]
    for number, (name, line) in enumerate(lines.items()):
        colour, every = _COLOURS[number % len(_COLOURS)], -(-len(line) // _POINTS)
        path = " ".join(",".join(place(*point)) for point in [*line[:-1:every], line[-1]])
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{_LEFT + 10 + 190 * number}" y="{_TOP + 12}" fill="{colour}">{escape(name)}</text>',
        ]
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 5}" text-anchor="middle">{escape(across)}</text></svg>')
    return "\n".join(parts) + "\n"


def write(
    folder: Path,
    *,
    introduction: str,
    measured_by: str,
    rows: Sequence[tuple[str, str, str]],
    memory: Mapping[str, Sequence[Point]],
    latencies: Mapping[str, Sequence[float]],
) -> None:
    """Write `robustness.md` and its drawings.

    rows: the subject, the limit and the measured value of each row.
    memory: lines of pairs (seconds, megabytes).
    latencies: sorted lists, in seconds.
    """
    lines = ["# Robustness", "", introduction, "", f"Measured by {measured_by}:", ""]
    lines += ["| what | demanded | measured |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    if memory:
        drawing = picture("Memory of the server (MB)", "seconds", memory)
        (folder / "robustness-memory.svg").write_text(drawing, "utf-8")
        lines += ["", "![Megabytes of the server over seconds](robustness-memory.svg)"]
    if latencies:
        shares = {
            name: [(100 * rank / len(values), 1e3 * seconds) for rank, seconds in enumerate(values, 1)]
            for name, values in latencies.items()
        }
        drawing = picture("Time of a short request (ms)", "percentile", shares)
        (folder / "robustness-latency.svg").write_text(drawing, "utf-8")
        lines += ["", "![Milliseconds of a short request by percentile](robustness-latency.svg)"]
    (folder / "robustness.md").write_text("\n".join(lines) + "\n", "utf-8")
