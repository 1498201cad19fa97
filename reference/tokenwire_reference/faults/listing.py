"""`tokenwire-reference faults`: the catalogue, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import fields

from rich.console import Console
from rich.table import Table

from tokenwire_reference.faults.catalogue import KnownFault, load_faults

_TOLD = tuple(field.name for field in fields(KnownFault) if field.name != "make")


def faults_as_json() -> str:
    """The catalogue as a JSON list; the keys are those of `KnownFault`, with `room` and `does`."""
    told = (*_TOLD, "room", "does")
    return json.dumps(
        [{name: getattr(fault, name) for name in told} for fault in load_faults().values()], indent=2
    )


def print_faults(console: Console) -> None:
    """Print the catalogue as a table."""
    table = Table(title=f"{len(load_faults())} faults; name one in x-tokenwire-fault", show_lines=True)
    table.add_column("fault", no_wrap=True)
    for heading in ("kind", "what it does", "in", "like", "turns red"):
        table.add_column(heading)
    for known in load_faults().values():
        red = "\n".join(known.kills) or f"nothing yet: {known.unseen}"
        shows_in = "\n".join(known.shows_in)
        table.add_row(known.name, known.primitive, known.does, shows_in, "\n".join(known.upstream), red)
    console.print(table)
