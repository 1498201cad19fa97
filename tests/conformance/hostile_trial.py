"""Check each target of a list by the command line, all in this one process; tell how each check went.

`python hostile_trial.py SECONDS FOLDER` reads a JSON object of URLs by name and writes one of results, with
the most memory that the process ever held.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tokenwire.cli import app


def most_memory() -> int:
    """The most bytes that this process has had in memory (Linux)."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


def trial(url: str, timeout_s: str, report: Path) -> dict[str, Any]:
    words = ["check", "--target", url, "--timeout", timeout_s, "--json", str(report)]
    started = time.monotonic()
    ran = CliRunner().invoke(app, words)
    return {
        "exit": ran.exit_code,
        "crash": repr(ran.exception) if not isinstance(ran.exception, SystemExit | None) else "",
        "said": ran.output,
        "seconds": time.monotonic() - started,
        "report": json.loads(report.read_text("utf-8")),
        "most_memory": most_memory(),
    }


def main() -> None:
    timeout_s, folder = sys.argv[1:]
    report = Path(folder, "report.json")
    results = {name: trial(url, timeout_s, report) for name, url in json.load(sys.stdin).items()}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
