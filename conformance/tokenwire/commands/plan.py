"""`tokenwire check --plan`: the number of requests and tokens of a run, and their cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import typer

from tokenwire.asking.politeness import Price
from tokenwire.asking.rehearsal import Estimate
from tokenwire.asking.run import Plan, Unreached, rehearse
from tokenwire.judging.verdict import ExitStatus

_Estimates = Mapping[tuple[str, str], Estimate]
"""Estimates by dialect and scenario."""


def print_plan(plan: Plan, *, full: bool) -> int:
    """Probe the target, print the estimated requests and tokens of a run, and return the exit status.

    Raises UsageError.
    """
    asked = asyncio.run(rehearse(plan))
    if isinstance(asked, Unreached):
        typer.echo(asked.diagnosis)
        return ExitStatus.NOTHING_EVALUATED
    for line in plan_in_words(asked, plan.limits.price, full=full):
        typer.echo(line)
    if plan.settings.worker:
        typer.echo(
            "In addition, the scenario `gateway` sends its requests to both servers, `cut-worker` sends up "
            "to four requests for each endpoint, and up to 160 failing requests of the gateway are sent to "
            "the worker. The limits count them."
        )
    if plan.settings.twin:
        typer.echo(
            "In addition, the comparison of the twins sends about three requests for 64 scored tokens. The "
            "limits count them."
        )
    return ExitStatus.CONFORMS


def plan_in_words(asked: _Estimates, price: Price | None, *, full: bool = False) -> Iterator[str]:
    """Yield the lines of two tables, by dialect and by scenario, and the total in a sentence.

    `full`: the second table has a row for each pair of dialect and scenario.
    """
    scenarios = dict(sorted(_summed(asked, 1).items()))
    if full:
        scenarios = {f"{dialect}/{scenario}": asked[dialect, scenario] for dialect, scenario in sorted(asked)}
    tables = {"dialect": _summed(asked, 0), "scenario": scenarios}
    room = max((len(name) for rows in tables.values() for name in rows), default=0)
    for head, rows in tables.items():
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
        f"{total.output_tokens:,} output tokens{cost}. Retries of a busy server, liveness probes and "
        "confirmations are extra requests. The limits count them."
    )


def _summed(asked: _Estimates, part: int) -> dict[str, Estimate]:
    """Return the sums of the estimates, by dialect (`part` 0) or by scenario (`part` 1)."""
    sums: dict[str, Estimate] = {}
    for key, estimate in asked.items():
        sums[key[part]] = sums.get(key[part], Estimate()) + estimate
    return sums
