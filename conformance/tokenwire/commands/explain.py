"""`tokenwire explain`: the explanation of one requirement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from tokenwire.commands.command import command
from tokenwire.explanation import Explanation, explain
from tokenwire.profile import load_profiles
from tokenwire.report.console import make_console


def _facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    row = explanation.requirement
    profiles = [name for name, ids in load_profiles().items() if row.id in ids] or [row.profile]
    chapter, section = explanation.passage.chapter, explanation.passage.section
    yield "chapter", f"{chapter}, {section}" if section else chapter
    yield "profile", ", ".join(profiles)
    yield "contract", row.contract
    yield "basis", ", ".join(row.basis)
    yield "compares", row.oracle
    yield "a PASS needs", explanation.needs
    if row.policies:
        yield "a dialect chooses", ", ".join(row.policies)
    if row.tolerances:
        yield "allows", "; ".join(map(str, row.tolerances))
    yield "catches", ", ".join(row.kills) or "no fault of the reference engine"
    yield "upstream", ", ".join(row.upstream) or "no thread is known"
    yield "alone", explanation.alone


def page(explanation: Explanation) -> RenderableType:
    """Return the explanation of a requirement, formatted for a terminal."""
    row = explanation.requirement
    parts: list[RenderableType] = [
        Text.assemble((row.id, "bold"), f"  {row.level}"),
        Text(row.sentence, style="bold"),
        Text(),
    ]
    for passage in filter(None, (explanation.passage.before, explanation.passage.after)):
        parts += [Markdown(passage), Text()]
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, words in _facts(explanation):
        facts.add_row(name, Text(words))
    return Group(*parts, facts)


def _explain(
    requirement: Annotated[str, typer.Argument(metavar="ID", help="Id of the requirement.")],
) -> None:
    """Explain one requirement: its sentence, its reason, the evidence for a PASS, the bugs that it finds, and
    how to run it.
    """
    make_console().print(page(explain(requirement)))


app = command(
    _explain,
    "tokenwire explain cumulative-ids-extend",
    "tokenwire explain stop-string-not-shown",
)
