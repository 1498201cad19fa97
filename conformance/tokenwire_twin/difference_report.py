"""The result of a comparison as data: the sides, the families of differences, and what was not compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenwire.checks.caches import DRAWN_PROMPTS
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.beside import side_by_side
from tokenwire.judging.chance import determinism
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import ExitStatus, exit_status
from tokenwire.record import Answer
from tokenwire.replay import replay
from tokenwire.report.document import SURVIVAL, document, read_report
from tokenwire.report.subject import ASKED_ANYWAY, Subject
from tokenwire.target.alike import known_by
from tokenwire.target.death import DIED, VITALS
from tokenwire.target.determinism import AnswerPair
from tokenwire_twin.answers import ABORTING, RACING, compared, differences, held
from tokenwire_twin.causes import Asked, Neighbours, asked_for, in_common, leak_in
from tokenwire_twin.difference import Difference, Gravity, body_of
from tokenwire_twin.families import Contradictions, Family, families
from tokenwire_twin.status_differences import NO_ANSWER
from tokenwire_twin.verdicts import VerdictDifference, Violations, decided_by_both, verdict_differences

LABELS = ("A", "B")
"""The names of the two sides."""
_OK = 200


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the report on the side and, if they are available, its answers."""

    name: str
    report: Mapping[str, Any]
    runs: Mapping[str, tuple[Answer, ...]] = field(default_factory=dict)
    """The answers of each run by file name. The name of a single run is empty."""
    violations: Violations | None = None
    """The message of each violation, by requirement and exchange; None if only a report is available."""

    @property
    def answers(self) -> list[Answer]:
        """The answers of all runs."""
        return [answer for answers in self.runs.values() for answer in answers]


def side_of(name: str, subject: Subject) -> Side:
    """Judge a run, and return it as a side."""
    judgements = judge(subject.runs)
    report = document(subject, judgements, exit_status(judgement.verdict for judgement in judgements))
    alone = len(subject.runs) == 1
    runs = {"" if alone else Path(run.name).name: run.streams for run in subject.runs}
    violations: dict[str, dict[str, str]] = defaultdict(dict)
    for judgement in judgements:
        for seen in judgement.violations:
            violations[judgement.requirement.id].setdefault(seen.place.exchange, seen.message)
    return Side(name, report, runs, violations)


def read_side(name: str) -> Side:
    """Return a JSON report or a recording as a side. A recording is judged. Raises UsageError and OSError."""
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        return side_of(name, replay([path]))
    return Side(str(path), read_report(path))


@dataclass(frozen=True)
class DifferenceReport:
    """All differences between two sides."""

    one: str
    other: str
    verdicts: tuple[VerdictDifference, ...]
    families: tuple[Family, ...]
    """The families of differences, the most serious first."""
    requirements: int
    """The number of requirements that both sides decided."""
    exchanges: int
    """The number of exchanges that both sides have."""
    repeated: int
    """The number of exchanges whose values were compared, because both sides are deterministic."""
    compared: Mapping[Gravity, int] = field(default_factory=dict)
    """The number of answers in which each subject was compared."""
    held: Mapping[Gravity, tuple[int, int]] = field(default_factory=dict)
    """For each subject, the number of comparable answers of each side that have content."""
    asked: int = 0
    """The number of exchanges that were requested from both sides, or from endpoints that only one side has.
    """
    only_one: tuple[str, ...] = ()
    """The exchanges that only the first side has."""
    only_other: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """Sentences on why the comparison is incomplete, and how to complete it."""
    faults: tuple[str, ...] = ()
    """Sentences about the wrong entries in the file of known differences."""
    known_file: str = ""

    @property
    def differ(self) -> bool:
        return any(row.decides for row in self.rows)

    @property
    def rows(self) -> tuple[Family | VerdictDifference, ...]:
        """All differences: first the families, then the verdicts."""
        return (*self.families, *self.verdicts)

    @property
    def known(self) -> int:
        """The number of known differences."""
        return sum(bool(row.known) for row in self.rows)

    @property
    def exit_status(self) -> int:
        """0: the same. 1: different, or a wrong entry in the file of known differences. 4: nothing to
        compare.
        """
        if self.differ or self.faults:
            return ExitStatus.VIOLATION
        return ExitStatus.NOTHING_EVALUATED if self.nothing_compared else ExitStatus.CONFORMS

    @property
    def nothing_compared(self) -> bool:
        """True if there was nothing to compare: neither answers to the same requests, nor verdicts."""
        return not self.exchanges and bool(not self.requirements or self.only_one or self.only_other)

    @property
    def outcome(self) -> str:
        """The result in one clause."""
        if self.nothing_compared:
            return "nothing could be compared: the sides have no answers to the same requests"
        words = "the same, as far as could be compared"
        if self.differ:
            words = f"different in {self.exchanges_that_differ:,} of {self.asked:,} exchanges"
            if not self.exchanges_that_differ:
                words = "different in what they promise"
        elif self.known:
            words = f"the same but for {self.known} known differences"
        if self.faults:
            words += f"; {len(self.faults)} entries of {self.known_file} do not hold"
        return words + ("; not all was asked or compared" if self.hints else "")

    @property
    def exchanges_that_differ(self) -> int:
        return len({name for family in self.families if family.decides for name in family.exchanges})


