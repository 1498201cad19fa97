"""`tokenwire list`: lists requirements, scenarios, dialects, capabilities or profiles."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from tokenwire.commands.command import command, declarable
from tokenwire.requirement import load_requirements


class _Kind(StrEnum):
    """The kinds of names that the command lists."""

    REQUIREMENTS = "requirements"
    SCENARIOS = "scenarios"
    DIALECTS = "dialects"
    CAPABILITIES = "capabilities"
    PROFILES = "profiles"


def _affirmed(absent: str) -> str:
    """Return the positive of a negative clause: `no answer carries text` becomes `an answer carries text`."""
    return re.sub(r"\bno (?=([aeiou])?)", lambda no: "an " if no[1] else "a ", absent, count=1)


def _list_names(
    what: Annotated[
        _Kind, typer.Argument(metavar="[requirements|scenarios|dialects|capabilities|profiles]")
    ] = _Kind.REQUIREMENTS,
) -> None:
    """List all requirements, scenarios, dialects, capabilities or profiles, one on each line."""
    match what:
        case _Kind.REQUIREMENTS:
            rows = [(row.id, f"{row.level} {row.sentence}") for row in load_requirements().values()]
        case _Kind.SCENARIOS:
            from tokenwire.asking.scenario import load_scenarios  # imported here, because each import is slow

            rows = [(scenario.name, scenario.provokes) for scenario in load_scenarios().values()]
        case _Kind.DIALECTS:
            from tokenwire.dialects.dialect import load_dialects

            rows = [
                (dialect.name, f"{'|'.join(dialect.endpoint.methods)} {dialect.endpoint.path}")
                for dialect in load_dialects().values()
            ]
        case _Kind.CAPABILITIES:
            rows = [
                (name, f"shown where {_affirmed(absent)}") for name, absent in sorted(declarable().items())
            ]
        case _Kind.PROFILES:
            from tokenwire.levels import levels
            from tokenwire.profile import load_profiles

            rows = [
                (name, f"{levels()[name].means} ({len(ids)} requirements)")
                for name, ids in load_profiles().items()
            ]
    for name, words in rows:
        typer.echo(f"{name:36}  {words}")


app = command(
    _list_names,
    "tokenwire list",
    "tokenwire list scenarios",
    "tokenwire list requirements | grep stop",
    name="list",
)
