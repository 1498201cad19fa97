"""The matrix as a single HTML page without network access and scripts. Rows are requirements, columns are
faults.
"""

from __future__ import annotations

from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined

from proofs.killing.matrix import Matrix
from proofs.killing.telling import last_line
from tokenwire.requirement import Requirement


def page(matrix: Matrix) -> str:
    """Return the matrix as an HTML document."""
    environment = Environment(
        loader=PackageLoader("proofs.killing", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rows = [matrix.requirements[name] for name in matrix.demanded]
    chapters: list[tuple[str, list[Requirement]]] = [
        (chapter, list(group)) for chapter, group in groupby(rows, key=lambda row: row.chapter)
    ]
    rooms = [
        (room, len(list(group)))
        for room, group in groupby(matrix.faults.values(), key=lambda fault: fault.room)
    ]
    return environment.get_template("page.html.jinja").render(
        matrix=matrix,
        outcome=last_line(matrix),
        chapters=chapters,
        rooms=rooms,
        survivors=set(matrix.to_kill) - set(matrix.killed),
        idle=set(matrix.demanded) - set(matrix.killing),
    )
