"""The page of real bugs: what went wrong on the wire, and which requirement catches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from docs_build.page import Page, in_cell
from docs_build.threads import linked
from tokenwire.spec_files import read_yaml, spec_root

PAGE = "bugs.md"
CLASSES: Mapping[str, str] = {
    "run": "caught by a run of the suite",
    "deployment": "caught where the deployment brings the condition",
    "not-asked": "a requirement is there, and no scenario or dialect asks",
    "no-row": "no requirement speaks of it",
    "no-bug": "no bug of a server: legal, or a client's",
}
"""The statements about a bug, with their words."""
CAUGHT = frozenset({"run", "deployment"})
"""The classes of bugs that the requirements beside them catch."""
_GROUPS: Mapping[str, str] = {
    "A": "Delivery of streams",
    "B": "Token ids",
    "C": "Per-token series",
    "D": "Text of ids",
    "I": "Stops and budgets",
    "Q": "Parsers of thoughts and tool calls",
    "H": "Finish",
    "U": "Usage",
    "E": "Errors and ends of streams",
    "S": "Framing",
    "J": "Samples and batches",
    "F": "Ids in, ids out",
    "G": "Prompts",
    "K": "Prompt-side series",
    "L": "Aborts and disconnects",
    "R": "Retraction, caches and weights",
    "M": "Constraints and demanded calls",
    "P": "Gateways",
    "V": "Results of inputs",
}


@dataclass(frozen=True)
class Bug:
    """One row of `spec/bugs.yaml`."""

    id: str
    server: str
    says: str
    threads: Sequence[str]
    caught: str
    """One of `CLASSES`."""
    rows: Sequence[str] = ()
    """The requirements that catch it."""
    note: str = ""
    """The condition, or why nothing catches it."""


@cache
def bugs() -> tuple[Bug, ...]:
    """Return all bugs, in the order of the file."""
    rows = read_yaml(spec_root() / "bugs.yaml")
    return tuple(Bug(name, **row) for name, row in rows.items())


def _counts() -> Iterator[str]:
    counted = Counter(bug.caught for bug in bugs())
    yield "| | bugs |\n|---|---|"
    for name, words in CLASSES.items():
        yield f"| {words} | {counted[name]} |"
    yield f"| all | {len(bugs())} |"


def _row(bug: Bug) -> str:
    caught = ", ".join(f"`{row}`" for row in bug.rows)
    words = CLASSES[bug.caught] if bug.caught in {"not-asked", "no-row", "no-bug"} else ""
    note = "if " + bug.note if bug.note and bug.caught == "deployment" else bug.note
    verdict = ": ".join(filter(None, (words, note))) if words else note
    threads = linked(", ".join(bug.threads))
    by = "; ".join(filter(None, (caught, verdict)))
    return f"| {bug.id} | {in_cell(bug.server)} | {in_cell(bug.says)} {threads} | {in_cell(by)} |"


def page() -> Page:
    """Return all bugs, by what they are about."""
    parts = [
        "# Real bugs",
        "What went wrong on the wire, as public threads tell it, and what of this specification catches it. "
        "Nothing was reproduced for this page; it says which requirement the symptom breaks.",
        "\n".join(_counts()),
    ]
    for letter, title in _GROUPS.items():
        lines = "\n".join(_row(bug) for bug in bugs() if bug.id.startswith(letter))
        parts += [f"## {title}", f"| | server | what happens | caught by |\n|---|---|---|---|\n{lines}"]
    return Page(PAGE, "\n\n".join(parts) + "\n")
