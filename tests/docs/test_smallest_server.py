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


def checked(server: Path, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit status of a check of a server, and the report."""
    report = tmp_path / "report.json"
    with serving(server) as url:
        check = [sys.executable, "-m", "tokenwire", "check", "--target", url, *options]  # as the guide does
        ran = subprocess.run([*check, "--json", str(report)], capture_output=True, text=True, check=False)
    return ran.returncode, json.loads(report.read_text("utf-8"))


def changed(folder: Path, line: str, faulty: str) -> Path:
    """The smallest server with other code in one place."""
    code, server = SERVER.read_text("utf-8"), folder / "server.py"
    assert code.count(line) == 1
    server.write_text(code.replace(line, faulty), "utf-8")
    return server


def test_the_smallest_server_conforms(tmp_path: Path) -> None:
    status, document = checked(SERVER, tmp_path)
    verdicts = document["verdicts"]
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
    held = "held = max((len(stop) - 1 for stop in wanted.stops), default=0)"
    status, report = checked(changed(tmp_path, held, "held = 0"), tmp_path, "--budget", budget)
    failed = {verdict["requirement"] for verdict in report["verdicts"] if verdict["verdict"] == "FAIL"}
    assert (status, "stop-prefix-held-back" in failed) == (1, True), failed


def test_a_stop_that_is_the_end_of_the_budget_is_one_cause(tmp_path: Path) -> None:
    length = '{"type": "length", "length": len(ids)}'
    server = changed(tmp_path, length, '{"type": "stop", "matched": None}')
    _, report = checked(server, tmp_path, "--budget", "quick")
    assert [cause["requirement"] for cause in report["causes"]] == ["stop-has-a-cause"]
    failed = {verdict["requirement"] for verdict in report["verdicts"] if verdict["verdict"] == "FAIL"}
    assert "stop-is-named" not in failed
