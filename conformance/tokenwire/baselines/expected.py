"""Expected verdicts: what a capture was judged to be, in a file beside it, and what is different now.

`<case>.expected.yaml` stands beside `<case>.jsonl.gz`. It names the tokenizer of the model behind the
capture, where there is one, and lists the requirements under their verdicts; those that are violated with the
exchanges that violate them. What was not evaluated is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import yaml

from tokenwire.checks.evidence import Observation
from tokenwire.dialects.recognition import DialectResolver
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.replay import SUFFIXES, captures, read_run
from tokenwire.report.wording import cut, where
from tokenwire.requirement import Requirement
from tokenwire.spec_files import read_yaml
from tokenwire.target.tokenizer import LocalTokenizer

_VIOLATED = (Verdict.HARNESS_ERROR, Verdict.FAIL, Verdict.WARN)
_EVALUATED = (*_VIOLATED, Verdict.INFO, Verdict.PASS)
_NOT_EVALUATED = "not evaluated"
_MOST_NAMED = 3


@dataclass(frozen=True)
class Outcome:
    """The verdict on one requirement over all scenarios."""

    verdict: Verdict
    exchanges: frozenset[str] = frozenset()
    """Those that violate it."""


@dataclass(frozen=True)
class Expected:
    """What stands in a file of expected verdicts."""

    outcomes: Mapping[str, Outcome]
    """By requirement."""
    tokenizer: str = ""
    """Folder of the model's tokenizer, relative to the file; empty where none is known."""


@dataclass(frozen=True)
class Judged:
    """A capture, what it is judged to be now, and what it was."""

    file: Path
    """Where its expected verdicts stand, or would stand."""
    outcomes: Mapping[str, Outcome]
    evidence: Mapping[str, Observation]
    """The first violation of each requirement that is violated."""
    expected: Expected | None
    """None where there is no such file."""
    judgements: Sequence[Judgement]
    """What the outcomes sum up."""

    def update(self) -> None:
        """Make what it is judged to be now what is expected."""
        tokenizer = self.expected.tokenizer if self.expected else ""
        self.file.write_text(_written(Expected(self.outcomes, tokenizer)), "utf-8")


class NoExpectation(ValueError):  # noqa: N818  # a fact about a file
    """A file of expected verdicts is not one; the message names it."""


def expected_file(capture: str) -> Path:
    """Where the expected verdicts of a capture stand, by the path of the file or folder."""
    suffix = next((suffix for suffix in SUFFIXES if capture.endswith(suffix)), "")
    return Path(capture.removesuffix(suffix) + ".expected.yaml")


def read_expected(path: Path) -> Expected:
    """Read expected verdicts. Raises NoExpectation, OSError."""
    try:
        table = read_yaml(path)
        tokenizer = table.pop("tokenizer", "")
        outcomes = {
            name: Outcome(Verdict(verdict), frozenset(rows[name] if isinstance(rows, dict) else ()))
            for verdict, rows in table.items()
            for name in rows
        }
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        raise NoExpectation(
            f"{path} holds no expected verdicts ({error}); write it anew: --update"
        ) from error
    return Expected(outcomes, tokenizer)


def _written(expected: Expected) -> str:
    table: dict[str, object] = {"tokenizer": expected.tokenizer} if expected.tokenizer else {}
    for verdict in _EVALUATED:
        rows = {name: one for name, one in sorted(expected.outcomes.items()) if one.verdict is verdict}
        if rows and verdict in _VIOLATED:
            table[verdict.value] = {name: sorted(one.exchanges) for name, one in rows.items()}
        elif rows:
            table[verdict.value] = list(rows)
    return yaml.safe_dump(table, sort_keys=False, width=110, default_flow_style=False)


def _outcomes(judgements: Iterable[Judgement]) -> tuple[dict[str, Outcome], dict[str, Observation]]:
    outcomes: dict[str, Outcome] = {}
    evidence: dict[str, Observation] = {}
    for name, group in groupby(sorted(judgements, key=_requirement), key=_requirement):
        own = list(group)
        verdict = overall(one.verdict for one in own)
        violations = [seen for one in own if one.verdict is verdict for seen in one.violations]
        if verdict in _EVALUATED:
            is_red = verdict in _VIOLATED
            exchanges = frozenset(seen.place.exchange for seen in violations if is_red)
            outcomes[name] = Outcome(verdict, exchanges)
        if violations:
            evidence[name] = violations[0]
    return outcomes, evidence


def _requirement(judgement: Judgement) -> str:
    return judgement.requirement.id


def judged(path: Path, requirements: Collection[Requirement] | None = None) -> Iterator[Judged]:
    """Judge the captures at a path, each by itself, with the tokenizer that its expected verdicts name.

    `requirements`: only these; all where None. Raises NothingToReplay, CaptureError, NoExpectation,
    NoTokenizer, OSError.
    """
    for name, exchanges in captures(path):
        file = expected_file(name)
        expected = read_expected(file) if file.is_file() else None
        folder = file.parent / expected.tokenizer if expected and expected.tokenizer else None
        tokenizer = LocalTokenizer(folder) if folder else None
        run, _ = read_run(exchanges, DialectResolver(exchanges), name, tokenizer)
        wanted = list(requirements) if requirements is not None else None
        judgements = judge([run], wanted)
        outcomes, evidence = _outcomes(judgements)
        if expected is not None and requirements is not None:
            ids = {one.id for one in requirements}
            was = {name: one for name, one in expected.outcomes.items() if name in ids}
            expected = Expected(was, expected.tokenizer)
        yield Judged(file, outcomes, evidence, expected, judgements)


def difference(judged: Judged) -> list[str]:
    """What is judged otherwise than expected, a line for each requirement; none where nothing is."""
    if judged.expected is None:
        return [f"has no expected verdicts beside it ({judged.file.name}); --update writes them"]
    was, now = judged.expected.outcomes, judged.outcomes
    return [
        _line(name, was.get(name), now.get(name), judged.evidence.get(name))
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    ]


def _line(name: str, was: Outcome | None, now: Outcome | None, evidence: Observation | None) -> str:
    words = f"{name}: {_said(was)} → {_said(now)}"
    if was is not None and now is not None and was.verdict is now.verdict:
        words += "; " + "; ".join(
            f"{which} {_some(exchanges)}"
            for which, exchanges in (
                ("also", now.exchanges - was.exchanges),
                ("no longer", was.exchanges - now.exchanges),
            )
            if exchanges
        )
    if evidence is not None:
        words += f"\n    {where(evidence.place)}: {cut(evidence.message, 200)}"
    return words


def _said(outcome: Outcome | None) -> str:
    if outcome is None:
        return _NOT_EVALUATED
    return f"{outcome.verdict} ({len(outcome.exchanges)})" if outcome.exchanges else str(outcome.verdict)


def _some(exchanges: Collection[str]) -> str:
    names = sorted(exchanges)
    return ", ".join([*names[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])])
