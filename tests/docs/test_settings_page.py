"""What the site says of `tokenwire.toml`."""

from __future__ import annotations

import re
from pathlib import Path

from docs_build import command_pages

from tokenwire.config import KEYS, TABLES, read_config

DOCS = Path(__file__).parents[2] / "docs"


def taken() -> dict[str, list[str]]:
    """The commands that take each key, as the page tells them."""
    _, _, section = command_pages.page().content.partition("## tokenwire.toml\n")
    rows = re.findall(r"^\| `([\w.-]+)` \|.*\| ([\w, ]+) \|$", section, re.MULTILINE)
    return {name: takers.split(", ") for name, takers in rows}


def test_every_key_is_told_with_who_takes_it() -> None:
    found = taken()
    assert set(found) == set(KEYS) | {f"{table}.{name}" for table, keys in TABLES.items() for name in keys}
    assert found["target"] == ["check", "record", "watch", "inspect"]
    assert found["profiles"] == ["check", "replay", "watch"]
    assert found["headers"] == ["check", "record", "compare", "twin", "inspect"]
    assert found["watch.listen"] == ["watch"]


def test_the_guide_to_watching_says_what_a_file_may_say(tmp_path: Path) -> None:
    guide = (DOCS / "guides" / "watch-traffic.md").read_text("utf-8")
    [text] = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "tokenwire.toml").write_text(text, "utf-8")
    assert read_config(tmp_path / "tokenwire.toml").of_command["watch"]["listen"] == "0.0.0.0:8000"
