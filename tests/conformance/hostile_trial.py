"""Check each target of a list by the command line, all in this one process; tell how each check went.

`python hostile_trial.py FOLDER` reads a JSON object, by name, of URLs and time limits. It writes one of
results, with the most memory that the process ever held. Of time it tells how long the processor worked and
how often a limit was reached: neither depends on what else the machine does.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tokenwire.asking.recorder import Recorder
from tokenwire.cli import app
from tokenwire.wire.exchange import Ending, Exchange

send = Recorder.send
waits: list[Exchange] = []


async def send_and_count(recorder: Recorder, *what: Any, **how: Any) -> Exchange:
    exchange = await send(recorder, *what, **how)
    if exchange.ending is Ending.TIMEOUT:
        waits.append(exchange)
    return exchange


Recorder.send = send_and_count  # type: ignore[method-assign]  # this process is there for nothing else


def most_memory() -> int:
    """The most bytes that this process has had in memory (Linux)."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


def trial(url: str, timeout_s: float, report: Path) -> dict[str, Any]:
    words = ["check", "--target", url, "--timeout", str(timeout_s), "--json", str(report)]
    worked = time.process_time()
    waits.clear()
    ran = CliRunner().invoke(app, words)
    return {
        "exit": ran.exit_code,
        "crash": repr(ran.exception) if not isinstance(ran.exception, SystemExit | None) else "",
        "said": ran.output,
        "worked_s": time.process_time() - worked,
        "waits": len(waits),
        "report": json.loads(report.read_text("utf-8")),
        "most_memory": most_memory(),
    }


def main() -> None:
    report = Path(sys.argv[1], "report.json")
    results = {name: trial(url, timeout_s, report) for name, (url, timeout_s) in json.load(sys.stdin).items()}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
