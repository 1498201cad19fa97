"""Stores exchanges as tests: a capture with its expected verdicts, a scenario, and command lines."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from tokenwire.asking.scenario_file import as_scenario_file
from tokenwire.baselines.expected import judged
from tokenwire.report.reproduction import curl
from tokenwire.wire.capture import exchange_lines
from tokenwire.wire.exchange import Exchange

_UNSAFE = re.compile(r"[^a-z0-9]+")


def keep(
    folder: Path,
    name: str,
    exchanges: Sequence[tuple[Exchange, str]],
    urls: Sequence[str],
    asked_with: Sequence[str] = (),
) -> list[str]:
    """Store exchanges. Each has the URL of its server. Return shell commands that use the stored files, and
    that check the servers at `urls`.

    Raises OSError and UsageError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = _free(folder, _UNSAFE.sub("-", name.lower()).strip("-") or "found")
    capture, scenario = folder / f"{name}.jsonl.gz", folder / f"{name}.yaml"
    lines = (json.dumps(line) for exchange, _ in exchanges for line in exchange_lines(exchange))
    capture.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    for case in judged(capture):
        case.update()
    requests = {f"request-{number}": kept.request for number, (kept, _) in enumerate(exchanges, 1)}
    scenario.write_text(as_scenario_file(name, "Found by hand.", requests), "utf-8")
    asked = (*asked_with, "--scenario-file", str(scenario))
    return [
        *(curl(exchange, url) for exchange, url in exchanges),
        shlex.join(["tokenwire", "replay", str(capture)]),
        shlex.join(["tokenwire", "replay", "--diff", str(capture)]),
        *(shlex.join(["tokenwire", "check", "--target", url, *asked]) for url in urls),
    ]


def _free(folder: Path, name: str) -> str:
    """Return the name. If the name is in use, append a number."""
    taken = {path.name.partition(".")[0] for path in folder.iterdir()}
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 2)))
    return next(free for free in names if free not in taken)
