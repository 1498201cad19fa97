"""A profile answers no to a server that breaks any of its promises."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest
from proofs.killing.asking import scenarios_for, settings_for
from proofs.killing.serving import serve, servers_for

from tokenwire.asking.run import Plan, Progress, Unreached, interrogate
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import SEVERITY, Verdict
from tokenwire.levels import levels
from tokenwire.profile import known_profiles, selected, standing
from tokenwire.report.overview import profile_in_words
from tokenwire.requirement import load_requirements
from tokenwire_faults.catalogue import load_faults
from tokenwire_reference.doors.fault_package import HEADER

_TIMEOUT_S = 60
PROMISED = sorted({name for level in levels().values() for name in level.promised})


def _trial(requirement: str) -> tuple[str, str]:
    """The server and the fault that violate a requirement."""
    faults = load_faults()
    fault = next(
        faults[name] for name in load_requirements()[requirement].kills if not faults[name].ends_the_server
    )
    return servers_for(fault)[0], fault.name


def _trials() -> Mapping[str, Mapping[str, list[str]]]:
    """By server and fault the promised requirements that the fault violates."""
    trials: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for requirement in PROMISED:
        server, fault = _trial(requirement)
        trials[server][fault].append(requirement)
    return trials


TRIALS = _trials()


def _answers(url: str, fault: str, profiles: list[str]) -> dict[str, str]:
    """Ask a server with a fault, and return what each profile answers."""
    plan = Plan(settings_for(url, scenarios_for(fault), _TIMEOUT_S), headers=((HEADER, fault),))
    subject = asyncio.run(interrogate(plan, Progress()))
    assert not isinstance(subject, Unreached), subject.diagnosis
    worst: dict[str, Verdict] = {}
    for judgement in judge(subject.runs, selected(profiles)):
        name = judgement.requirement.id
        worst[name] = max(
            (judgement.verdict, worst.get(name, judgement.verdict)), key=lambda verdict: SEVERITY[verdict]
        )
    return {
        profile: profile_in_words(standing(profile, worst, subject.families).as_json())
        for profile in profiles
    }


def _yeses(url: str, fault: str, requirements: list[str]) -> Iterator[str]:
    """The profiles that do not answer no, or do not name the promised sentence that is violated."""
    promising = {
        profile: level.promised & set(requirements)
        for profile, level in levels().items()
        if level.promised & set(requirements)
    }
    for profile, words in _answers(url, fault, list(promising)).items():
        for requirement in promising[profile]:
            if "no, " not in words or requirement not in words:
                yield f"{fault}, which violates {requirement}: {words}"


@pytest.mark.parametrize("server", TRIALS)
def test_no_profile_says_yes_to_a_server_that_breaks_a_promise_of_it(server):
    with serve([server]) as urls:
        wrong = [
            words
            for fault, requirements in TRIALS[server].items()
            for words in _yeses(urls[server], fault, requirements)
        ]
    assert wrong == []


def test_a_trainer_is_warned_of_a_server_that_loses_an_id_of_each_stream():
    """`rl@1` says yes: none of its sentences notices."""
    server, fault = _trial("incremental-ids-are-new")
    with serve([server]) as urls:
        first, second = _answers(urls[server], fault, ["rl@1", "rl"]).values()
    assert "incremental-ids-are-new" in second
    assert ": no, " in second
    assert "incremental-ids-are-new" not in first
    assert "incremental-ids-are-new" not in known_profiles()["rl@1"]
