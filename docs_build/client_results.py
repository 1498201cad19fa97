"""The page of clients: what `tokenwire torture` says of each, and why a cell is red.

    python -m docs_build.client_results FOLDER     from FOLDER/CLIENT/report.json, after `nox -s clients`

`client_reasons.yaml` says of each red cell which place in the client's source makes it so, or that it is
ours; the place is looked up in FOLDER/environments/CLIENT.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs_build.page import template
from docs_build.published import ROOT
from tokenwire.judging.verdict import Verdict
from tokenwire.spec_files import read_yaml
from tokenwire.typed_table import typed
from tokenwire_clients.vectors import sentences

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
    clients = [_client(name, report, reasons, environments) for name, report in reports.items()]
    return template("clients").render(clients=clients, sentences=sentences(), marks=_MARKS)


def _client(
    name: str,
    report: Mapping[str, Any],
    reasons: Mapping[str, Mapping[str, Reason]],
    environments: Path,
) -> dict[str, Any]:
    """Return what the page shows of a client: its rows, and its red sentences with their reasons."""
    package, rows = name.partition(" ")[0], report["verdicts"]
    red = [row for row in rows if row["verdict"] in {Verdict.FAIL, Verdict.WARN}]
    shown = []
    for sentence in dict.fromkeys(row["requirement"] for row in red):
        reason = reasons.get(package, {}).get(sentence)
        if reason is None:
            raise ValueError(f"{REASONS.name} does not say why {name} breaks {sentence}")
        of_sentence = [row for row in red if row["requirement"] == sentence]
        why = reason.in_words(environments / package)
        shown.append({"sentence": sentence, "rows": of_sentence, "why": why})
    given_up = (row for row in rows if row["verdict"] == Verdict.INCONCLUSIVE)
    unread = dict.fromkeys(f"{row['scenario']}/{row['message']}" for row in given_up)
    remarks = [*report["target"]["remarks"][:2], *unread]
    return {"name": name, "rows": rows, "red": shown, "remarks": remarks}


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
