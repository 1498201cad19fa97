"""`tokenwire-reference faults`: the catalogue, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import fields

from rich.console import Console
from rich.text import Text

from tokenwire_faults.catalogue import KnownFault, load_faults

_LISTED = (*(field.name for field in fields(KnownFault) if field.name != "acts"), "kills")


def faults_as_json() -> str:
    """The catalogue as a JSON list; the keys are those of `KnownFault`."""
    return json.dumps(
        [{name: getattr(fault, name) for name in _LISTED} for fault in load_faults().values()], indent=2
    )


def print_faults(console: Console) -> None:
    """Print the catalogue, a paragraph for each fault."""
    for known in load_faults().values():
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
    console.print(
        f"{len(load_faults())} faults; with --enable-faults, name one in the header x-tokenwire-fault"
    )
