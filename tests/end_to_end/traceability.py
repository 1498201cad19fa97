"""From sentence to check, faults and witnesses: `spec/TRACEABILITY.md`, made from a run of the reference.

`python tests/end_to_end/traceability.py` writes it anew, in minutes, together with `spec/scenarios.yaml`, by
which a report names the scenarios that would have shown a requirement. For a new requirement,
`--requirement ID --scenario NAME` asks only the scenarios that show it, and keeps all other lines.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.asking.scenario import load_scenarios
from tokenwire.checks.check import CHECKS, Check
from tokenwire.requirement import Requirement, load_requirements
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire_faults.catalogue import KnownFault

PAGE = spec_root() / "TRACEABILITY.md"
SCENARIOS = spec_root() / "scenarios.yaml"
MOST_SCENARIOS = 12
"""What more scenarios than these show, nearly all do."""
_SCENARIOS_HEAD = """\
# The scenarios that show a requirement, where few do: a report names those that a run did not ask.
# Written by tests/end_to_end/traceability.py from runs of the reference engine; a test holds it against them.
"""
_HEAD = """\
# Traceability

<!-- Written by tests/end_to_end/traceability.py; a test holds it against a run of the reference engine. -->

Every sentence of the specification, the check that owns it, the faults of the reference engine that turn it
red, and where the reference was seen to keep it: how it was started, and in which scenario."""
_SHOWN = re.compile(
    r"^\| \*\*(?P<id>[a-z0-9-]+)\*\* .* \| (?P<configuration>[^|]+): `(?P<scenario>[^`|]+)` \|$", re.MULTILINE
)

_BY_TIMING = "depends on timing"

Shown = tuple[str, str]
"""A configuration and a scenario."""


def depends_on_timing(row: Requirement) -> bool:
    """Whether no two runs need show it alike: what decides is how fast the machine is."""
    return row.oracle == "arrival"


def gaps(
    rows: Mapping[str, Requirement], checks: Iterable[str], faults: Mapping[str, KnownFault]
) -> list[str]:
    """What is missing between sentences, checks and faults, in words."""
    checks = set(checks)
    live = {name for name, row in rows.items() if not row.excluded}
    found = [f"row {name} has neither a check nor a reason to have none" for name in sorted(live - checks)]
    found += [f"check {name} has no row" for name in sorted(checks - rows.keys())]
    found += [f"row {name} names no fault that turns it red" for name in sorted(live) if not rows[name].kills]
    found += [
        f"row {name} names {fault}, and there is no such fault"
        for name, row in rows.items()
        for fault in row.kills
        if fault not in faults
    ]
    named = {fault for row in rows.values() for fault in row.kills}
    found += [
        f"fault {name} is named by no row, and does not say why it is unseen"
        for name, fault in faults.items()
        if name not in named and not fault.unseen
    ]
    return found


def shown(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[Shown, int]]:
    """How many witnesses of each requirement were seen where it passed."""
    seen: dict[str, dict[Shown, int]] = {}
    for configuration, report in reports.items():
        for row in report["verdicts"]:
            if row["verdict"] in {"PASS", "INFO"} and row["witnesses"]:
                seen.setdefault(row["requirement"], {})[configuration, row["scenario"]] = row["witnesses"]
    return seen


def scenarios(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The scenarios that show each requirement, without those that most of them show."""
    known, seen = load_scenarios(), shown(reports)
    found = {
        row: {scenario for _, scenario in seen.get(row, {})} & known.keys() for row in load_requirements()
    }
    return {row: sorted(names) for row, names in found.items() if 0 < len(names) <= MOST_SCENARIOS}


def write_scenarios(found: Mapping[str, Iterable[str]]) -> None:
    rows = (f"{row}: [{', '.join(names)}]\n" for row, names in found.items())
    SCENARIOS.write_text(_SCENARIOS_HEAD + "".join(rows), "utf-8")


def read_page(written: str) -> dict[str, Shown]:
    """Where the page says that each requirement was seen."""
    return {match["id"]: (match["configuration"], match["scenario"]) for match in _SHOWN.finditer(written)}