def _death(report: Mapping[str, Any]) -> str:
    """Describe why the run of a side ended early. Empty if the run did not end early."""
    if broken_off := report["target"].get("broken_off"):
        return str(broken_off)
    died = (
        seen["message"]
        for row in report["verdicts"]
        if row["requirement"] == SURVIVAL
        for seen in row.get("evidence", ())
        if seen.get("actual") == DIED
    )
    return next(died, "")


def _hints(
    first: Side, second: Side, pairs: Sequence[AnswerPair], unserved: Collection[str]
) -> Iterator[str]:
    sides = (first, second)
    for label, side in zip(LABELS, sides, strict=True):
        if why := _death(side.report):
            yield f"{label} was broken off: {why}"
        if why := side.report["target"].get("cut_off"):
            yield f"{label} was cut short: {why}"
    spoken = [sorted({*side.report["target"].get("dialects", ())} - {*unserved}) for side in sides]
    if all(spoken) and spoken[0] != spoken[1]:
        dialects = " and ".join(
            f"{label} in {', '.join(names)}" for label, names in zip(LABELS, spoken, strict=True)
        )
        yield f"the sides were asked differently, {dialects}: --dialect NAME asks both alike"
    if pairs and not any(pair.repeats for pair in pairs):
        yield "no side was asked any request twice alike: values are not compared"


def _answered(side: Side) -> Mapping[str, bool]:
    """Return the dialects of a side. The value is True if any request in the dialect was answered."""
    found: dict[str, bool] = {}
    for answer in side.answers:
        found[answer.dialect] = found.get(answer.dialect, False) or answer.answered
    return found


def _endpoints(first: Side, second: Side) -> Iterator[Family]:
    """Yield a difference for each endpoint that only one side has."""
    sides, dialects = (first, second), load_dialects()
    spoken = [_answered(side) for side in sides]
    paths = [
        {dialects[name].endpoint.path for name, answered in found.items() if answered and name in dialects}
        for found in spoken
    ]
    for number, here in enumerate(spoken):
        other = sides[1 - number]
        for name in (name for name, answered in here.items() if answered and name in dialects):
            path = dialects[name].endpoint.path
            refused = None if path in paths[1 - number] else _refusal(other, name)
            if refused is None:
                continue
            exchange, words = refused
            says = f"{LABELS[1 - number]} does not serve it"
            message = f"{says}: {words}"
            asked = [
                answer.exchange.name
                for answer in sides[number].answers
                if answer.dialect == name and answer.exchange.scenario not in ASKED_ANYWAY
            ]
            names = tuple(asked) or (exchange,)
            example = Difference(Gravity.SERVED, "endpoint", path, says, message, exchange, name)
            yield Family(Gravity.SERVED, "endpoint", path, says, {name: len(names)}, names, (example,))


def _refusal(side: Side, dialect: str) -> tuple[str, str] | None:
    """Return the exchange in which a side refused an endpoint, and a description of its answer.

    Return None if the endpoint was not requested.
    """
    dialects = load_dialects()
    path = dialects[dialect].endpoint.path
    for answer in side.answers:
        if answer.dialect in dialects and dialects[answer.dialect].endpoint.path == path:
            status = answer.exchange.status
            return answer.exchange.name, NO_ANSWER if status is None else f"status {status}"
    # A live run sends no further requests to an endpoint that refused its first request.
    words = side.report["target"].get("left_out", {}).get(dialect)
    asked = f"{dialects[dialect].endpoint.methods[0]} {path}: "
    return None if words is None else (f"{dialect}/preflight", str(words).removeprefix(asked))


def _request_key(answer: Answer) -> str:
    """Return a key that is equal for answers to equal requests, regardless of the names of exchanges."""
    request = answer.exchange.load().request
    return f"{request.method} {request.path} {known_by(body_of(request))}"


