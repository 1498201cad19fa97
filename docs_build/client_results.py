"""The page of clients: the results of `tokenwire torture` for each client, and the reasons for red cells.

    python -m docs_build.client_results FOLDER     from FOLDER/CLIENT/report.json, after `nox -s clients`

For each red cell, `client_reasons.yaml` names the place in the client's source that causes it, or explains
that Tokenwire causes it. The place is looked up in FOLDER/environments/CLIENT.
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
"""The verdicts, from the most serious on. A cell combines all endpoints of a client."""
Reports = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Reason:
    """The reason why a client violates a sentence."""

    why: str
    file: str = ""
    """The file of the client that causes the violation; empty if Tokenwire's adapter causes it."""
    code: str = ""
    """The code at that place."""

    def in_words(self, environment: Path) -> str:
        """Return the reason with the line of the source. Raises ValueError if the source does not contain the
        line.
        """
        if not self.file:
            return f"Ours. {self.why}"
        for found in environment.rglob(self.file):
            for number, line in enumerate(found.read_text("utf-8").splitlines(), 1):
                if self.code in line:
                    return f"{self.why} `{self.file}`, line {number}: `{line.strip()}`"
        raise ValueError(f"{self.file} in {environment} does not contain {self.code!r}; find the new reason")


def load_reasons() -> dict[str, dict[str, Reason]]:
    """Return the reasons by client and sentence."""
    return {
        client: {name: typed(Reason, row, f"reason {client}/{name}") for name, row in rows.items()}
        for client, rows in read_yaml(REASONS).items()
    }


def page(reports: Reports, reasons: Mapping[str, Mapping[str, Reason]], environments: Path) -> str:
    """Return the page. Raises ValueError for a red cell without a reason, and for a reason whose source has
    changed.
    """
    clients = [_client(name, report, reasons, environments) for name, report in reports.items()]
    return template("clients").render(clients=clients, sentences=sentences(), marks=_MARKS)


def _client(
    name: str,
    report: Mapping[str, Any],
    reasons: Mapping[str, Mapping[str, Reason]],
    environments: Path,
) -> dict[str, Any]:
    """Return the content of the page for one client: its rows, and its red sentences with their reasons."""
    package, rows = name.partition(" ")[0], report["verdicts"]
    red = [row for row in rows if row["verdict"] in {Verdict.FAIL, Verdict.WARN}]
    shown = []
    for sentence in dict.fromkeys(row["requirement"] for row in red):
        reason = reasons.get(package, {}).get(sentence)
        if reason is None:
            raise ValueError(f"{REASONS.name} has no reason why {name} violates {sentence}")
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
