"""Tally files: what one replay judged, and what a report shows of it, so that several make one report.

A file is JSON Lines, gzipped: a head; for each server its run, the exchanges that a report shows and the
judgements; and a foot. A merge judges nothing again. It reads the shown exchanges by the same dialects, and
writes the report that one replay of all captures writes.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenwire import __version__
from tokenwire.checks.check import Observation
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.judge import Apart, Judgement, Run
from tokenwire.judging.tally import how_far
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Asked, Delivery, Place, Stream
from tokenwire.report.document import MOST_EVIDENCE
from tokenwire.report.finding import held_against
from tokenwire.report.subject import Subject
from tokenwire.requirement import Level, load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import Capability
from tokenwire.target.honesty import Honesty
from tokenwire.wire.capture import exchange_lines, exchange_of
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

FORMAT = 1
SUFFIX = ".tally.gz"
_LONGEST = 1 << 30
"""Bytes of a file, unpacked: more is no tally of a replay that this machine could merge."""


class TallyError(ValueError):
    """A file is no tally, or cannot be merged with others; the message says which, and what to do."""


@dataclass(frozen=True)
class Selection:
    """What a replay was cut down to, by the words of its command line."""

    requirements: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replayed:
    """What one replay, or several in order, judged."""

    subject: Subject
    requirements: tuple[str, ...]
    """The requirements that were judged."""
    selection: Selection
    judged: Apart
    """The judgements of each run on each of the requirements."""


# Values from the wire: JSON, with a mark where JSON has no such type.


def _packed(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [_packed(entry) for entry in value]}
    if isinstance(value, Mapping):
        return {"object": [[_packed(key), _packed(entry)] for key, entry in value.items()]}
    if isinstance(value, set | frozenset):
        return {type(value).__name__: [_packed(entry) for entry in sorted(value, key=str)]}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_packed(entry) for entry in value]
    return {"words": str(value)}


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "float":
            return float(content)
        case "tuple":
            return tuple(_unpacked(entry) for entry in content)
        case "object":
            return {_unpacked(key): _unpacked(entry) for key, entry in content}
        case "set":
            return {_unpacked(entry) for entry in content}
        case "frozenset":
            return frozenset(_unpacked(entry) for entry in content)
        case "words":
            return str(content)
    raise ValueError(f"{kind!r} is no kind of value")


def _observation(one: Observation) -> list[Any]:
    expected, actual = _packed(one.expected), _packed(one.actual)
    how = (one.condition_only, one.level, one.by_chance, one.witnesses)
    return [
        list(one.place),
        expected,
        actual,
        one.holds,
        one.message,
        [list(two) for two in one.related],
        *how,
    ]


def _read_observation(told: list[Any]) -> Observation:
    place, expected, actual, holds, message, related, condition_only, level, by_chance, witnesses = told
    return Observation(
        Place(*place),
        _unpacked(expected),
        _unpacked(actual),
        holds,
        message,
        tuple(Place(*one) for one in related),
        condition_only,
        None if level is None else Level(level),
        by_chance,
        witnesses,
    )


def _judgement(one: Judgement) -> dict[str, Any]:
    return {
        "scenario": one.scenario,
        "verdict": one.verdict,
        "witnesses": one.witnesses,
        "message": one.message,
        "violations": [_observation(seen) for seen in one.violations],
        "witness": None if one.witness is None else _observation(one.witness),
    }


def _read_judgement(requirement: str, told: Mapping[str, Any], run: Run) -> Judgement:
    return Judgement(
        load_requirements()[requirement],
        told["scenario"],
        Verdict(told["verdict"]),
        told["witnesses"],
        told["message"],
        tuple(map(_read_observation, told["violations"])),
        witness=None if told["witness"] is None else _read_observation(told["witness"]),
        run=run,
    )


# What a report shows of a run.


def _run_line(run: Run, judged: Iterable[Sequence[Judgement]]) -> dict[str, Any]:
    advertised, honesty = run.advertised, run.honesty
    places = {
        place.exchange: None
        for own in judged
        for one in own
        for seen in one.violations
        for place in (seen.place, *seen.related)
    }
    known = {name: run.by_exchange[name].dialect for name in places if name in run.by_exchange}
    return {
        "kind": "run",
        "name": run.name,
        "server": [advertised.name, advertised.version, advertised.delivery],
        "flags": sorted(run.flags),
        "capabilities": [asdict(one) for one in run.capabilities.values()],
        "ignored": honesty.ignored,
        "refused": honesty.refused,
        "tells_prompt_ids": run.tells_prompt_ids,
        "dialects": known,
    }


def _shown(run: Run, judged: Iterable[Sequence[Judgement]], furthest: set[int]) -> list[Stream]:
    """The answers that a report shows something of, in the order of the run.

    `furthest` are the judgements, by identity, whose witness it shows.
    """
    names: set[str] = set()
    for one in (one for own in judged for one in own):
        names |= {seen.place.exchange for seen in one.violations[:MOST_EVIDENCE]}
        for seen in one.violations[:1]:
            names |= {place.exchange for place in seen.related}
            stream = run.by_exchange.get(seen.place.exchange)
            other = held_against(run, stream, seen) if stream is not None else None
            names |= {other.exchange.name} if other is not None else set()
        if one.witness is not None and id(one) in furthest:
            names.add(one.witness.place.exchange)
    return [stream for name, stream in run.by_exchange.items() if name in names]


def _furthest(replayed: Replayed) -> set[int]:
    """Of each requirement the first judgement whose witness lies furthest into a stream, by identity."""
    found = set()
    for at in range(len(replayed.requirements)):
        every = [one for own in replayed.judged for one in own[at] if one.witness is not None]
        if every:
            found.add(id(max(every, key=lambda one: how_far(one.witness))))
    return found


def _lines(replayed: Replayed) -> Iterator[dict[str, Any]]:
    subject = replayed.subject
    yield {
        "kind": "head",
        "format": FORMAT,
        "tokenwire": __version__,
        "captures": subject.captures,
        "dialects": subject.dialects,
        "taken": subject.taken,
        "remarks": subject.remarks,
        "judged_with": subject.judged_with,
        "requirements": replayed.requirements,
        "selection": asdict(replayed.selection),
    }
    furthest = _furthest(replayed)
    for run, judged in zip(subject.runs, replayed.judged, strict=True):
        yield _run_line(run, judged)
        alone = {stream.exchange.name for stream in run.streams}
        for stream in _shown(run, judged, furthest):
            exchange = stream.whole.exchange
            named = {"kind": "exchange", "dialect": stream.dialect, "alone": exchange.name in alone}
            yield {**named, "lines": list(exchange_lines(exchange))}
        for own in judged:
            yield {"kind": "judged", "judgements": [_judgement(one) for one in own]}
    yield {"kind": "foot", "runs": len(subject.runs)}


def write_tally(replayed: Replayed, path: Path) -> None:
    """The same bytes for the same replay. Raises OSError."""
    with path.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
        for line in _lines(replayed):
            zipped.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n")


class _Reading:
    """A tally file whose lines are still coming."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        if head["kind"] != "head" or head["format"] != FORMAT:
            raise ValueError(f"the first line is no head of format {FORMAT}")
        if head["tokenwire"] != __version__:
            written = f"written by tokenwire {head['tokenwire']}, and this is {__version__}"
            raise TallyError(f"{written}; replay its captures again with --tally")
        self._head = head
        self.requirements = tuple(head["requirements"])
        unknown = set(self.requirements) - load_requirements().keys()
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]!r} is no requirement")
        self._told: Mapping[str, Any] | None = None
        self._shown: list[tuple[Stream, bool]] = []
        self._own: list[list[Mapping[str, Any]]] = []
        self._runs: list[Run] = []
        self._judged: list[tuple[tuple[Judgement, ...], ...]] = []
        self.whole = False

    def take(self, line: Mapping[str, Any]) -> None:
        if self.whole:
            raise ValueError("something stands behind the foot")
        match line["kind"]:
            case "run":
                self._close_run()
                self._told = line
            case "exchange":
                delivery = (self._told or {})["server"][2]
                hint = None if delivery is None else Delivery(delivery)
                dialect = load_dialects()[line["dialect"]]
                self._shown.append(
                    (dialect.read(exchange_of(line["lines"]), delivery_hint=hint), line["alone"])
                )
            case "judged":
                self._own.append(line["judgements"])
            case "foot":
                self._close_run()
                if line["runs"] != len(self._runs):
                    raise ValueError(f"{len(self._runs)} runs are there, and {line['runs']} are named")
                self.whole = True
            case kind:
                raise ValueError(f"{kind!r} is no kind of line")

    def _close_run(self) -> None:
        told = self._told
        if told is None:
            return
        if len(self._own) != len(self.requirements):
            raise ValueError(f"{len(self._own)} of {len(self.requirements)} requirements are judged")
        name, version, delivery = told["server"]
        hint = None if delivery is None else Delivery(delivery)
        run = Run(
            tuple(stream for stream, alone in self._shown if alone),
            Advertised(name=name, version=version, delivery=hint),
            told["name"],
        )
        shown = {stream.exchange.name: stream for stream, _ in self._shown}
        others = {name: _named_only(name, dialect) for name, dialect in told["dialects"].items()}
        honesty = [{what: tuple(by) for what, by in told[kind].items()} for kind in ("ignored", "refused")]
        known = {each.name: each for each in (Capability(**each) for each in told["capabilities"])}
        # What a run would find out from all of its answers is told here.
        vars(run).update(
            by_exchange=others | shown,
            capabilities=known,
            flags=frozenset(told["flags"]),
            honesty=Honesty(*honesty),
            tells_prompt_ids=told["tells_prompt_ids"],
        )
        rows = zip(self.requirements, self._own, strict=True)
        self._judged.append(tuple(tuple(_read_judgement(row, one, run) for one in own) for row, own in rows))
        self._runs.append(run)
        self._told, self._shown, self._own = None, [], []

    @property
    def replayed(self) -> Replayed:
        head = self._head
        subject = Subject(
            captures=tuple(head["captures"]),
            runs=tuple(self._runs),
            dialects=tuple(head["dialects"]),
            taken=head["taken"],
            remarks=tuple(head["remarks"]),
            judged_with=tuple(head["judged_with"]),
        )
        selection = Selection(**{name: tuple(words) for name, words in head["selection"].items()})
        return Replayed(subject, self.requirements, selection, tuple(self._judged))


