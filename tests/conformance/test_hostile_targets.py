"""A target that breaks every promise earns no PASS and costs little time and memory; a sentence says why."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile_trial
import pytest
from hostile_targets import HOSTILE, HostileServer

from tokenwire.judging.verdict import ExitStatus

TIMEOUT_S = 2
MOST_SECONDS = TIMEOUT_S + 5
SLOW_MACHINE = 4
MOST_MEMORY = 300_000_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the most memory is read from /proc")


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command line made of each target, one after the other in one process."""
    folder = tmp_path_factory.mktemp("trials")
    with contextlib.ExitStack() as servers:
        urls = {name: servers.enter_context(HostileServer(one)).url for name, one in HOSTILE.items()}
        ran = subprocess.run(
            [sys.executable, str(Path(hostile_trial.__file__)), str(TIMEOUT_S), str(folder)],
            input=json.dumps(urls),
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            cwd=folder,
        )
    assert ran.returncode == 0, ran.stderr
    results: dict[str, Any] = json.loads(ran.stdout)
    return results


@pytest.mark.parametrize("name", HOSTILE)
def test_no_pass_and_a_clear_sentence(name: str, trials: dict[str, Any]) -> None:
    trial = trials[name]
    assert not trial["crash"]
    assert trial["report"]["summary"]["PASS"] == 0
    assert trial["report"]["summary"]["HARNESS_ERROR"] == 0
    assert trial["exit"] == ExitStatus.NOTHING_EVALUATED, trial["said"]
    for word in HOSTILE[name].words:
        assert word in trial["said"]


@pytest.mark.parametrize("name", HOSTILE)
def test_bounded_time(name: str, trials: dict[str, Any]) -> None:
    assert trials[name]["seconds"] < SLOW_MACHINE * MOST_SECONDS


def test_bounded_memory(trials: dict[str, Any]) -> None:
    """All targets in one process: what one leaves behind counts for the next."""
    assert {
        name: one["most_memory"] for name, one in trials.items() if one["most_memory"] > MOST_MEMORY
    } == {}
