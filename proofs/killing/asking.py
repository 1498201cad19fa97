"""Asking servers with faults: a few scenarios of which it is known that they show the fault, and a core.

Every requirement is judged on everything that came back, whether it names the fault or not: the core is what
shows unexpected kills. Nothing of what is right depends on `shown_by.yaml`: a wrong entry lets a fault
survive, and that is a complaint.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from proofs.killing.matrix import Kill, Matrix, Trial
from tokenwire.judge import judge
from tokenwire.run import Plan, Progress, Unreached, interrogate
from tokenwire.scenario import load_scenarios
from tokenwire.verdict import Verdict
from tokenwire_reference.faults.catalogue import KnownFault
from tokenwire_reference.faults.faulty_wire import HEADER

CORE = ("greedy-stream", "batch-of-prompts", "chat-ids", "chat-messages", "logprob-families")
"""Asked with every fault."""
GATEWAY = "gateway"
SHOWN_BY = Path(__file__).with_name("shown_by.yaml")
_HEADING = """# Fault: the scenarios, beside the core, that show what it violates. `python -m proofs.kill_matrix --learn` keeps of
# them what is needed; for a new fault, write what should show it.
"""
AT_ONCE = 4
"""Faults that are tried at a time."""
_TIMEOUT_S = 60


@cache
def shown_by() -> dict[str, list[str]]:
    """Fault -> the scenarios that show it, beside the core."""
    entries: dict[str, list[str]] = yaml.safe_load(SHOWN_BY.read_text("utf-8"))
    return entries


def scenarios_for(fault: str) -> tuple[str, ...]:
    """What is asked with a fault."""
    return (*CORE, *shown_by().get(fault, ()))


def wants_quiet(scenarios: Iterable[str]) -> bool:
    """Whether some of these look at the server as a whole: nobody else may ask meanwhile."""
    known = load_scenarios()
    return any(known[name].alone for name in scenarios)


async def try_fault(fault: str, server: str, url: str, scenarios: Sequence[str]) -> Trial:
    """Ask a server with a fault, and judge all requirements.

    Where it is to be a gateway, the same server without the fault is the worker behind it.
    """
    plan = Plan(
        url,
        timeout_s=_TIMEOUT_S,
        headers=((HEADER, fault),),
        scenarios=tuple(scenarios),
        worker=url if GATEWAY in scenarios else "",
    )
    subject = await interrogate(plan, Progress())
    if isinstance(subject, Unreached):
        return Trial(fault, server, failure=subject.diagnosis)
    failures, messages, places = [subject.broken_off], {}, defaultdict(set)
    for each in judge(subject.runs):
        if each.verdict is Verdict.HARNESS_ERROR:
            failures.append(f"the check of {each.requirement.id} raised: {each.message}")
        elif each.violations:
            messages.setdefault(each.requirement.id, each.violations[0].message or each.message)
            places[each.requirement.id].add(each.scenario)
    kills = {name: Kill(words, frozenset(places[name])) for name, words in messages.items()}
    return Trial(fault, server, kills, "; ".join(filter(None, failures)))


async def try_all(
    pairs: Iterable[tuple[KnownFault, str]], urls: Mapping[str, str], told: Any = lambda _: None
) -> list[Trial]:
    """Try faults on servers: several at a time, and then those that want the server for themselves."""
    asked = [(fault.name, server, scenarios_for(fault.name)) for fault, server in pairs]
    slots = asyncio.Semaphore(AT_ONCE)

    async def tried(fault: str, server: str, scenarios: Sequence[str]) -> Trial:
        async with slots:
            trial = await try_fault(fault, server, urls[server], scenarios)
        told(trial)
        return trial

    trials = await asyncio.gather(*(tried(*one) for one in asked if not wants_quiet(one[2])))
    return [*trials, *[await tried(*one) for one in asked if wants_quiet(one[2])]]


def learn(matrix: Matrix) -> None:
    """Write down, for each fault that was tried, a few scenarios beside the core that show all it violates."""
    known = dict(shown_by())
    for fault in matrix.faults:
        seen = [
            kill.scenarios
            for trial in matrix.trials
            if trial.fault == fault
            for requirement, kill in trial.kills.items()
            if (requirement, fault) in matrix.named
        ]
        known[fault] = sorted(_few([places for places in seen if places.isdisjoint(CORE)]))
    entries = {fault: scenarios for fault, scenarios in sorted(known.items()) if scenarios}
    words = yaml.safe_dump(entries, default_flow_style=None, width=110)
    SHOWN_BY.write_text(_HEADING + words, "utf-8")


def _few(seen: list[frozenset[str]]) -> set[str]:
    """Scenarios of which each set holds at least one, chosen greedily."""
    few: set[str] = set()
    while seen:
        count = Counter(name for places in seen for name in places)
        few.add(min(count, key=lambda name: (-count[name], name)))
        seen = [places for places in seen if places.isdisjoint(few)]
    return few
