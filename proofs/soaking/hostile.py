"""Check hostile servers with the suite: it must always write a report, within bounded memory and time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from proofs.hostile_servers import HostileServer, drawn
from proofs.soaking.figures import Figures
from proofs.soaking.serving import PATIENCE_S
from tokenwire.judging.verdict import ExitStatus

MOST_MEMORY = 300_000_000
"""The maximum memory of a check of a hostile server, in bytes."""


@dataclass(frozen=True)
class HostileTrial:
    """The result of a check of a hostile server."""

    fault: str
    """The error of the check; empty if there was none."""
    seconds: float
    megabytes: float


def checked(seed: int) -> HostileTrial:
    """Check the hostile server of a seed with the command line."""
    with tempfile.TemporaryDirectory() as folder, HostileServer(drawn(seed)) as server:
        report, errors = Path(folder, "report.json"), Path(folder, "errors")
        command = [sys.executable, "-m", "tokenwire", "check", "--target", server.url, "--timeout", "1"]
        begun = time.monotonic()
        with errors.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--json", str(report)], stdout=subprocess.DEVNULL, stderr=log, cwd=folder
            )
        overdue = threading.Timer(PATIENCE_S, process.kill)
        overdue.start()
        _, ended, usage = os.wait4(process.pid, 0)
        overdue.cancel()
        process.returncode = status = os.waitstatus_to_exitcode(ended)
        fault = ""
        if status not in {ExitStatus.CONFORMS, ExitStatus.VIOLATION, ExitStatus.NOTHING_EVALUATED}:
            fault = f"status {status}: {errors.read_text('utf-8', 'replace')[-300:]}"
        elif "Traceback" in errors.read_text("utf-8", "replace"):
            fault = "a traceback"
        elif not report.exists() or json.loads(report.read_text("utf-8"))["summary"]["HARNESS_ERROR"]:
            fault = "no report, or a HARNESS_ERROR"
        elif usage.ru_maxrss * 1024 > MOST_MEMORY:
            fault = f"{usage.ru_maxrss * 1024 / 1e6:.0f} MB"
        return HostileTrial(fault, time.monotonic() - begun, usage.ru_maxrss * 1024 / 1e6)


async def hostile(figures: Figures, servers: int, seed: int) -> None:
    """Check `servers` hostile servers, several at the same time, because most of them let the suite wait."""
    slots = asyncio.Semaphore(4)

    async def trial_of(number: int) -> HostileTrial:
        async with slots:
            return await asyncio.to_thread(checked, number)

    trials = await asyncio.gather(*(trial_of(seed + number) for number in range(servers)))
    faults = {seed + number: trial.fault for number, trial in enumerate(trials) if trial.fault}
    figures.demand(
        f"the suite against {servers} hostile servers",
        f"a report, less than {MOST_MEMORY / 1e6:.0f} MB and {PATIENCE_S} s",
        f"{servers - len(faults)} reports, at most {max(item.megabytes for item in trials):.0f} MB and "
        f"{max(item.seconds for item in trials):.0f} s" + (f"; by seed: {faults}" if faults else ""),
        holds=not faults,
    )
