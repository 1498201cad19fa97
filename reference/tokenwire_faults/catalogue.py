"""The catalogue of faults: for each fault, the bug that it imitates, its effect, and the requirements that it
should violate.
"""

from __future__ import annotations

import difflib
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import tokenwire_faults
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire_faults.acts import from_table, written
from tokenwire_faults.fault import Act

FAULTS_FILE = Path(__file__).with_name("faults.yaml")
CUMULATIVE, INCREMENTAL, WHOLE = "cumulative", "incremental", "whole"
STREAMED = (CUMULATIVE, INCREMENTAL)
EVERYWHERE = (*STREAMED, WHOLE)


@dataclass(frozen=True)
class KnownFault:
    """One entry of `faults.yaml`."""

    name: str
    room: str
    """The part of a server where the bug was."""
    does: str
    """The effect, in a sentence or two."""
    primitive: str
    """The kind of bug: its key in `kinds` of the table, such as X14."""
    kind: str
    """The kind of bug in words."""
    acts: Mapping[str, Act]
    """The act at each seam."""
    upstream: tuple[str, ...]
    """Links to reports of the bug; empty if no report of the bug is known."""
    shows_in: tuple[str, ...] = EVERYWHERE
    """The delivery modes in which a client sees the bug. Chat streams are always incremental."""
    server: tuple[str, ...] = ()
    """Flags of the server that the fault needs."""
    when: tuple[str, ...] = ()
    """The conditions for requests that the fault affects:

    `stream`, `whole`, or names of fields that a request must contain.
    """
    path: str = ""
    """A part of the path of each affected endpoint; empty for all endpoints."""
    unseen: str = ""
    """The reason why the fault violates no requirement; empty if it violates one."""
    ends_the_server: bool = False
    """True if the server stops answering once the fault has occurred."""

    @property
    def kills(self) -> tuple[str, ...]:
        """The ids of the requirements that this fault violates, and that list it as a fault."""
        return _kills().get(self.name, ())


NO_FAULT = KnownFault("", "", "Nothing.", "", "", {}, ())
"""A fault without an effect, for requests that name none."""


@cache
def _kills() -> dict[str, tuple[str, ...]]:
    """Return the requirements that name each fault, in the order of the specification."""
    named: dict[str, list[str]] = {}
    for chapter in read_yaml(spec_root() / "chapters.yaml"):
        rows = read_yaml(spec_root() / "requirements" / f"{chapter}.yaml")
        for row in rows["requirements"]:
            for name in row.get("kills", ()):
                named.setdefault(name, []).append(row["id"])
    return {name: tuple(ids) for name, ids in named.items()}


def known_fault(room: str, name: str, entry: Mapping[str, Any], kinds: Mapping[str, str]) -> KnownFault:
    """Return the fault that an entry of `faults.yaml` describes.

    Raises ValueError with the name of the fault if the entry is invalid.
    """
    facts: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry["bug"].items()
    }
    primitive = facts.pop("kind")
    if primitive not in kinds:
        raise ValueError(f"fault {name!r} is of the kind {primitive!r}; the kinds are {', '.join(kinds)}")
    if "upstream" not in facts:
        raise ValueError(f"fault {name!r} has no `upstream`; list links to reports of the bug, or write []")
    acts = dict(written(name))
    for seam in entry.keys() - {"does", "bug"}:
        try:
            acts |= from_table(seam, entry[seam])
        except KeyError as error:
            raise ValueError(
                f"fault {name!r}: the seam {seam!r} has no primitives; write a function"
            ) from error
    if not acts:
        raise ValueError(
            f"fault {name!r} does nothing; name a seam, or write a function with the fault's name"
        )
    return KnownFault(name, room, entry["does"], primitive, kinds[primitive], acts, **facts)


@cache
def load_faults() -> dict[str, KnownFault]:
    """Return all faults by name, room by room."""
    for module in pkgutil.iter_modules(tokenwire_faults.__path__):
        import_module(f"{tokenwire_faults.__name__}.{module.name}")
    table = read_yaml(FAULTS_FILE)
    return {
        name: known_fault(room, name, entry, table["kinds"])
        for room, entries in table["rooms"].items()
        for name, entry in entries.items()
    }


def find_fault(name: str) -> KnownFault:
    """Return the fault with this name. For an unknown name, raises ValueError with the closest known name."""
    known = load_faults()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`tokenwire-reference faults` lists them all"
        raise ValueError(f"x-tokenwire-fault is {name!r}, which is not the name of a fault; {hint}")
    return known[name]


_LISTED = (*(field.name for field in fields(KnownFault) if field.name != "acts"), "kills")


def _with(word: str) -> list[KnownFault]:
    """Return the faults with a word in their name, their description or the requirements that find them.

    Raises ValueError if there is none.
    """
    known = load_faults().values()
    found = [fault for fault in known if word in " ".join((fault.name, fault.does, *fault.kills))]
    if not found:
        raise ValueError(f"none of the {len(known)} faults has {word!r} in its text; try a shorter word")
    return found


def faults_as_json(word: str = "") -> str:
    """Return the catalogue as a JSON list; the keys are those of `KnownFault`."""
    listed = [{name: getattr(fault, name) for name in _LISTED} for fault in _with(word)]
    return json.dumps(listed, indent=2)


def print_faults(console: Console, word: str = "") -> None:
    """Print the catalogue, a paragraph for each fault."""
    found = _with(word)
    for known in found:
        title = Text(f"{known.name}  ", style="bold").append(", ".join(known.shows_in), style="not bold dim")
        console.print(title)
        console.print(f"  {known.does}", highlight=False)
        console.print(f"  kind       {known.primitive}: {known.kind}", highlight=False)
        if known.server:
            console.print(f"  needs      {' '.join(known.server)}", highlight=False)
        console.print(
            f"  turns red  {', '.join(known.kills) or f'nothing yet: {known.unseen}'}", highlight=False
        )
        console.print(f"  as in      {', '.join(known.upstream) or '-'}\n", highlight=False)
    counted = f"{len(found)} fault{'s' * (len(found) != 1)}"
    console.print(f"{counted}; with --enable-faults, name one in the header x-tokenwire-fault")
