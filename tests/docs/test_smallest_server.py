"""The smallest conforming server of `examples/` conforms, and its guide shows it as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "examples" / "smallest_server.py"


@contextmanager
def serving(server: Path) -> Iterator[str]:
    command = [sys.executable, str(server), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            yield next(found[0] for line in lines if (found := re.search(r"http://127.0.0.1:\d+", line)))
        finally:
            process.terminate()


def checked(server: Path, tmp_path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of a check of a server, and the verdicts."""
    report = tmp_path / "report.json"
    with serving(server) as url:
        check = [sys.executable, "-m", "tokenwire", "check", "--target", url, *options]  # as the guide does
        ran = subprocess.run([*check, "--json", str(report)], capture_output=True, text=True, check=False)
    return ran.returncode, json.loads(report.read_text("utf-8"))["verdicts"]


def test_the_smallest_server_conforms(tmp_path: Path) -> None:
    status, verdicts = checked(SERVER, tmp_path)
    assert status == 0, verdicts
    assert {verdict["requirement"] for verdict in verdicts if verdict["verdict"] in {"FAIL", "WARN"}} == set()
    held = {verdict["requirement"] for verdict in verdicts if verdict["verdict"] == "PASS"}
    assert {
        "ids-are-counted",
        "cumulative-text-extends",
        "stream-text-equals-whole",
        "refusal-is-json",
    } <= held


@pytest.mark.parametrize("budget", ["quick", "standard"])
def test_the_smallest_server_that_shows_the_beginning_of_a_stop_string_does_not(
    budget: str, tmp_path: Path
) -> None:
    code, server = SERVER.read_text("utf-8"), tmp_path / "server.py"
    held = "held = max((len(stop) - 1 for stop in wanted.stops), default=0)"
    assert held in code
    server.write_text(code.replace(held, "held = 0"), "utf-8")
    status, verdicts = checked(server, tmp_path, "--budget", budget)
    failed = {verdict["requirement"] for verdict in verdicts if verdict["verdict"] == "FAIL"}
    assert (status, "stop-prefix-held-back" in failed) == (1, True), failed
