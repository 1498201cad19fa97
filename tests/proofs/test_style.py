"""Docstrings, comments, messages and pages are plain English, up to an allow-list that can only shrink."""

from __future__ import annotations

import re

import pytest
import yaml
from proofs import style

UPDATE = "run `python -m proofs.style --update`, and commit proofs/style.yaml"


def rules(name: str, text: str) -> list[tuple[int, str, str]]:
    return list(style.findings(name, text))


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", 'def f():\n    """What a piece is."""\n', [(2, "opening", "What")]),
        ("a.py", 'def f():\n    """Return the piece."""\n', []),
        ("a.py", 'x = 1\n"""Of a piece."""\n', [(2, "opening", "Of")]),
        ("a.py", "x = 1  # it stands here\n", [(1, "word", "stands")]),
        ("a.py", "x = f'{x} is no JSON'\n", [(1, "word", "is no JSON")]),
        ("a.py", "said = {'told': 1}\n", []),
        (
            "a.md",
            "One.\n\nIt is no longer `told`.\n```\nsaid\n```\nThere is no id.\nIt is no id.\n",
            [(8, "word", "is no id")],
        ),
        ("a.yaml", "a: it errs\n", [(1, "word", "errs")]),
    ],
)
def test_what_is_found(name, text, found):
    assert rules(name, text) == found


def test_no_file_has_more_than_is_allowed_and_what_is_mended_is_no_longer_allowed():
    """A file that is not listed may not have any finding."""
    allowed, found = style.allowed(), style.counts()
    more = {
        name: f"{pair}, allowed {allowed.get(name, [0, 0])}; see `python -m proofs.style {name}`"
        for name, pair in found.items()
        if any(now > most for now, most in zip(pair, allowed.get(name, (0, 0)), strict=True))
    }
    assert more == {}
    fewer = {name: pair for name, pair in allowed.items() if found.get(name, [0, 0]) != pair}
    assert fewer == {}, UPDATE


def test_a_commit_with_a_long_subject_is_refused_before_it_is_made():
    config = yaml.safe_load((style.ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    [hook] = [hook for hook in config["repos"][0]["hooks"] if hook.get("stages") == ["commit-msg"]]
    assert "commit-msg" in config["default_install_hook_types"]
    refused = re.compile(hook["entry"], re.MULTILINE).search
    assert refused("a" * 73 + "\n\nWhy.\n")
    assert not refused("a" * 72 + "\n\n" + "b" * 90 + "\n")