def _keys(sides: tuple[Sequence[Answer], Sequence[Answer]]) -> Mapping[int, tuple[str, str]]:
    """Return a key for the request of each answer.

    If both sides have an exchange with the answer's name, the key is this name. Otherwise the key is the
    request itself, with a count of equal requests, because requests that were sent by hand have no common
    names.
    """
    names = [{answer.exchange.name for answer in side} for side in sides]
    keys: dict[int, tuple[str, str]] = {}
    for side in sides:
        times: Counter[str] = Counter()
        for answer in side:
            if answer.exchange.name in names[0] & names[1]:
                keys[id(answer)] = ("", answer.exchange.name)
                continue
            key = _request_key(answer)
            times[key] += 1
            keys[id(answer)] = (key, str(times[key]))
    return keys


def _key_in(keys: Mapping[int, tuple[str, str]], answer: Answer) -> tuple[str, str]:
    return keys[id(answer)]


def _paired(first: Side, second: Side) -> Iterator[AnswerPair]:
    """Yield the pairs of answers to the same requests.

    A side without repeated requests counts as deterministic.
    """
    for run in first.runs.keys() & second.runs.keys():
        answers = first.runs[run], second.runs[run]
        keys = _keys(answers)
        seen = [determinism(side) for side in answers]
        untried = all(known.repetitions == 0 or known.anywhere for known in seen)
        for pair in side_by_side(*answers, partial(_key_in, keys)):
            both = (pair.baseline, pair.other)
            trusted = all(known.trusts(answer) for known, answer in zip(seen, both, strict=True))
            yield replace(pair, repeats=True) if untried and trusted and not pair.repeats else pair


_OUTPUTS = frozenset({Gravity.PROMPT, Gravity.IDS, Gravity.TEXT})
_FEW = 2
"""The most requests whose fields are listed if no field distinguishes them from other requests."""
_USUAL = frozenset({"model", "stream", "stream_options"})
_EXPLAINED = frozenset(
    {Gravity.FAILED, Gravity.REFUSED_A, Gravity.REFUSED_B, Gravity.PROMPT, Gravity.IDS, Gravity.TEXT}
)
"""Subjects of differences that are explained by the fields of their requests first."""


@dataclass(frozen=True)
class _Request:
    """A request that was sent to both sides."""

    dialect: str
    asked: Asked
    served: bool
    """True if both sides answered the request."""


def _explained(
    families: Sequence[Family], requests: Mapping[str, _Request], sides: tuple[Side, Side]
) -> Iterator[Family]:
    """Yield the families with their causes. `requests`: the request of each exchange."""
    first, second = (Neighbours(side.answers) for side in sides)
    for family in families:
        if family.gravity in _EXPLAINED:
            mine = frozenset(family.exchanges)
            of_family = [requests[name].asked for name in mine if name in requests]
            others = [
                request.asked
                for name, request in requests.items()
                if name not in mine and request.dialect in family.at and request.served
            ]
            common = in_common(of_family, others, family.example.message if family.kind == "status" else "")
            if not common and len(of_family) <= _FEW and family.gravity in _OUTPUTS:
                names = sorted({name for asked in of_family for name in asked} - _USUAL)
                yield replace(family, asked=f"the request has {', '.join(names)}")
            else:
                yield replace(family, asked=f"with {common}" if common else "")
        elif family.kind == "series" and family.subject.endswith("top_logprobs"):
            leak = leak_in(family.members, (first, second))
            yield replace(family, leak=leak, by_chance=family.by_chance and not leak)
        else:
            yield family


class _Compared:
    """The differences between the answers of two sides, and the amount of what was compared."""

    def __init__(self) -> None:
        self.found: list[Difference] = []
        self.subjects: Counter[Gravity] = Counter()
        self.by_side: Counter[tuple[Gravity, int]] = Counter()
        self.requests: dict[str, _Request] = {}
        self.values = 0

    def add(self, pair: AnswerPair) -> None:
        """Compare two answers. They are loaded here and released afterwards."""
        both = pair.load()
        self.values += pair.repeats
        self.subjects.update(compared(both))
        self.by_side.update(held(both))
        self.found += differences(both, LABELS)
        exchange = both.baseline.exchange
        served = both.baseline.answered and both.other.answered
        self.requests[exchange.name] = _Request(
            both.other.dialect, asked_for(body_of(exchange.request)), served=served
        )