def places_not_asked(written: str, reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the page says was seen in a place that no run asks.

    Whether a run sees it there again may depend on timing: a batch is preempted where its requests arrive
    together. That each row is seen somewhere is another test.
    """
    asked = {
        (configuration, row["scenario"])
        for configuration, report in reports.items()
        for row in report["verdicts"]
    }
    return [
        f"{name} is not asked in {scenario} ({configuration})"
        for name, (configuration, scenario) in read_page(written).items()
        if (configuration, scenario) not in asked
    ]


def page(reports: Mapping[str, Mapping[str, Any]], *, like: str = "") -> str:
    """The page; where `like` says that a requirement was seen, this one says the same."""
    before, seen = read_page(like), shown(reports)
    lines = [_HEAD]
    chapter = ""
    for row in load_requirements().values():
        if row.chapter != chapter:
            chapter = row.chapter
            lines += [
                f"\n## {chapter}\n",
                "| sentence | check | faults | witnesses, at least | seen, for example, in |",
                "|---|---|---|---|---|",
            ]
        where = before.get(row.id) or _most(seen.get(row.id, {}))
        lines.append(_line(row, CHECKS.get(row.id), where))
    return "\n".join(lines) + "\n"


def _most(seen: Mapping[Shown, int]) -> Shown | None:
    """The place whose scenario shows it in most configurations: the least likely to be there by chance."""
    spread = Counter(scenario for _, scenario in seen)
    return max(seen, key=lambda place: (spread[place[1]], seen[place], place), default=None)


def _line(row: Requirement, check: Check | None, where: Shown | None) -> str:
    sentence = f"**{row.id}** {row.sentence}".replace("|", "\\|")
    if row.excluded:
        return f"| {sentence} | excluded: {row.excluded} | | | |"
    faults = ", ".join(f"`{fault}`" for fault in row.kills)
    place = _BY_TIMING if depends_on_timing(row) else f"{where[0]}: `{where[1]}`" if where else ""
    return f"| {sentence} | {_name(check) if check else ''} | {faults} | {row.witnesses} | {place} |"


def _name(check: Check) -> str:
    function = check.function
    module = getattr(function, "__module__", "").rpartition(".")[2]
    return f"`{module}.{getattr(function, '__name__', '')}`"


def merged_scenarios(
    found: Mapping[str, list[str]], written: Mapping[str, list[str]], known: Collection[str]
) -> dict[str, list[str]]:
    """Return the scenarios as written, and those that a narrow run found of some requirements.

    `known`: requirements that were seen before. If one is not written, nearly all scenarios show it.
    """
    merged = {row: sorted({*written.get(row, ()), *found.get(row, ())}) for row in load_requirements()}
    return {row: names for row, names in merged.items() if names and (row in written or row not in known)}


@contextlib.contextmanager
def _reports(*words: str) -> Iterator[dict[str, Any]]:
    """Check the reference in all configurations. `words` follow those of each configuration."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from conftest import reference_server
    from reference_configurations import CONFIGURATIONS, check

    with contextlib.ExitStack() as servers, tempfile.TemporaryDirectory() as folder:
        reports = {}
        for place, name in enumerate(CONFIGURATIONS):
            results = Path(folder) / str(place)
            results.mkdir()
            reports[name] = check(
                name, lambda *flags: servers.enter_context(reference_server(flags)), results, *words
            )
        yield reports


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requirement", action="append", default=[], metavar="ID", choices=sorted(CHECKS))
    parser.add_argument(
        "--scenario", action="append", default=[], metavar="NAME", choices=sorted(load_scenarios())
    )
    asked = parser.parse_args()
    if bool(asked.requirement) != bool(asked.scenario):
        parser.error("--requirement and --scenario belong together; give both or neither")
    requirements = asked.requirement
    words = [word for scenario in asked.scenario for word in ("--scenario", scenario)]
    words += [word for requirement in requirements for word in ("--requirement", requirement)]
    with _reports(*words) as reports:
        found, like = scenarios(reports), ""
        if requirements:
            like = PAGE.read_text("utf-8")
            found = merged_scenarios(found, read_yaml(SCENARIOS), read_page(like))
        PAGE.write_text(page(reports, like=like), "utf-8")
        write_scenarios(found)


if __name__ == "__main__":
    main()