def _named_only(name: str, dialect: str) -> Stream:
    """An answer of which a report says no more than in which dialect it is."""
    exchange = Exchange(name, HttpRequest("", ""), "", None, (), (), Ending.COMPLETE)
    return Stream(exchange, dialect, Asked(), Delivery.WHOLE, (), ())


def _read_lines(path: Path) -> Iterator[bytes]:
    """Raises TallyError, OSError."""
    left = _LONGEST
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(left + 1):
                left -= len(line)
                if left < 0:
                    raise TallyError(
                        f"{path} holds more than {_LONGEST >> 20} MiB; merge fewer captures at a time"
                    )
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TallyError(f"{path} is no whole gzipped file: {error}; write it again with --tally") from error


def read_tally(path: Path) -> Replayed:
    """What a replay wrote with `--tally`. Raises TallyError for a file that is none, OSError."""
    reading: _Reading | None = None
    for number, data in enumerate(_read_lines(path), 1):
        try:
            line = json.loads(data)
            if reading is None:
                reading = _Reading(line)
            else:
                reading.take(line)
        except TallyError as error:
            raise TallyError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TallyError(f"{path}, line {number}: not a line of a tally: {error!r}") from error
    if reading is None or not reading.whole:
        raise TallyError(f"{path} ends before its foot; write it again with --tally")
    return reading.replayed


def merged(parts: Sequence[tuple[str, Replayed]]) -> Replayed:
    """What one replay of all captures, in this order, would have judged. Parts have names.

    Raises TallyError where they were not judged alike.
    """
    (first_name, first), *others = parts
    for name, one in others:
        for what, ours, theirs in (
            ("requirements", first.requirements, one.requirements),
            ("options", first.selection, one.selection),
            ("tokenizer", first.subject.judged_with, one.subject.judged_with),
        ):
            if ours != theirs:
                raise TallyError(f"{name} was judged with other {what} than {first_name}; replay both alike")
    subjects = [one.subject for _, one in parts]
    taken: dict[str, str] = {}
    for subject in subjects:
        taken = {**subject.taken, **taken}
    return Replayed(
        Subject(
            captures=tuple(path for subject in subjects for path in subject.captures),
            runs=tuple(run for subject in subjects for run in subject.runs),
            dialects=tuple(sorted({name for subject in subjects for name in subject.dialects})),
            taken=dict(sorted(taken.items())),
            remarks=tuple(words for subject in subjects for words in subject.remarks),
            judged_with=subjects[0].judged_with,
        ),
        first.requirements,
        first.selection,
        tuple(judged for _, one in parts for judged in one.judged),
    )
