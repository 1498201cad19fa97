"""A run that is stopped by a signal leaves its reports, on what was asked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tokenwire.demo_server import FAULTS, demo_server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_asked_until_a_signal_is_judged_and_reported(number: signal.Signals, tmp_path: Path) -> None:
    """A workflow's time limit ended `check` with 143 and no word."""
    with demo_server([*FAULTS]) as url:
        words = ("check", "--target", url, "--rate", "20", "-v", "--json", "report.json")
        process = subprocess.Popen(
            [sys.executable, "-m", "tokenwire", *words],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if "greedy-stream" in line:
                break
        process.send_signal(number)
        process.communicate(timeout=60)
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert process.returncode == report["exit_status"] in (1, 4)
    assert report["target"]["broken_off"] == f"{number.name} ended the run before this was asked"
    assert any(row["verdict"] in ("PASS", "FAIL") for row in report["verdicts"])
