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
from proofs.hostile_servers import HOSTILE, Hostile, HostileServer

from tokenwire.judging.verdict import ExitStatus

SHORT_S = 0.5
"""For targets of which every answer is waited for in vain."""
LONG_S = 10
"""For one that answers its first requests in time, and then no more."""
AMPLE_S = 300
"""For all others, however slow the machine is."""
MOST_WORK_S = 5
MOST_WAITS = 27
"""Requests that are sent at once: to every information endpoint, dialect and form of a prompt, and to other
protocols."""
MOST_MEMORY = 300_000_000
"""90 MB of the suite, 134 MB of 16 answers as long as they may become, and the holes between their pieces."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the most memory is read from /proc")


def time_limit(target: Hostile) -> float:
    """For one exchange: short only where the test waits for its end."""
    if not target.hangs:
        return AMPLE_S
    return LONG_S if target.polite_at_first else SHORT_S


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command line made of each target, one after the other in one process."""
    folder = tmp_path_factory.mktemp("trials")
    with contextlib.ExitStack() as servers:
        asked = {
            name: (servers.enter_context(HostileServer(item)).url, time_limit(item))
            for name, item in HOSTILE.items()
        }
        ran = subprocess.run(
            [sys.executable, str(Path(hostile_trial.__file__)), str(folder)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
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
    assert trials[name]["worked_s"] < MOST_WORK_S
    assert trials[name]["waits"] <= (MOST_WAITS if HOSTILE[name].hangs else 0)


def test_bounded_memory(trials: dict[str, Any]) -> None:
    """All targets in one process: what one leaves behind counts for the next."""
    assert {
        name: trial["most_memory"] for name, trial in trials.items() if trial["most_memory"] > MOST_MEMORY
    } == {}
