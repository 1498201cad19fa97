"""The smallest conforming server of `examples/` conforms, and its guide shows it as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "examples" / "smallest_server.py"


@pytest.fixture
def url() -> Iterator[str]:
    command = [sys.executable, str(SERVER), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            lines = iter(server.stderr.readline, "")
            yield next(found[0] for line in lines if (found := re.search(r"http://127.0.0.1:\d+", line)))
        finally:
            server.terminate()


def test_the_smallest_server_conforms(url: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    check = [sys.executable, "-m", "tokenwire", "check", "--target", url]  # as the guide does
    ran = subprocess.run([*check, "--json", str(report)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    verdicts = json.loads(report.read_text("utf-8"))["verdicts"]
    assert {verdict["requirement"] for verdict in verdicts if verdict["verdict"] in {"FAIL", "WARN"}} == set()
    held = {verdict["requirement"] for verdict in verdicts if verdict["verdict"] == "PASS"}
    assert {
        "ids-are-counted",
        "cumulative-text-extends",
        "stream-text-equals-whole",
        "refusal-is-json",
    } <= held
