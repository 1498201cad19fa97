"""The sentences from two changes of SGLang's output side: each must be decided, or the reason must be known.

The specification began with reports about these changes (spec/sources.md): `customized_info` in incremental
streams, and a separate component for output. With the engine of `tokenwire engine`, each of their sentences
must be PASS or FAIL. A sentence is UNSUPPORTED if it needs an option without which the server was started.

    python -m proofs.seed_sentences REPORT…        reports that `tokenwire check --json` wrote
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1] / "spec" / "sources.md"
CHANGES = ("27205", "25634")
DECIDED = frozenset({"PASS", "FAIL", "WARN"})
OPTIONAL = {
    "customized-info-incremental": "incremental-customized-info",
    "incremental-ids-are-new": "incremental",
    "logprobs-incremental": "incremental",
    "customized-info-cumulative": "cumulative",
    "cumulative-series-extend": "cumulative",
    "left-stream-is-ended": "load-report",
    "left-request-is-ended": "load-report",
    "results-stand-in-order": "results",
}
"""Requirements that need a capability that not every server has. A server has one of the two delivery modes,
the load comes from a scheduler, and results come from a server for embeddings.
"""


def rows() -> tuple[str, ...]:
    """Return the requirements with the statements of the changes, in the order of the table."""
    lines = SOURCES.read_text("utf-8").splitlines()
    cells = [line.split("|")[3] for line in lines if line.startswith(tuple(f"| {one}-" for one in CHANGES))]
    return tuple(dict.fromkeys(name for cell in cells for name in re.findall(r"`([a-z0-9-]+)`", cell)))


def undecided(verdicts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each requirement that is not decided in a report, with the reason in the report."""
    for name in rows():
        found = [row for row in verdicts if row["requirement"] == name]
        if any(row["verdict"] in DECIDED for row in found):
            continue
        reason = "; ".join(f"{row['verdict']}: {row['message']}" for row in found) or "not in the report"
        if not reason.startswith(f"UNSUPPORTED: {OPTIONAL.get(name)}:"):
            yield name, reason


def main() -> int:
    """Print the undecided requirements of each report."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    status = 0
    for path in sys.argv[1:]:
        report = json.loads(Path(path).read_text("utf-8"))
        left = dict(undecided(report["verdicts"]))
        for name, reason in left.items():
            print(f"{name}: {reason}")
        print(f"{path}: {len(rows()) - len(left)} of {len(rows())} sentences are decided")
        status |= bool(left)
    return status


if __name__ == "__main__":
    sys.exit(main())
