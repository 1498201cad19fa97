"""`tokenwire again`: repeat the requests of the last failures, and print which failures are fixed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

import typer
from rich.text import Text

from tokenwire.asking.planning import headers_of, planned
from tokenwire.asking.scenario import load_scenarios
from tokenwire.commands.ask import reached
from tokenwire.commands.command import command
from tokenwire.disk import system_says
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.observing import NO_SCENARIO
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import ExitStatus, Verdict
from tokenwire.last_run import Failed, LastRun, keep, read_last
from tokenwire.report.console import make_console
from tokenwire.requirement import load_requirements
from tokenwire.settings import Settings
from tokenwire.typed_table import counted
from tokenwire.wire.exchange import Ending
from tokenwire.wire.inert import inert

_MOST_NAMED = 3
_RACING = ("side-effect", "arrival")
"""Oracles of requirements that depend on timing.

A server may violate them in one run and satisfy them in the next.
"""
_TRIES = 3


class FailureOutcome(StrEnum):
    """The outcome of a failure after its requests were repeated."""

    FIXED = "FIXED"
    FAILED = "FAILED"
    UNSEEN = "NOT SEEN"


_STYLES = {
    FailureOutcome.FIXED: "bold green",
    FailureOutcome.FAILED: "bold red",
    FailureOutcome.UNSEEN: "bold yellow",
}


Outcomes = dict[str, dict[str, tuple[FailureOutcome, str]]]
"""The outcome of each failure with a short explanation, by requirement and scenario."""


def answered(runs: Iterable[Run]) -> set[str]:
    """Return the scenarios whose exchanges were all answered completely."""
    ends: dict[str, set[Ending]] = {}
    for run in runs:
        for stream in run.streams:
            ends.setdefault(stream.exchange.scenario, set()).add(stream.exchange.ending)
    scenarios = {name for name, seen in ends.items() if seen <= {Ending.COMPLETE, Ending.HUNG_UP}}
    return scenarios | ({NO_SCENARIO} if scenarios == ends.keys() else set())


def outcomes(
    failed: Iterable[Failed], judgements: Sequence[Judgement], seen: Collection[str] = ()
) -> Outcomes:
    """Return the outcome of each failure, by requirement and scenario.

    New failures of the same requirements are included. `seen`: the scenarios whose exchanges were all
    answered. If one of these scenarios shows no violation, the failure is fixed, even if a correct answer
    left nothing to judge.
    """
    now = {(judgement.requirement.id, judgement.scenario): judgement for judgement in judgements}
    found: Outcomes = {}
    for failure in failed:
        judgement = now.get((failure.requirement, failure.scenario))
        if judgement is not None and judgement.violations and judgement.verdict is Verdict.FAIL:
            outcome = FailureOutcome.FAILED, judgement.message
        elif failure.scenario in seen or (judgement is not None and judgement.witnesses):
            outcome = FailureOutcome.FIXED, ""
        else:
            outcome = FailureOutcome.UNSEEN, "not all of its requests were answered"
        found.setdefault(failure.requirement, {})[failure.scenario] = outcome
    for judgement in judgements:
        if judgement.verdict is Verdict.FAIL and judgement.requirement.id in found:
            found[judgement.requirement.id][judgement.scenario] = FailureOutcome.FAILED, judgement.message
    return found


def _in_doubt(found: Outcomes) -> set[str]:
    """Return the scenarios in which a failure that depends on timing did not occur.

    These scenarios are run once more.
    """
    known = load_requirements()
    return {
        scenario
        for requirement, by_scenario in found.items()
        for scenario, (outcome, _) in by_scenario.items()
        if outcome is FailureOutcome.FIXED and requirement in known and known[requirement].oracle in _RACING
    }


def _lines(
    requirement: str, scenarios: Mapping[str, tuple[FailureOutcome, str]], known: str = ""
) -> Iterable[Text]:
    for outcome in FailureOutcome:
        named = [name for name, (found, _) in scenarios.items() if found is outcome]
        if not named:
            continue
        some = ", ".join(named[:_MOST_NAMED])
        some += f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        because = next((why for found, why in scenarios.values() if found is outcome and why), "")
        line = Text(f"{outcome:<9} ", style=_STYLES[outcome])
        words = f": {inert(because)}" if because else ""
        words += f" (known: {inert(known)})" if known and outcome is not FailureOutcome.FIXED else ""
        line.append(f"{requirement}  in {some}{words}", style="none")
        yield line


def again(settings: Settings) -> None:
    """Repeat the scenarios that failed in this folder's last `tokenwire check`; print FIXED or FAILED for
    each.

    Known failures of a baseline are repeated, too. The next `tokenwire again` repeats only what still fails.

    Exit status: 0 all failures are fixed; 1 at
    least one still fails; 2 wrong command line; 4 the target could not be reached, or a scenario was not
    answered.
    """
    last = read_last()
    remembered = Settings.of(last.options, target=last.target, file_headers=last.headers)
    asked = replace(remembered, target=settings.target or last.target, header=settings.header)
    _demand_credentials(last, headers_of(asked))
    if not last.failed:
        typer.echo("the last `tokenwire check` had no failures")
        return
    plan = planned(asked)
    scenarios = {failure.scenario for failure in last.failed}
    if scenarios <= load_scenarios().keys():
        plan = replace(plan, settings=replace(plan.settings, scenario=tuple(sorted(scenarios))))
    console = make_console()
    subject = reached(plan, verbosity=settings.verbosity)
    known = load_requirements()
    rows = [
        known[name] for name in dict.fromkeys(failure.requirement for failure in last.failed) if name in known
    ]
    judgements = judge(subject.runs, rows)
    seen = answered(subject.runs)
    found = outcomes(last.failed, judgements, seen)
    for _ in range(_TRIES - 1):
        doubted = _in_doubt(found)
        if not doubted or not doubted <= load_scenarios().keys():
            break
        retry = replace(plan, settings=replace(plan.settings, scenario=tuple(sorted(doubted))))
        later = judge(reached(retry, verbosity=settings.verbosity).runs, rows)
        judgements = _with_failures(judgements, later)
        found = outcomes(last.failed, judgements, seen)
    tolerated = {failure.requirement: failure.known for failure in last.failed if failure.known}
    for requirement, by_scenario in found.items():
        for line in _lines(requirement, by_scenario, tolerated.get(requirement, "")):
            if not settings.quiet or not line.plain.startswith(FailureOutcome.FIXED):
                console.print(line, soft_wrap=True)
    every = [outcome for by_scenario in found.values() for outcome, _ in by_scenario.values()]
    console.print(Text(f"{subject.title}: {_in_numbers(found)}"), soft_wrap=True)
    unseen = tuple(
        failure
        for failure in last.failed
        if found[failure.requirement][failure.scenario][0] is FailureOutcome.UNSEEN
    )
    try:
        keep(replace(last, target=plan.settings.target, failed=unseen), judgements)
    except OSError as error:
        typer.echo(f"the remaining failures cannot be stored: {system_says(error)}", err=True)
    if FailureOutcome.FAILED in every:
        raise typer.Exit(ExitStatus.VIOLATION)
    if FailureOutcome.UNSEEN in every:
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)


def _in_numbers(found: Outcomes) -> str:
    """Describe the number of requirements with each outcome, and the number of their scenarios if it is
    larger.
    """
    words = []
    for outcome in FailureOutcome:
        numbers = [sum(seen is outcome for seen, _ in by_scenario.values()) for by_scenario in found.values()]
        requirements, scenarios = sum(map(bool, numbers)), sum(numbers)
        if requirements:
            several = f" in {counted(scenarios, 'scenario')}" if scenarios > requirements else ""
            words.append(f"{counted(requirements, 'requirement')} {outcome.lower()}{several}")
    return ", ".join(words)


def _with_failures(judgements: Sequence[Judgement], later: Sequence[Judgement]) -> list[Judgement]:
    """Return the judgements of the earlier tries. A failure in a later try replaces the earlier judgement."""
    failed = {judgement.name: judgement for judgement in later if judgement.verdict is Verdict.FAIL}
    before = [failed.pop(judgement.name, judgement) for judgement in judgements]
    return [*before, *failed.values()]


def _demand_credentials(last: LastRun, given: Sequence[tuple[str, str]]) -> None:
    """Check that the command line has each header whose value was not stored because the value is a
    credential. Raises BadParameter for a missing header.
    """
    names = {name.lower() for name, _ in given}
    for name in last.withheld:
        if name.lower() not in names:
            raise typer.BadParameter(
                f"the header {name} contains a credential, which is not stored; add it again: "
                f"--header '{name}: env:MY_KEY'"
            )


app = command(
    again,
    "tokenwire again",
    "tokenwire again --target http://127.0.0.1:30001",
)
