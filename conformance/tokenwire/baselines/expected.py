"""Expected verdicts of captures, stored in files beside the captures, and comparison with the present
verdicts.

`<case>.expected.yaml`, beside `<case>.jsonl.gz`, lists the violated requirements with the violating
exchanges, and the remarks (INFO). It also names the folder of the model's tokenizer. Requirements that pass
or were not evaluated are not listed. So a new requirement changes only the files of captures that violate it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import yaml

from tokenwire.checks.evidence import Observation
from tokenwire.dialects.recognition import DialectResolver
from tokenwire.foreign_files import read_foreign_yaml
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.replay import SUFFIXES, captures, read_run
from tokenwire.report.wording import cut, first_few, where
from tokenwire.requirement import Requirement
from tokenwire.target.tokenizer import LocalTokenizer
from tokenwire.usage_error import UsageError
from tokenwire.wire.inert import inert

_VIOLATED = (Verdict.HARNESS_ERROR, Verdict.FAIL, Verdict.WARN)
_LISTED = (*_VIOLATED, Verdict.INFO)
"""The verdicts that a file lists. PASS in an older file is ignored."""
_MOST_NAMED = 3


@dataclass(frozen=True)
class _Outcome:
    """The verdict on a requirement, over all scenarios of a capture."""

    verdict: Verdict
    exchanges: frozenset[str] = frozenset()
    """The exchanges that violate the requirement."""


@dataclass(frozen=True)
class _Expected:
    """The contents of a file of expected verdicts."""

    outcomes: Mapping[str, _Outcome]
    """The listed verdicts, by requirement."""
    tokenizer: str = ""
    """The folder of the model's tokenizer, relative to the file. Empty if the tokenizer is unknown."""


@dataclass(frozen=True)
class Judged:
    """A capture with its present verdicts and its expected verdicts."""

    file: Path
    """The path of the file of expected verdicts. It may not exist."""
    outcomes: Mapping[str, _Outcome]
    """The present verdicts by requirement, including PASS."""
    evidence: Mapping[str, Observation]
    """The first violation of each violated requirement."""
    expected: _Expected | None
    """The expected verdicts. None if the file of expected verdicts does not exist."""
    unjudged: Mapping[str, _Outcome]
    """Expected verdicts on requirements that were not judged this time."""
    judgements: Sequence[Judgement]
    """The judgements that the present verdicts summarize."""

    def update(self) -> None:
        """Write the present verdicts into the file.

        Expected verdicts on requirements that were not judged this time stay in the file.
        """
        tokenizer = self.expected.tokenizer if self.expected else ""
        self.file.write_text(_written(_Expected({**self.unjudged, **self.outcomes}, tokenizer)), "utf-8")


def expected_file(capture: str) -> Path:
    """Return the path of the expected verdicts for a capture, which is a file or a folder."""
    suffix = next((suffix for suffix in SUFFIXES if capture.endswith(suffix)), "")
    return Path(capture.removesuffix(suffix) + ".expected.yaml")


def read_expected(path: Path) -> _Expected:
    """Read a file of expected verdicts. Raises UsageError and OSError."""
    try:
        table = read_foreign_yaml(path)
        tokenizer = table.pop("tokenizer", "")
        outcomes = {
            name: _Outcome(Verdict(verdict), frozenset(rows[name] if isinstance(rows, dict) else ()))
            for verdict, rows in table.items()
            for name in rows
            if Verdict(verdict) in _LISTED
        }
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a file of expected verdicts ({error}); rewrite it with --update"
        ) from error
    return _Expected(outcomes, tokenizer)


def _written(expected: _Expected) -> str:
    table: dict[str, object] = {"tokenizer": expected.tokenizer} if expected.tokenizer else {}
    for verdict in _LISTED:
        rows = {
            name: outcome for name, outcome in sorted(expected.outcomes.items()) if outcome.verdict is verdict
        }
        if rows and verdict in _VIOLATED:
            table[verdict.value] = {name: sorted(row.exchanges) for name, row in rows.items()}
        elif rows:
            table[verdict.value] = list(rows)
    return yaml.safe_dump(table, sort_keys=False, width=110, default_flow_style=False)


def _outcomes(judgements: Iterable[Judgement]) -> tuple[dict[str, _Outcome], dict[str, Observation]]:
    outcomes: dict[str, _Outcome] = {}
    evidence: dict[str, Observation] = {}
    by_requirement = attrgetter("requirement.id")
    for name, group in groupby(sorted(judgements, key=by_requirement), key=by_requirement):
        rows = list(group)
        verdict = overall(row.verdict for row in rows)
        violations = [violation for row in rows if row.verdict is verdict for violation in row.violations]
        if verdict in _LISTED or verdict is Verdict.PASS:
            is_red = verdict in _VIOLATED
            exchanges = frozenset(violation.place.exchange for violation in violations if is_red)
            outcomes[name] = _Outcome(verdict, exchanges)
        if violations:
            evidence[name] = violations[0]
    return outcomes, evidence


def judged(path: Path, requirements: Collection[Requirement] | None = None) -> Iterator[Judged]:
    """Judge the captures at a path one by one. A file with expected verdicts beside it is a capture.

    The expected verdicts of a capture name its tokenizer. `requirements`: the requirements to judge; None for
    all. Raises UsageError and OSError.
    """
    for name, exchanges in captures(path, is_whole=lambda file: expected_file(str(file)).is_file()):
        file = expected_file(name)
        expected = read_expected(file) if file.is_file() else None
        folder = file.parent / expected.tokenizer if expected and expected.tokenizer else None
        tokenizer = LocalTokenizer(folder) if folder else None
        run, _ = read_run(exchanges, DialectResolver(exchanges), name, tokenizer)
        judgements = judge([run], requirements)
        outcomes, evidence = _outcomes(judgements)
        unjudged: dict[str, _Outcome] = {}
        if expected is not None and requirements is not None:
            ids = {requirement.id for requirement in requirements}
            unjudged = {name: was for name, was in expected.outcomes.items() if name not in ids}
        yield Judged(file, outcomes, evidence, expected, unjudged, judgements)


def difference(judged: Judged) -> list[str]:
    """Return a line for each requirement whose verdict is not the expected one."""
    if judged.expected is None:
        return [f"has no expected verdicts beside it ({judged.file.name}); --update writes them"]
    was, now = judged.expected.outcomes, judged.outcomes
    listed = {name for name, outcome in now.items() if outcome.verdict in _LISTED}
    return [
        _line(name, was.get(name), now.get(name), judged.evidence.get(name))
        for name in sorted((was.keys() | listed) - judged.unjudged.keys())
        if was.get(name) != now.get(name)
    ]


def _line(name: str, was: _Outcome | None, now: _Outcome | None, evidence: Observation | None) -> str:
    before = _in_words(was) if was is not None else "not listed"
    words = f"{name}: {before} → {_in_words(now)}"
    if was is not None and now is not None and was.verdict is now.verdict:
        words += "; " + "; ".join(
            f"{which} {first_few(sorted(exchanges), _MOST_NAMED)}"
            for which, exchanges in (
                ("also", now.exchanges - was.exchanges),
                ("no longer", was.exchanges - now.exchanges),
            )
            if exchanges
        )
    if evidence is not None:
        words += f"\n    {where(evidence.place)}: {cut(evidence.message, 200)}"
    return inert(words)


def _in_words(outcome: _Outcome | None) -> str:
    if outcome is None:
        return "not evaluated"
    return f"{outcome.verdict} ({len(outcome.exchanges)})" if outcome.exchanges else str(outcome.verdict)
