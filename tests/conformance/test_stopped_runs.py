"""A run that is stopped by a signal leaves its reports, on what was asked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_run import served

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


def _blamed(report: Any) -> list[tuple[str, str]]:
    return [
        (row["evidence"][0]["exchange"], row["message"])
        for row in report["verdicts"]
        if row["requirement"] == "requests-do-not-break-the-server" and row["verdict"] == "FAIL"
    ]


def test_what_waits_for_a_server_when_the_run_is_stopped_is_judged_as_by_a_replay(tmp_path: Path) -> None:
    """The request that the server died of waited for its restart: a probe of the suite was named instead."""
    with served(lambda n: n < 4) as url:
        words = ("check", "--target", url, "--wait", "600", "--scenario", "greedy-stream")
        process = subprocess.Popen(
            [sys.executable, "-m", "tokenwire", *words, "-v", "--record", "rec", "--json", "live.json"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if "vitals/3" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    again = [sys.executable, "-m", "tokenwire", "replay", "rec", "--json", "replay.json"]
    subprocess.run(again, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    live, replayed = (
        json.loads((tmp_path / name).read_text("utf-8")) for name in ("live.json", "replay.json")
    )
    assert len(_blamed(live)) == 1
    assert "/vitals/" not in _blamed(live)[0][0]
    assert _blamed(live) == _blamed(replayed)
    assert "SIGTERM" in live["target"]["broken_off"]
