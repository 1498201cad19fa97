"""The guide for a new requirement, followed in a copy of the repository: it ends in green tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "add-a-requirement.md").read_text("utf-8")
OLD, NEW = "counter-follows-ids", "counter-keeps-up"
SENTENCE = (
    "In every emission that carries output ids, completion_tokens MUST keep up with the ids of the choice."
)
IMPORTS = """
from collections.abc import Iterator
from typing import Any

from tokenwire.checks.about import STREAMED
from tokenwire.checks.check import check_equal
from tokenwire.checks.reading.fields import counters
from tokenwire.record import Choice, Emission


"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for folder in ("conformance", "spec", "tests/spec", "tests/conformance"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (ROOT / "tests").glob("*.py"):
        shutil.copy(file, tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text, f"{file}: {old}"
    file.write_text(text.replace(old, new, 1), "utf-8")


def follow(clone: Path) -> None:
    """The sentence, the row, the check and the pair; the fault is one that is there."""
    every = re.findall(r"^   ```python\n(.*?)^   ```", GUIDE, re.MULTILINE | re.DOTALL)
    [code] = [code for code in every if OLD in code]
    code = re.sub(r"^   ", "", code, flags=re.MULTILINE).replace(OLD, NEW)
    (clone / "conformance" / "tokenwire" / "checks" / "keeping_up.py").write_text(IMPORTS + code, "utf-8")
    with (clone / "spec" / "record.md").open("a", encoding="utf-8") as chapter:
        chapter.write(f"\n> **{NEW}** (MUST) {SENTENCE}\n")
    rows = clone / "spec" / "requirements" / "record.yaml"
    row = re.search(rf"^  - id: {OLD}\n.*?(?=^  - id: )", rows.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert row is not None
    new = re.sub(r"sentence: .*", f"sentence: {SENTENCE}", row[0].replace(OLD, NEW))
    rows.write_text(rows.read_text("utf-8").rstrip() + "\n" + new, "utf-8")
    pairs = clone / "tests" / "conformance" / "test_checks_pairs.py"
    pair = re.search(
        rf'^    Pair\(\s*"{OLD}".*?^    ?(?=Pair\()', pairs.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert pair is not None
    edit(pairs, pair[0], pair[0] + pair[0].replace(OLD, NEW).strip() + "\n    ")


def test_a_new_requirement_ends_in_green_tests(clone: Path) -> None:
    """A published version of the profiles broke its own test with the first row that was new."""
    follow(clone)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(clone / "conformance"), *sys.path])}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(
            command, cwd=clone, env=environment, capture_output=True, text=True, check=False
        )

    tests = (
        "tests/spec/test_profiles.py",
        "tests/spec/test_requirement_rows.py",
        "tests/spec/test_chapters.py",
    )
    pytest_words = ("-m", "pytest", "-p", "no:cacheprovider", "-q", *tests)
    before = run(*pytest_words)
    assert before.returncode == 1
    assert f"new or changed: ['{NEW}']; python tests/spec/sealed_profiles.py" in before.stdout
    written = run("tests/spec/sealed_profiles.py")
    assert written.returncode == 0, written.stderr
    after = run(*pytest_words)
    assert after.returncode == 0, after.stdout
    paired = run(
        "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/conformance/test_checks_pairs.py", "-k", NEW
    )
    assert paired.returncode == 0, paired.stdout
