"""The page of real bugs: each bug with the requirements that find it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs_build.page import Page, page_of
from tokenwire.spec_files import read_yaml, spec_root

PAGE = "bugs.md"
_FAULTS = Path(__file__).parents[1] / "reference" / "tokenwire_faults" / "faults.yaml"
CLASSES: Mapping[str, str] = {
    "run": "caught by a run of the suite",
    "deployment": "caught where the deployment brings the condition",
    "not-asked": "a requirement is there, and no scenario or dialect asks",
    "no-row": "no requirement speaks of it",
    "no-bug": "no bug of a server: legal, or a client's",
}
"""The classes of bugs, with the text for each class."""
CAUGHT = frozenset({"run", "deployment"})
"""The classes of bugs that requirements find."""


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
    """The requirements that find the bug."""
    note: str = ""
    """The condition, or the reason why no requirement finds the bug."""


@dataclass(frozen=True)
class Fault:
    """A fault of the reference engine, read from its table, so that the site can be built without
    the engine.
    """

    does: str
    """The effect of the fault, in one or two sentences."""
    upstream: tuple[str, ...]
    """The threads that report the bug."""
    room: str
    """The part of a server that had the bug."""


@cache
def bugs() -> tuple[Bug, ...]:
    """Return all bugs, in the order of the file."""
    rows = read_yaml(spec_root() / "bugs.yaml")
    return tuple(Bug(name, **row) for name, row in rows.items())


@cache
def faults() -> Mapping[str, Fault]:
    """Return all faults by name."""
    return {
        name: Fault(entry["does"], tuple(entry["bug"]["upstream"]), room)
        for room, entries in read_yaml(_FAULTS)["rooms"].items()
        for name, entry in entries.items()
    }


def page() -> Page:
    """Return the page of all bugs."""
    counted = Counter(bug.caught for bug in bugs())
    return page_of("bugs", PAGE, bugs=bugs(), classes=CLASSES, counted=counted, caught_by_rows=CAUGHT)
