"""Send requests to servers with faults: the scenarios that are known to show a fault, and core scenarios.

All requirements are judged on all answers, whether they name the fault or not. The core scenarios show
unexpected kills. A wrong entry in `shown_by.yaml` cannot hide an error: the fault then survives, which is a
complaint.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import tokenwire.checks  # noqa: F401  # all that the processes need is there before they begin
from proofs.killing.learnt import SHOWN_BY, read
from proofs.killing.matrix import Kill, Trial
from tokenwire.asking.run import Plan, Progress, Unreached, interrogate
from tokenwire.asking.scenario import load_scenarios
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.settings import Settings
from tokenwire.target.capability import WAITING_TIMEOUT, WEIGHT_UPDATES, WEIGHT_VERSIONS
from tokenwire_faults.catalogue import KnownFault, load_faults
from tokenwire_reference.doors.fault_package import HEADER

CORE = ("greedy-stream", "batch-of-prompts", "chat-ids", "chat-messages", "logprob-families")
"""Scenarios that are run with every fault."""
DECLARED = {
    "pause-and-continue": "pause",
    "updated-weights": WEIGHT_UPDATES,
    "renamed-weights": WEIGHT_VERSIONS,
    "waiting-timeout": WAITING_TIMEOUT,
}
"""The capability that must be declared for each of these scenarios."""
AT_ONCE = 3
"""The number of processes that send requests. The servers need the computing power of about two
more cores.
"""
_TIMEOUT_S = 300
"""The time limit of an exchange in seconds. It is long, so that a late answer on a busy machine is not a
kill.
"""
_HANGING_S = 15
"""The time limit of an exchange in seconds, if a fault may leave the exchange without an answer."""


def scenarios_for(fault: str) -> tuple[str, ...]:
    """Return the scenarios that are run with a fault."""
    return (*CORE, *read(SHOWN_BY).get(fault, ()))


def wants_quiet(scenarios: Iterable[str]) -> bool:
    """True if a scenario observes the server as a whole, so that no other requests may run at the
    same time.
    """
    known = load_scenarios()
    return any(known[name].alone for name in scenarios)


def settings_for(url: str, scenarios: Sequence[str], timeout: float) -> Settings:
    """Return the settings for scenarios. A scenario for gateways uses the same server, without the fault, as
    the worker.
    """
    known = load_scenarios()
    return Settings(
        target=url,
        timeout=timeout,
        scenario=tuple(scenarios),
        declare=tuple(capability for name, capability in DECLARED.items() if name in scenarios),
        worker=url if any(known[name].worker for name in scenarios) else "",
    )


async def try_fault(fault: str, server: str, url: str, scenarios: Sequence[str]) -> Trial:
    """Send requests to a server with a fault, and judge all requirements."""
    timeout = _HANGING_S if load_faults()[fault].ends_the_server else _TIMEOUT_S
    plan = Plan(settings_for(url, scenarios, timeout), headers=((HEADER, fault),))
    subject = await interrogate(plan, Progress())
    if isinstance(subject, Unreached):
        return Trial(fault, server, failure=subject.diagnosis)
    fatal = load_faults()[fault].ends_the_server
    failures = ["" if fatal else subject.broken_off]
    messages: dict[str, str] = {}
    places: dict[str, set[str]] = defaultdict(set)
    for judgement in judge(subject.runs):
        if judgement.verdict is Verdict.HARNESS_ERROR:
            failures.append(f"the check of {judgement.requirement.id} raised: {judgement.message}")
        elif judgement.violations:
            messages.setdefault(
                judgement.requirement.id, judgement.violations[0].message or judgement.message
            )
            places[judgement.requirement.id].add(judgement.scenario)
    kills = {name: Kill(words, frozenset(places[name])) for name, words in messages.items()}
    return Trial(fault, server, kills, "; ".join(filter(None, failures)))


def try_all(
    pairs: Iterable[tuple[KnownFault, str]],
    urls: Mapping[str, str],
    report: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Try faults on servers. Several run at the same time; those that need a server for
    themselves run last.
    """
    asked = [(fault.name, server, urls[server], scenarios_for(fault.name)) for fault, server in pairs]
    trials = []
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as processes:
        running = [processes.submit(_tried, *item) for item in asked if not wants_quiet(item[-1])]
        for trial in as_completed(running):
            trials.append(trial.result())
            report(trials[-1])
    for item in asked:
        if wants_quiet(item[-1]):
            trials.append(_tried(*item))
            report(trials[-1])
    return sorted(trials, key=lambda trial: (trial.fault, trial.server))


def _tried(fault: str, server: str, url: str, scenarios: Sequence[str]) -> Trial:
    return asyncio.run(try_fault(fault, server, url, scenarios))
