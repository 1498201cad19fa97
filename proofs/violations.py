"""Examples of violations of each requirement: run the reference engine with a fault, and keep what a check
prints.

    python -m proofs.violations                                 all requirements
    python -m proofs.violations --requirement finish-lost       only this requirement; repeatable

The failures are kept in `docs_build/violations/`, in a small file for each requirement, so that the site can
be built without an engine. A file shows a session: the two commands and their output.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from docs_build.requirement_pages import violation_of

from proofs.killing.asking import DECLARED, scenarios_for, settings_for
from proofs.killing.serving import WITH_PARROT, flags_of, serve, servers_for
from tokenwire.ask import Budget
from tokenwire.asking.run import Plan, Progress, Unreached, interrogate
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.verdict import Verdict
from tokenwire.report.document import row
from tokenwire.report.failure import failure
from tokenwire.report.subject import Subject
from tokenwire.requirement import Requirement, load_requirements
from tokenwire_faults.catalogue import load_faults
from tokenwire_reference.doors.fault_package import HEADER

SHOWN_URL = "http://127.0.0.1:30000"
"""The server's address in the examples, in place of the real one."""
_RED = {Verdict.FAIL, Verdict.WARN, Verdict.INFO}
_READABLE = ("script-characters", "script-stops")
"""Scenarios in which a parrot returns sentences that a person can read."""
_TIMEOUT_S = 60
_LONGEST_LINE = 240


def session(judgement: Judgement, subject: Subject, *, fault: str, flags: str) -> str:
    """Return the commands and the output of a failure, without the sentence, which the page shows."""
    requirement, capability = judgement.requirement, DECLARED.get(judgement.scenario)
    model = "" if "--model" in flags.split() else " --model builtin:tiny"
    serve = f"$ tokenwire-reference serve{model} --port 30000"
    worker = f" --worker {SHOWN_URL}" if judgement.scenario == "gateway" else ""
    declared = f" --declare {capability}" if capability else ""
    commands = (
        f"{serve} \\\n    --sampling-backend mirror --enable-faults {flags}".rstrip(),
        f"$ tokenwire check --target {SHOWN_URL}{worker}{declared} \\\n"
        f"    --header '{HEADER}: {fault}' \\\n"
        f"    --requirement {requirement.id} --scenario {judgement.scenario}",
    )
    words = failure(row(judgement, subject), without=("sentence", "looks like", "again"))
    shown = "\n".join([*commands, words]).replace(subject.url, SHOWN_URL)
    return "\n".join(_cut(line) for line in shown.splitlines()).rstrip() + "\n"


def _cut(line: str) -> str:
    longest = None if line.startswith("$") else _LONGEST_LINE
    return line if longest is None or len(line) <= longest else line[: longest - 1].rstrip() + "…"


async def _ask(url: str, fault: str, scenarios: Iterable[str], wanted: Sequence[Requirement]) -> Subject:
    settings = settings_for(url, tuple(scenarios), _TIMEOUT_S)
    if not set(_READABLE).isdisjoint(settings.scenario):
        settings = replace(settings, budget=Budget.QUICK)  # the sentences are the same with fewer intervals
    subject = await interrogate(Plan(settings, headers=((HEADER, fault),)), Progress())
    if isinstance(subject, Unreached):
        raise RuntimeError(  # noqa: TRY004  # the server did not answer
            f"{fault}, run for {', '.join(item.id for item in wanted)}: {subject.diagnosis}"
        )
    return subject


def violations(
    url: str, fault: str, flags: str, scenarios: Iterable[str], wanted: Sequence[Requirement]
) -> set[str]:
    """Check a server with a fault, and keep the failures of the wanted requirements. Return the names of
    these requirements.
    """
    subject = asyncio.run(_ask(url, fault, scenarios, wanted))
    shown: set[str] = set()
    for judgement in sorted(
        judge(subject.runs, wanted), key=lambda judgement: judgement.scenario not in _READABLE
    ):
        name = judgement.requirement.id
        if judgement.verdict in _RED and judgement.violations and name not in shown:
            violation_of(name).write_text(session(judgement, subject, fault=fault, flags=flags), "utf-8")
            shown.add(name)
    return shown


def _readable_first(servers: Sequence[str]) -> list[str]:
    """Return the servers that show a fault. Before each server without `--model`, insert the same server with
    the parrot.
    """
    parrots = [
        f"{server.removesuffix(WITH_PARROT)}{WITH_PARROT}"
        for server in servers
        if "--model" not in server.split()
    ]
    return list(dict.fromkeys((*parrots, *servers)))


def show(missing: set[str]) -> set[str]:
    """Violate the missing requirements, fault by fault. Faults that violate many of them come first. Return
    the requirements that were not violated.
    """
    rows, missing = load_requirements(), set(missing)
    lasting = [fault for fault in load_faults().values() if not fault.ends_the_server]
    faults = [fault for fault in lasting if missing & set(fault.kills)]
    trials = [(fault, server) for fault in faults for server in _readable_first(servers_for(fault))]
    for server in dict.fromkeys(server for _, server in trials):
        here = [fault for fault, other in trials if other == server]
        with serve([server]) as urls:
            while here:
                fault = max(here, key=lambda item: len(missing & set(item.kills)))
                here.remove(fault)
                named = [rows[name] for name in fault.kills if name in missing]
                wanted = [row for row in named if row.oracle != "script" or server.endswith(WITH_PARROT)]
                if wanted:
                    flags, scenarios = " ".join(flags_of(server)), set(scenarios_for(fault.name))
                    if server.endswith(WITH_PARROT):
                        scenarios.update(_READABLE)
                    shown = violations(urls[server], fault.name, flags, scenarios, wanted)
                    missing -= shown
                    print(
                        f"{fault.name} on {server}: {', '.join(sorted(shown)) or 'nothing'}", file=sys.stderr
                    )
    return missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the examples. Return 1 if a requirement was not violated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--requirement", action="append", default=[], choices=load_requirements(), metavar="ID"
    )
    asked = parser.parse_args(arguments).requirement
    killing = [name for name, row in load_requirements().items() if row.kills]
    missing = show(set(asked or killing))
    for name in sorted(missing):
        print(f"{name}: its faults do not violate it", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