def _only_one_side(
    sides: tuple[Side, Side], pairs: Sequence[AnswerPair], unserved: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the exchanges that only the first side has, and those that only the second has.

    A recording may have exchanges that a live side does not have, such as liveness probes.
    """
    answers = [
        {(run, answer.exchange.name): answer for run, answers in side.runs.items() for answer in answers}
        for side in sides
    ]
    paired = [{side[position].exchange.name for side in map(_both, pairs)} for position in (0, 1)]
    first, second = (
        tuple(
            f"{run}: {name}" if run else name
            for run, name in sorted(mine.keys() - other.keys())
            if name not in partners
            and mine[run, name].exchange.scenario not in ASKED_ANYWAY | {VITALS}
            and mine[run, name].dialect not in unserved
        )
        for mine, other, partners in zip(answers, reversed(answers), paired, strict=True)
    )
    return first, second


def compare_sides(first: Side, second: Side, *, may_be_one: bool = False) -> DifferenceReport:
    """Compare two sides, and return the result.

    `may_be_one`: both sides may be the same server, or share a cache.
    """
    both = bool(first.runs and second.runs)
    endpoints = list(_endpoints(first, second)) if both else []
    unserved = {name for family in endpoints for name in family.at}
    pairs = list(_paired(first, second))
    result = _Compared()
    for pair in pairs:
        if pair.baseline.exchange.scenario in ASKED_ANYWAY:
            continue
        if pair.baseline.dialect not in unserved and pair.other.dialect not in unserved:
            result.add(pair)
    contradictions = Contradictions(first.answers), Contradictions(second.answers)
    scenarios = {answer.exchange.name: answer.exchange.scenario for answer in first.answers}
    grouped = families(result.found, contradictions, scenarios)
    grouped = list(_explained(grouped, result.requests, (first, second)))
    unlike = {name for family in grouped if family.kind == "request" for name in family.exchanges}
    asked = result.requests.keys() - unlike | {name for family in endpoints for name in family.exchanges}
    rows = verdict_differences(
        (first.report, second.report),
        (set(scenarios) or None, {answer.exchange.name for answer in second.answers} or None),
        (first.violations, second.violations),
        _not_comparable(pairs, grouped, contradictions, DRAWN_PROMPTS if may_be_one else ()),
    )
    only_one, only_other = _only_one_side((first, second), pairs, unserved) if both else ((), ())
    return DifferenceReport(
        first.name,
        second.name,
        tuple(rows),
        tuple(sorted((*endpoints, *grouped), key=lambda family: family.rank)),
        decided_by_both(first.report, second.report),
        len(pairs),
        result.values,
        compared=dict(result.subjects),
        held={gravity: (result.by_side[gravity, 0], result.by_side[gravity, 1]) for gravity in Gravity},
        asked=len(asked),
        only_one=only_one,
        only_other=only_other,
        hints=tuple(_hints(first, second, pairs, unserved)),
    )


def _both(pair: AnswerPair) -> tuple[Answer, Answer]:
    return pair.baseline, pair.other


def _not_comparable(
    pairs: Iterable[AnswerPair],
    found: Iterable[Family],
    sides: Iterable[Contradictions],
    seen_before: Collection[str],
) -> frozenset[str]:
    """Return the names of exchanges in which different verdicts do not show a difference between the servers.

    In these exchanges, chance had an influence, or the requests differ, or samples were requested. In the
    scenarios `seen_before`, the same server may have answered for both sides, so that it already knew a
    prompt that should be new.
    """
    every = list(found)
    chance = [(family, difference) for family in every if family.by_chance for difference in family.members]
    keys = {difference.key for _, difference in chance}
    asked = {name for family in every if family.kind == "request" for name in family.exchanges}
    both = list(sides)
    names = set()
    for pair in pairs:
        answer, other = pair.baseline, pair.other
        sampled = bool(answer.asked.key) and answer.answered and other.answered and not pair.repeats
        scenario = answer.exchange.scenario
        raced = any(side.repeated(scenario, family.gravity) for family, _ in chance for side in both)
        timed = scenario in ABORTING | RACING or scenario in seen_before
        if timed or sampled or answer.asked.key in keys or answer.exchange.name in asked or raced:
            names.add(answer.exchange.name)
    return frozenset(names)


def as_json(report: DifferenceReport) -> Mapping[str, Any]:
    """Return the result as one JSON value. Its last key shows that the file is complete."""
    return {
        "one": report.one,
        "other": report.other,
        "same": not report.differ,
        "compared": {
            "requirements": report.requirements,
            "exchanges": report.exchanges,
            "asked": report.asked,
            "repeated": report.repeated,
            "subjects": {str(gravity): count for gravity, count in report.compared.items()},
        },
        "verdicts": [{**asdict(row), "decides": row.decides} for row in report.verdicts],
        "differences": [
            {
                **asdict(family.example),
                "family": family.name,
                "decides": family.decides,
                "by_chance": family.by_chance,
                "known": family.known,
                "asked": family.asked,
                "leak": family.leak,
                "at": dict(family.at),
                "exchanges": list(family.exchanges),
            }
            for family in report.families
        ],
        "only_one": list(report.only_one),
        "only_other": list(report.only_other),
        "hints": list(report.hints),
        "faults": list(report.faults),
        "footer": True,
    }
