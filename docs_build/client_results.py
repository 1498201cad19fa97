"""The page of clients: what `tokenwire torture` says of each, and why a cell is red.

    python -m docs_build.client_results FOLDER     from FOLDER/CLIENT/report.json, after `nox -s clients`

`client_reasons.yaml` says of each red cell which place in the client's source makes it so, or that it is
ours; the place is looked up in FOLDER/environments/CLIENT.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docs_build.page import in_cell
from docs_build.published import ROOT
from tokenwire.judging.verdict import Verdict
from tokenwire.spec_files import read_yaml
from tokenwire.torture.vectors import sentences
from tokenwire.typed_table import typed

PAGE = ROOT / "docs" / "clients.md"
REASONS = Path(__file__).with_name("client_reasons.yaml")
_MARKS = {
    Verdict.FAIL: "✗",
    Verdict.WARN: "!",
    Verdict.INCONCLUSIVE: "?",
    Verdict.PASS: "✓",
    Verdict.UNSUPPORTED: "–",
}
"""The gravest first: a cell is over all doors of a client."""
_LONGEST = 160
_INTRODUCTION = """# Results of clients

What `tokenwire torture` says of clients that are used as their documentation shows: `nox -s clients` runs the
adapters in `examples/clients/` and writes this page. A row is a sentence of `spec/clients.yaml`, over all
doors that a client was tried at. [Test your client](guides/test-your-client.md) tells how to try yours.

| | |
|---|---|
| ✓ | it holds |
| ✗ | a MUST is not kept; the reason is below |
| ! | a SHOULD is not kept |
| ? | the adapter gave up a case: its client took nothing more from the server |
| – | does not apply: the adapter reports nothing that the sentence is about |
| | not tried: the endpoint has no such case |
"""
Reports = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Reason:
    """The reason why a client breaks a sentence."""

    why: str
    file: str = ""
    """The file of the client that makes it so; empty where our adapter does."""
    code: str = ""
    """The code at that place."""

    def in_words(self, environment: Path) -> str:
        """Return the reason with the line of the source. Raises ValueError where the source says it
        no longer.
        """
        if not self.file:
            return f"Ours. {self.why}"
        for found in environment.rglob(self.file):
            for number, line in enumerate(found.read_text("utf-8").splitlines(), 1):
                if self.code in line:
                    return f"{self.why} `{self.file}`, line {number}: `{line.strip()}`"
        raise ValueError(f"{self.file} in {environment} no longer says {self.code!r}: find the reason anew")


def load_reasons() -> dict[str, dict[str, Reason]]:
    """Return the reasons by client and sentence."""
    return {
        client: {name: typed(Reason, row, f"reason {client}/{name}") for name, row in rows.items()}
        for client, rows in read_yaml(REASONS).items()
    }


def page(reports: Reports, reasons: Mapping[str, Mapping[str, Reason]], environments: Path) -> str:
    """Return the page. Raises ValueError for a red cell without a reason, and for a reason that no
    longer holds.
    """
    lines = [_INTRODUCTION, *_table(reports)]
    for client, report in reports.items():
        lines += ["", f"## {client}", "", _summary(report)]
        red = _red_rows(report)
        if red:
            lines += ["", "| sentence | at | cases | first of them | why |", "|---|---|---|---|---|"]
        for name, rows in red.items():
            package = client.partition(" ")[0]
            reason = reasons.get(package, {}).get(name)
            if reason is None:
                raise ValueError(f"{REASONS.name} does not say why {client} breaks {name}")
            doors = ", ".join(row["scenario"] for row in rows)
            cases, first = sum(len(row["evidence"]) for row in rows), rows[0]["evidence"][0]
            words = (
                f"{first['message']}; expected {_short(first['expected'])}, holds {_short(first['actual'])}"
            )
            cells = [f"`{name}`", doors, str(cases), words, reason.in_words(environments / package)]
            lines.append(f"| {' | '.join(map(in_cell, cells))} |")
    return "\n".join(lines) + "\n"


def _table(reports: Reports) -> Iterator[str]:
    """Yield a row for each sentence and a column for each client, in the style of the results of servers."""
    heads = "".join(f'<th class="tw-case">{escape(client)}</th>' for client in reports)
    yield f'<div class="tw-results"><table class="tw-table"><thead><tr><th></th>{heads}</tr></thead><tbody>'
    for name, sentence in sentences().items():
        cells = ""
        for report in reports.values():
            seen = {row["verdict"] for row in report["verdicts"] if row["requirement"] == name}
            verdict = next((verdict for verdict in _MARKS if verdict in seen), None)
            cells += f'<td class="tw-{verdict.lower()}">{_MARKS[verdict]}</td>' if verdict else "<td></td>"
        yield f'<tr title="{escape(sentence.sentence)}"><th>{name} ({sentence.level.value})</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _red_rows(report: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the red rows of a report by their sentence, one for each door."""
    red: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["verdicts"]:
        if row["verdict"] in {Verdict.FAIL, Verdict.WARN}:
            red.setdefault(row["requirement"], []).append(row)
    return red


def _summary(report: Mapping[str, Any]) -> str:
    doors = dict.fromkeys(row["scenario"] for row in report["verdicts"])
    given_up = dict.fromkeys(
        f"{row['scenario']}/{row['message']}"
        for row in report["verdicts"]
        if row["verdict"] == Verdict.INCONCLUSIVE
    )
    return f"Tried at {', '.join(doors)}. {'; '.join([*report['target']['remarks'][:2], *given_up])}."


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def main(arguments: Sequence[str] | None = None) -> int:
    (folder,) = map(Path, sys.argv[1:] if arguments is None else arguments)
    reports = {}
    for file in sorted(folder.glob("*/report.json")):
        report = json.loads(file.read_text("utf-8"))
        reports[report["target"]["capture"]] = report
    PAGE.write_text(page(reports, load_reasons(), folder / "environments"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
