"""The page of clients: what `tokenwire torture` says of each, and why a cell is red.

    python -m docs_build.client_results FOLDER     from FOLDER/CLIENT/report.json, after `nox -s clients`

`client_reasons.yaml` says of each red cell what in the client's source makes it so, or that it is ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs_build.page import in_cell
from docs_build.published import ROOT
from tokenwire.spec_files import read_yaml
from tokenwire.torture.vectors import sentences

PAGE = ROOT / "docs" / "clients.md"
REASONS = Path(__file__).with_name("client_reasons.yaml")
_MARKS = {"PASS": "✓", "FAIL": "✗", "WARN": "!"}
_LONGEST = 160
_INTRODUCTION = """# Results of clients

What `tokenwire torture` says of clients as their documentation shows them: `nox -s clients` runs the
adapters in `examples/clients/` and writes this page. A row is a sentence of `spec/clients.yaml`, over all
doors that a client was tried at. ✓ it holds, ✗ a MUST is not kept, ! a SHOULD is not kept; an empty cell was
not tried. [Test your client](guides/test-your-client.md) says how yours is.
"""


def red_cells(report: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """The door, the sentence and the row of each red cell of a report."""
    return [
        (row["scenario"], row["requirement"], row)
        for row in report["verdicts"]
        if row["verdict"] in {"FAIL", "WARN"}
    ]


def page(reports: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, Mapping[str, str]]) -> str:
    """The page. Raises ValueError for a red cell without a reason."""
    lines = [_INTRODUCTION, f"| sentence | {' | '.join(reports)} |", "|---" * (len(reports) + 1) + "|"]
    for name, sentence in sentences().items():
        cells = []
        for report in reports.values():
            seen = {row["verdict"] for row in report["verdicts"] if row["requirement"] == name}
            cells.append(next((mark for verdict, mark in _marks_gravest_first() if verdict in seen), ""))
        lines.append(f"| `{name}` ({sentence.level.value}) | {' | '.join(cells)} |")
    for client, report in reports.items():
        lines += ["", f"## {client}", "", _doors(report), ""]
        found = red_cells(report)
        if found:
            lines += ["| door | sentence | cases | first of them | why |", "|---|---|---|---|---|"]
        for door, name, row in found:
            why = reasons.get(client.partition(" ")[0], {}).get(name)
            if why is None:
                raise ValueError(f"{REASONS.name} does not say why {client} breaks {name}")
            first = row["evidence"][0]
            told = (
                f"{first['message']}; expected {_short(first['expected'])}, holds {_short(first['actual'])}"
            )
            lines.append(f"| {door} | `{name}` | {len(row['evidence'])} | {in_cell(told)} | {in_cell(why)} |")
    return "\n".join(lines) + "\n"


def _marks_gravest_first() -> list[tuple[str, str]]:
    return [(verdict, _MARKS[verdict]) for verdict in ("FAIL", "WARN", "PASS")]


def _doors(report: Mapping[str, Any]) -> str:
    doors = dict.fromkeys(row["scenario"] for row in report["verdicts"])
    return f"Tried at {', '.join(doors)}. {'; '.join(report['target']['remarks'])}."


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def main(arguments: Sequence[str] | None = None) -> int:
    (folder,) = sys.argv[1:] if arguments is None else arguments
    reports = {}
    for file in sorted(Path(folder).glob("*/report.json")):
        report = json.loads(file.read_text("utf-8"))
        reports[report["target"]["capture"]] = report
    PAGE.write_text(page(reports, read_yaml(REASONS)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
