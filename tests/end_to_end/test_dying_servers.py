"""The whole way with a server that dies: one FAIL that names the request, and every other verdict as ever."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from tokenwire.asking.run import Plan, Progress, interrogate
from tokenwire.asking.vital_signs import Revival
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.report.subject import Subject
from tokenwire.settings import Settings

BROKEN = "requests-do-not-break-the-server"
ASKED_BY_PERILOUS_REQUESTS = (
    "unknown-prompt-ids-refused",
    "unknown-chosen-ids-refused",
    "chosen-logprobs-are-the-asked-ids",
    "chosen-ids-replace-the-likeliest",
    "script-chosen-logprobs-are-right",
)
SCENARIOS = ("greedy-stream", "chat-messages", "wrong-in-streams", "unknown-ids", "negative-ids")
FLAGS = ("--model", "builtin:tiny", "--enable-faults", "--sampling-backend", "mirror")


def judged(plan: Plan) -> tuple[Subject, list[Judgement]]:
    subject = asyncio.run(interrogate(plan, Progress()))
    assert isinstance(subject, Subject), subject
    return subject, judge(subject.runs)


def verdicts(judgements: list[Judgement]) -> dict[str, Verdict]:
    """By requirement; without those whose condition depends on timing, as coalescing does."""
    every: dict[str, set[Verdict]] = {}
    for judgement in judgements:
        if not judgement.requirement.condition:
            every.setdefault(judgement.requirement.id, set()).add(judgement.verdict)
    return {name: overall(seen) for name, seen in every.items()}


def killers(judgements: list[Judgement]) -> list[str]:
    """The exchanges that a server died of, by what the report shows."""
    broken = [judgement for judgement in judgements if judgement.requirement.id == BROKEN]
    return sorted(violation.place.exchange for judgement in broken for violation in judgement.violations)


def asking(fault: str) -> tuple[tuple[str, str], ...]:
    return (("x-tokenwire-fault", fault),)


@pytest.fixture(scope="module")
def healthy(start_reference: Callable[..., str]) -> dict[str, Verdict]:
    """What the same questions give without a fault."""
    subject, judgements = judged(Plan(Settings(target=start_reference(*FLAGS), scenario=SCENARIOS)))
    assert subject.broken_off == ""
    return verdicts(judgements)


@pytest.mark.parametrize(
    ("fault", "killer", "timeout_s"),
    [
        ("dies-of-a-negative-id", "sglang-chat/negative-ids/whole", 60.0),
        ("hangs-of-a-negative-id", "sglang-chat/negative-ids/whole", 20.0),
        ("dies-of-an-unknown-id", "sglang-chat/unknown-ids/prompt-two-to-31", 60.0),
    ],
)
def test_a_death_is_one_failure_and_changes_no_other_verdict(
    fault: str,
    killer: str,
    timeout_s: float,
    healthy: dict[str, Verdict],
    serve_reference: Callable[[tuple[str, ...]], AbstractContextManager[str]],
) -> None:
    with serve_reference(FLAGS) as url:
        plan = Plan(Settings(target=url, timeout=timeout_s, scenario=SCENARIOS), headers=asking(fault))
        subject, judgements = judged(plan)
    assert subject.broken_off.startswith(f"the server died of {killer}; ")
    assert killers(judgements) == [killer]
    verdicts_ = verdicts(judgements)
    expected = healthy | {BROKEN: Verdict.FAIL}
    if fault == "dies-of-an-unknown-id":
        # Only the most perilous requests ask these rows, and they were not sent after the death.
        expected |= dict.fromkeys(ASKED_BY_PERILOUS_REQUESTS, Verdict.INCONCLUSIVE)
        (unasked,) = [
            judgement for judgement in judgements if judgement.requirement.id == "unknown-prompt-ids-refused"
        ]
        assert f"the server died of {killer} before this was asked" in unasked.message
    assert {
        name: (verdicts_[name], expected[name]) for name in verdicts_ if verdicts_[name] is not expected[name]
    } == {}


class OwnServer:
    """The reference in a process that a command line starts, and starts again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._pid = folder / "pid"
        self._log = folder / "log"
        self._output = folder / "said"
        self.url = ""

    def command(self, port: int) -> str:
        words = [sys.executable, "-m", "tokenwire_reference", "serve", "--port", str(port), *FLAGS]
        pid = shlex.quote(str(self._pid))
        kill = f"[ -f {pid} ] && kill -9 $(cat {pid}) 2>/dev/null"
        serve = (
            f"exec {shlex.join(words)} >>{shlex.quote(str(self._output))} 2>>{shlex.quote(str(self._log))}"
        )
        return f"{kill}; echo $$ >{pid}; {serve}"

    def start(self) -> None:
        self._output.touch()
        self._first = subprocess.Popen(["/bin/sh", "-c", self.command(0)], start_new_session=True)
        with closing(self._output.open()) as output:
            while not self.url:
                assert self._first.poll() is None, self._log.read_text()
                self.url = next(iter(output.readline().split()[-1:]), "")

    def restart_command(self) -> str:
        return self.command(int(self.url.rpartition(":")[2]))

    def stop(self) -> None:
        os.kill(int(self._pid.read_text()), signal.SIGKILL)
        self._first.wait()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[OwnServer]:
    server = OwnServer(tmp_path)
    server.start()
    yield server
    server.stop()


def test_a_server_that_is_started_again_is_asked_to_the_end_and_each_killer_is_named(
    own_server: OwnServer,
) -> None:
    plan = Plan(Settings(target=own_server.url, dialect=("sglang-generate",), scenario=SCENARIOS))
    healthy, revival = judged(plan)[1], Revival(own_server.restart_command())
    subject, judgements = judged(replace(plan, headers=asking("dies-of-a-negative-id"), revival=revival))
    assert subject.broken_off == ""
    assert set(killers(judgements)) == {
        f"sglang-generate/negative-ids/{form}" for form in ("whole", "stream")
    }
    assert verdicts(judgements) == verdicts(healthy) | {BROKEN: Verdict.FAIL}
