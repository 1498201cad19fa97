"""The matrix as text: for a terminal, and as JSON."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proofs.killing.matrix import Matrix


def last_line(matrix: Matrix) -> str:
    """Return a summary of the matrix in one line."""
    kills = len(matrix.cells.keys() & matrix.named)
    return (
        f"{len(matrix.killed)} of {len(matrix.to_kill)} faults killed in {len(matrix.trials)} trials; "
        f"{len(matrix.killing)} of {len(matrix.demanded)} requirements kill; {kills} kills, "
        f"{len(matrix.cells.keys() & matrix.consequences)} consequences, {len(matrix.kindred)} kindred, "
        f"{len(matrix.unexpected)} unexpected; {len(matrix.complaints)} complaints"
    )


def print_matrix(console: Console, matrix: Matrix, seconds: float) -> None:
    """Print each requirement with the faults that it killed, then the related kills and complaints, then a
    summary.
    """
    table = Table("requirement", "kills", box=None, pad_edge=False, header_style="bold dim")
    kills = matrix.cells.keys() & matrix.named
    for requirement in matrix.demanded:
        faults = [fault for fault in matrix.faults if (requirement, fault) in kills]
        table.add_row(requirement, Text(", ".join(faults)) if faults else Text("nothing", style="bold red"))
    console.print(table)
    for requirement, fault in sorted(matrix.kindred):
        for server, kill in matrix.cells[requirement, fault].items():
            words = f"{requirement} is kindred of what {fault} kills, on {server}: {kill.message}"
            console.print(Text(words, style="yellow"), soft_wrap=True)
    for complaint in matrix.complaints:
        console.print(Text(complaint, style="red"), soft_wrap=True)
    console.print(Text(f"{last_line(matrix)}; {seconds:.0f} s", style="bold"), soft_wrap=True)


def as_json(matrix: Matrix) -> str:
    """Return the matrix as JSON: the trials with all kills, the expectations, and the complaints."""
    document = {
        "faults": {
            name: {"does": fault.does, "room": fault.room, "upstream": fault.upstream, "kills": fault.kills}
            for name, fault in matrix.faults.items()
        },
        "requirements": {name: row.sentence for name, row in matrix.requirements.items()},
        "trials": [
            {
                "fault": trial.fault,
                "server": trial.server,
                "kills": {
                    name: {"message": kill.message, "scenarios": sorted(kill.scenarios)}
                    for name, kill in trial.kills.items()
                },
                "failure": trial.failure,
            }
            for trial in matrix.trials
        ],
        "kindred": sorted(matrix.kindred),
        "complaints": matrix.complaints,
        "outcome": last_line(matrix),
    }
    return json.dumps(document, indent=1)
