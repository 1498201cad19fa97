"""Facts about faults that are not in their rows: the scenarios that show them, and the further requirements
they violate.

`--learn` adds to two files that people review. Each new line must be a true violation of the requirement's
sentence. A third file, written by people, lists requirements that are related to each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

import yaml

from proofs.killing.matrix import Matrix

SHOWN_BY = Path(__file__).with_name("shown_by.yaml")
CONSEQUENCES = Path(__file__).with_name("consequences.yaml")
FAMILIES = Path(__file__).with_name("families.yaml")

_HEADINGS = {
    SHOWN_BY: """\
# Fault: the scenarios, beside the core, that show it. For a new fault, write down what should;
# `python -m proofs.kill_matrix --learn` adds where it was seen, if that is not listed.
""",
    CONSEQUENCES: """\
# Fault: requirements that it truly violates too, though they are not there for it. They may
# turn red with it and need not: whether they do depends on the cut of a stream and on what is asked beside.
# `python -m proofs.kill_matrix --learn` adds what it finds: look at each new line, as at a failing test.
""",
}


@cache
def read(file: Path) -> dict[str, list[str]]:
    """Return the entries of one of the two files, by fault."""
    entries: dict[str, list[str]] = yaml.safe_load(file.read_text("utf-8"))
    return entries


def consequences() -> frozenset[tuple[str, str]]:
    """Return the pairs of requirement and fault in which the requirement may fail without naming
    the fault.
    """
    return frozenset((name, fault) for fault, names in read(CONSEQUENCES).items() for name in names)


def families() -> tuple[frozenset[str], ...]:
    """Return the families of related requirements, which may fail because of the same error."""
    return tuple(frozenset(item["requirements"]) for item in yaml.safe_load(FAMILIES.read_text("utf-8")))


def learn(matrix: Matrix, core: Collection[str]) -> None:
    """Add to the files what showed the tried faults, and which further requirements failed.

    Nothing is removed, because a kill may depend on other scenarios than the one in which it shows.
    """
    shown, broken = dict(read(SHOWN_BY)), dict(read(CONSEQUENCES))
    for fault in matrix.faults:
        asked = {*core, *shown.get(fault, ())}
        seen = [
            kill.scenarios
            for (requirement, killed), kills in matrix.cells.items()
            if killed == fault and (requirement, fault) in matrix.named
            for kill in kills.values()
        ]
        few = _few(places for places in seen if places.isdisjoint(asked))
        shown[fault] = sorted(few.union(shown.get(fault, ())))
        found = {name for name, killed in matrix.unexpected | matrix.kindred if killed == fault}
        named = {requirement for requirement, killed in matrix.named if killed == fault}
        broken[fault] = sorted(found.union(broken.get(fault, ())) - named)
    for file, entries in ((SHOWN_BY, shown), (CONSEQUENCES, broken)):
        written = {fault: names for fault, names in sorted(entries.items()) if names}
        words = yaml.safe_dump(written, default_flow_style=None, width=110)
        file.write_text(_HEADINGS[file] + words, "utf-8")
    read.cache_clear()


def _few(seen: Iterable[frozenset[str]]) -> set[str]:
    """Return a small set of scenarios that contains at least one of each given set, chosen greedily."""
    few: set[str] = set()
    left = list(seen)
    while left:
        count = Counter(name for places in left for name in places)
        few.add(min(count, key=lambda name: (-count[name], name)))
        left = [places for places in left if places.isdisjoint(few)]
    return few
