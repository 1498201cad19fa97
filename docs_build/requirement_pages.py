"""A page for each requirement, and the list of them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby

from docs_build import dialect_choices
from docs_build.bug_page import CAUGHT, Bug, bugs
from docs_build.faults import faults
from docs_build.page import Page, fenced, in_cell, link
from docs_build.published import relinked
from docs_build.results import Column
from docs_build.threads import linked
from docs_build.violations import file_of
from tokenwire.explanation import Explanation, explain
from tokenwire.judging.verdict import Verdict
from tokenwire.profile import load_profiles
from tokenwire.requirement import Basis, Requirement, load_requirements

LIST = "requirements/index.md"


def uri(requirement: str) -> str:
    """Return the page of a requirement."""
    return f"requirements/{requirement}.md"


def _facts(explanation: Explanation, page: str) -> Iterator[tuple[str, str]]:
    row = explanation.requirement
    named = [name for name, ids in load_profiles().items() if row.id in ids] or [row.profile]
    profiles = [link(f"`{name}`", "spec/index.md#profiles", page) for name in named]
    chapter = link(explanation.passage.chapter, f"spec/{row.chapter}.md#{row.id}", page)
    yield "Level", f"{row.level}: a violation is {_VIOLATION[row.level.value]}"
    yield "Chapter", f"{chapter}, {explanation.passage.section}" if explanation.passage.section else chapter
    yield "Profile", ", ".join(profiles)
    yield "Contract", _CONTRACTS[row.contract]
    yield "Basis", ", ".join(_BASES[basis] for basis in row.basis)
    if row.breaks:
        yield "Who breaks", row.breaks
    yield "What decides", _ORACLES.get(row.oracle, row.oracle)
    yield "A PASS needs", explanation.needs
    if row.policies:
        yield "A dialect chooses", dialect_choices.named(row.policies, page)
    if row.tolerances:
        yield "Allows", "; ".join(map(str, row.tolerances))


_VIOLATION = {"MUST": "a FAIL", "SHOULD": "a WARN", "MAY": "an INFO"}
_CONTRACTS = {
    "blackbox": "`blackbox`: any URL will do",
    "instrumented": "`instrumented`: the server has to be started in a special way",
}
_BASES = {
    Basis.ANTHROPIC: "Anthropic's API",
    Basis.OPENAI: "OpenAI's API",
    Basis.SGLANG: "SGLang",
    Basis.VLLM: "vLLM",
    Basis.ANTHROPIC: "Anthropic's API",
    Basis.TOKENWIRE: "this specification alone",
}
_ORACLES = {
    "bytes": "the bytes themselves",
    "schema": "a JSON Schema",
    "within-response": "one answer, held against itself",
    "across-responses": "two answers, held against each other",
    "refusal": "whether and how the request is refused",
    "tokenizer": "text, held against its ids",
    "side-effect": "what the server does beside the answer",
    "across-targets": "the answers of two servers",
    "script": "the right answer, computed from the request",
    "arrival": "when events come",
}


def _why(explanation: Explanation, page: str) -> str:
    prose = "\n\n".join(filter(None, (explanation.passage.before, explanation.passage.after)))
    return linked(relinked(prose, f"spec/{explanation.requirement.chapter}.md", page))


def _caught(row: Requirement) -> Iterator[str]:
    for name in row.kills:
        known = faults().get(name)
        threads = f" ({linked(', '.join(known.upstream))})" if known and known.upstream else ""
        yield f"- `{name}`: {known.does if known else ''}{threads}"


def _bug(bug: Bug) -> str:
    condition = f" If {bug.note}." if bug.note and bug.caught == "deployment" else ""
    return f"- {bug.server}: {bug.says}{condition} {linked(', '.join(bug.threads))}"


def _seen(row: Requirement, results: Iterable[Column], page: str) -> Iterator[str]:
    """Yield rows about the recorded servers, as far as they were judged."""
    for column in results:
        cell = column.cells.get(row.id)
        if cell is not None and cell.verdict in {Verdict.PASS, Verdict.FAIL, Verdict.WARN}:
            what = escape(cell.message, quote=False) or f"{cell.witnesses} witnesses"
            mark = link(cell.verdict.value, f"{column.uri}#{row.id}", page)
            yield f"| {column.title} | {mark} | {in_cell(what)} |"


def _way(row: Requirement, page: str) -> str:
    """Links to the requirements before and behind, and to those of the chapter."""
    names = list(load_requirements())
    place = names.index(row.id)
    chapter = link("all of the chapter", f"spec/{row.chapter}.md", page)
    before = [link(f"← {names[place - 1]}", uri(names[place - 1]), page)] if place else []
    behind = [link(f"{name} →", uri(name), page) for name in names[place + 1 : place + 2]]
    return " · ".join([*before, chapter, *behind])


def _right(row: Requirement, results: Iterable[Column]) -> Iterator[str]:
    """Yield an excerpt of a recorded server that conforms, for a place beside the violation."""
    cells = ((column, column.cells.get(row.id)) for column in results)
    for column, cell in cells:
        if cell is not None and cell.verdict is Verdict.PASS and cell.excerpt:
            place = ", ".join(
                filter(None, (f"`{cell.exchange}`", f"`{cell.pointer}`" if cell.pointer else ""))
            )
            yield f"And where it holds: {column.title}, {place}:"
            yield fenced(cell.excerpt, "text")
            return


def _mended(row: Requirement, real: Iterable[Bug]) -> list[str]:
    """Return the public changes that mended such a fault, each with what went wrong."""
    words = {thread: bug.says for bug in real for thread in bug.threads}
    for name in row.kills:
        if known := faults().get(name):
            words = dict.fromkeys(known.upstream, known.does) | words
    words = dict.fromkeys(row.upstream, "") | words
    return [
        f"- {linked(thread)}{': ' * bool(fault)}{fault}"
        for thread, fault in words.items()
        if " PR #" in thread
    ]


def page(explanation: Explanation, results: Iterable[Column] = ()) -> Page:
    """Return all of one requirement: what goes wrong and why first."""
    row, here = explanation.requirement, uri(explanation.requirement.id)
    parts = [f"# {row.id}", _way(row, here), f"> {row.sentence}"]
    if file_of(row.id).exists():
        parts += [
            "## What a violation looks like",
            "The reference engine runs with a fault, and the suite catches it:",
            fenced(file_of(row.id).read_text("utf-8"), "console"),
            *_right(row, results),
        ]
    if why := _why(explanation, here):
        parts += ["## Why", why]
    real = [bug for bug in bugs() if row.id in bug.rows and bug.caught in CAUGHT]
    if real:
        parts += ["## Real bugs that it would have caught", "\n".join(map(_bug, real))]
    if mended := _mended(row, real):
        parts += [
            "## How public servers mended such faults",
            "The changes show where it went wrong, and how:",
        ]
        parts += ["\n".join(mended)]
    if seen := list(_seen(row, results, here)):
        rows = "\n".join(seen)
        parts += ["## What recorded servers do", f"| capture | verdict | seen |\n|---|---|---|\n{rows}"]
    if row.kills:
        parts += ["## Faults that it catches", "\n".join(_caught(row))]
    known = {thread for bug in real for thread in bug.threads}
    if others := [thread for thread in row.upstream if thread not in known]:
        parts += ["## Threads about it", "\n".join(f"- {linked(thread)}" for thread in others)]
    facts = "\n".join(f"| **{name}** | {in_cell(words)} |" for name, words in _facts(explanation, here))
    parts += ["## In short", f"| | |\n|---|---|\n{facts}"]
    parts += ["## Run it alone", f"```console\n{explanation.alone}\n```"]
    return Page(here, "\n\n".join(parts) + "\n")


def index() -> Page:
    """Return all requirements, by chapter."""
    every = load_requirements()
    parts = [
        "# Requirements",
        f"The {len(every)} sentences of the specification, each with a page of its own.",
    ]
    for _, rows in groupby(every.values(), key=lambda row: row.chapter):
        group = list(rows)
        title = explain(group[0].id).passage.chapter
        lines = "\n".join(
            f"| {link(row.id, uri(row.id), LIST)} | {row.level} | {in_cell(row.sentence)} |" for row in group
        )
        parts += [f"## {title}", f"| requirement | level | sentence |\n|---|---|---|\n{lines}"]
    return Page(LIST, "\n\n".join(parts) + "\n")


def pages(results: Iterable[Column] = ()) -> Iterator[Page]:
    """Yield the list, and every page."""
    columns = list(results)
    yield index()
    for requirement in load_requirements():
        yield page(explain(requirement), columns)
