"""`tokenwire check --plan`: the requests and tokens of a run, and their cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import typer

from tokenwire.asking.politeness import Price
from tokenwire.asking.rehearsal import Estimate
from tokenwire.asking.run import Plan, Unreached, rehearse
from tokenwire.judging.verdict import ExitStatus

_Estimates = Mapping[tuple[str, str], Estimate]
"""By dialect and scenario."""


def print_plan(plan: Plan, *, full: bool) -> int:
    """Probe the target, print what a run would ask, and return the exit status. Raises UsageError."""
    asked = asyncio.run(rehearse(plan))
    if isinstance(asked, Unreached):
        typer.echo(asked.diagnosis)
        return ExitStatus.NOTHING_EVALUATED
    for line in plan_in_words(asked, plan.limits.price, full=full):
        typer.echo(line)
    if plan.settings.worker:
        typer.echo("The scenario `gateway` asks its requests of both servers besides.")
    if plan.settings.twin:
        typer.echo("Both twins get their requests besides: some three for 64 tokens that they score.")
    return ExitStatus.CONFORMS


def plan_in_words(asked: _Estimates, price: Price | None, *, full: bool = False) -> Iterator[str]:
    """A table by dialect and one by scenario, or one by both if `full`; then all of it in a sentence."""
    scenarios = dict.fromkeys(scenario for _, scenario in asked)
    tables: list[tuple[str, dict[str, Estimate]]] = [
        ("dialect", {name: _of(asked, dialect=name) for name in dict.fromkeys(name for name, _ in asked)}),
        ("scenario", {name: _of(asked, scenario=name) for name in sorted(scenarios)}),
    ]
    if full:
        tables[1:] = [
            ("scenario", {f"{name}/{scenario}": asked[name, scenario] for name, scenario in sorted(asked)})
        ]
    room = max((len(name) for _, rows in tables for name in rows), default=0)
    for head, rows in tables:
        cost = f"{'cost':>10}" if price else ""
        yield f"{head:<{room}}{'requests':>10}{'prompt tokens':>15}{'output tokens':>15}{cost}"
        for name, row in rows.items():
            cost = f"{row.cost(price):>10.4f}" if price else ""
            yield f"{name:<{room}}{row.requests:>10,}{row.prompt_tokens:>15,}{row.output_tokens:>15,}{cost}"
        yield ""
    total = sum(asked.values(), Estimate())
    cost = f", which cost {total.cost(price):.4f}" if price else ""
    yield (
        f"At most {total.requests:,} requests with {total.prompt_tokens:,} prompt tokens and "
        f"{total.output_tokens:,} output tokens{cost}, plus "
        "retries."
    )


def _of(asked: _Estimates, *, dialect: str = "", scenario: str = "") -> Estimate:
    estimates = (
        estimate
        for (name, of_scenario), estimate in asked.items()
        if dialect in ("", name) and scenario in ("", of_scenario)
    )
    return sum(estimates, Estimate())
