"""README fits on a screen, and ARCHITECTURE.md names every room and only modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "The suite": ROOT / "conformance" / "tokenwire",
    "The tools": ROOT / "conformance",
    "The reference engine": ROOT / "reference" / "tokenwire_reference",
}
_TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def section(title: str) -> str:
    return re.split(r"^## ", _TEXT.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def named(title: str) -> list[str]:
    """Return what the first column of a section's tables names: `room/`, `room/module` or `module`."""
    rows = re.findall(r"^\| ((?:`[\w/]+`(?:, )?)+) \|", section(title), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w/]+)`", row)]


@pytest.mark.parametrize(("page", "most"), [("README.md", 900), ("ARCHITECTURE.md", 2500)])
def test_an_overview_is_short(page, most):
    assert len((ROOT / page).read_text("utf-8").split()) <= most


@pytest.mark.parametrize("title", PACKAGES)
def test_each_module_that_is_named_exists_and_each_room_is_named(title):
    package, names = PACKAGES[title], named(title)
    missing = [n for n in names if not (package / n).is_dir() and not (package / f"{n}.py").is_file()]
    assert missing == []
    rooms = {folder.parent.name for folder in package.glob("*/__init__.py")}
    elsewhere = {"tokenwire"} if title == "The tools" else set()
    assert rooms - {name.split("/")[0] for name in names} == elsewhere
