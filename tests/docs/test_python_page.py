"""The page on Python shows what runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tokenwire import api
from tokenwire.demo_server import demo_server

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text("utf-8")


def test_the_snippet_runs(tmp_path: Path) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    with demo_server(["prompt-tokens-grow"]) as url:
        code = code.replace("http://127.0.0.1:30000", url)
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("FAIL  prompt-tokens-constant  in request-id")
    assert "'prompt-tokens-constant'" in ran.stdout.splitlines()[-1]


def test_the_page_names_every_function() -> None:
    named = re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)
    assert sorted([*named, "NotReachedError"]) == sorted(api.__all__)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(api.NotReachedError, match="Nothing answers at"):
        api.check("http://127.0.0.1:1", timeout=5.0)
    with pytest.raises(ValueError, match="'budgets' is not an option"):
        api.check("http://127.0.0.1:1", budgets="quick")
