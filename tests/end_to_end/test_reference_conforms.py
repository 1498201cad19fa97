"""The suite against the reference engine, as a user runs them: both delivery modes, and the same again from
disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODES = {
    "cumulative": (),
    "incremental": ("--incremental-streaming-output",),
    "incremental, every fourth": ("--incremental-streaming-output", "--stream-interval", "4"),
}


def tokenwire(folder: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tokenwire", *words, "--json", str(folder / "report.json")]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text("utf-8"))
    return report


def by_requirement(report: dict[str, Any]) -> dict[str, set[str]]:
    verdicts: dict[str, set[str]] = {}
    for row in report["verdicts"]:
        verdicts.setdefault(row["requirement"], set()).add(row["verdict"])
    return verdicts


@pytest.mark.parametrize("mode", MODES)
def test_the_reference_conforms_and_its_recording_says_the_same(
    start_reference: Callable[..., str], tmp_path: Path, mode: str
) -> None:
    url = start_reference("--sampling-backend", "mirror", *MODES[mode])
    live = tokenwire(tmp_path, "check", "--target", url, "--record", str(tmp_path / "recorded"))
    assert live["target"]["dialects"] == ["sglang-chat", "sglang-generate"]
    verdicts = by_requirement(live)

    other = "cumulative" if mode.startswith("incremental") else "incremental"
    absent = {name for name, seen in verdicts.items() if seen != {"PASS"}}
    assert absent == {name for name in verdicts if name.split("-")[0] == other or name.endswith(f"-{other}")}
    assert all(verdicts[name] == {"UNSUPPORTED"} for name in absent)

    joined = [row for row in live["verdicts"] if row["requirement"] == "coalescing-keeps-all"]
    assert "slow-reader" in {row["scenario"] for row in joined}

    again = tokenwire(tmp_path, "replay", str(tmp_path / "recorded"))
    assert by_requirement(again) == verdicts
