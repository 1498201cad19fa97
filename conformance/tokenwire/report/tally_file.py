"""Tally files: the judgements of one replay, with the exchanges that a report shows, for `tokenwire merge`.

A file is gzipped JSON Lines. The first line is a head. For each server follow the run, the requests of
violating answers, the exchanges that a report shows, and the judgements. The last line is a foot. A merge
parses only these exchanges and does not judge again. Its report equals that of one replay of all captures.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from tokenwire import __version__
from tokenwire.checks.evidence import Observation
from tokenwire.dialects.dialect import load_dialects
from tokenwire.disk import begin, unfinished
from tokenwire.judging.judge import ByRun, Judgement
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Answer, Delivery, Place, Stream
from tokenwire.report.document import MOST_EVIDENCE, furthest
from tokenwire.report.finding import held_against
from tokenwire.report.subject import Subject, Unanswered
from tokenwire.requirement import Level, load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import Capability
from tokenwire.target.honesty import Honesty
from tokenwire.usage_error import UsageError
from tokenwire.wire.capture import exchange_lines, exchange_of
from tokenwire.wire.json_lines import CaptureError, lines, unzipped, value_of, values_in

_FORMAT = 2
_OF_SUBJECT = ("captures", "dialects", "taken", "unanswered", "remarks", "rules", "judged_with")
"""The fields of `Subject` that the head contains."""
_MOST_BYTES, _MOST_VALUES = 96 << 20, 4 << 20
"""The largest number of bytes and of JSON values in an unpacked file.

The file for 20 recordings has a quarter of these bytes, and half of these values.
"""


@dataclass(frozen=True)
class Selection:
    """The command-line options of a replay that select requirements and scenarios."""

    requirements: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replayed:
    """The judgements of one replay, or of several that were merged."""

    subject: Subject
    requirements: tuple[str, ...]
    """The ids of all requirements that were judged."""
    selection: Selection
    judged: ByRun
    """The judgements by run, then by requirement."""


# Values from responses are written as JSON. A type that JSON does not have is marked.


_COLLECTIONS = {"tuple": tuple, "set": set, "frozenset": frozenset}


def _packed(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"object": [[_packed(key), _packed(entry)] for key, entry in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_packed(entry) for entry in value]}
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
    if kind == "object":
        return {_unpacked(key): _unpacked(entry) for key, entry in content}
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](map(_unpacked, content))
    if kind not in {"float", "words"}:
        raise ValueError(f"{kind!r} is not a type of value")
    return float(content) if kind == "float" else str(content)


def _observation(seen: Observation) -> Sequence[Any]:
    """Return an observation as a list of fields for JSON."""
    return seen._replace(expected=_packed(seen.expected), actual=_packed(seen.actual))


def _read_observation(fields: Sequence[Any]) -> Observation:
    seen = Observation(*fields)
    return seen._replace(
        place=Place(*fields[0]),
        expected=_unpacked(seen.expected),
        actual=_unpacked(seen.actual),
        related=tuple(Place(*place) for place in seen.related),
        level=None if seen.level is None else Level(seen.level),
    )


def _judgement(judgement: Judgement) -> dict[str, Any]:
    return {
        "scenario": judgement.scenario,
        "verdict": judgement.verdict,
        "witnesses": judgement.witnesses,
        "message": judgement.message,
        "violations": [_observation(seen) for seen in judgement.violations],
        "witness": None if judgement.witness is None else _observation(judgement.witness),
    }


def _read_judgement(requirement: str, fields: Mapping[str, Any], run: Run) -> Judgement:
    return Judgement(
        load_requirements()[requirement],
        fields["scenario"],
        Verdict(fields["verdict"]),
        fields["witnesses"],
        fields["message"],
        tuple(map(_read_observation, fields["violations"])),
        witness=None if fields["witness"] is None else _read_observation(fields["witness"]),
        run=run,
    )


# The line for a run has all facts about the run that a report shows.


def _run_line(run: Run) -> dict[str, Any]:
    advertised, honesty = run.advertised, run.honesty
    return {
        "kind": "run",
        "name": run.name,
        "server": [advertised.name, advertised.version, advertised.delivery],
        "flags": sorted(run.flags),
        "capabilities": [asdict(capability) for capability in run.capabilities.values()],
        "ignored": honesty.ignored,
        "refused": honesty.refused,
        "tells_prompt_ids": run.tells_prompt_ids,
        "is_gateway": run.is_gateway,
    }


def _answers_of_causes(run: Run, judgements: Sequence[Judgement]) -> list[Answer]:
    """Return the answers with violations. Their requests show which violations follow from others."""
    places = (
        place.exchange
        for judgement in judgements
        for seen in judgement.violations
        for place in (seen.place, *seen.related)
    )
    return [run.by_exchange[name] for name in dict.fromkeys(places) if name in run.by_exchange]


def _answers_of_report(run: Run, judgements: Sequence[Judgement], furthest: set[int]) -> list[Answer]:
    """Return the answers that a report shows, in the order of the run.

    `furthest`: the `id()` of each judgement whose witness is shown.
    """
    names: set[str] = set()
    for judgement in judgements:
        names |= {seen.place.exchange for seen in judgement.violations[:MOST_EVIDENCE]}
        for seen in judgement.violations[:1]:
            names |= {place.exchange for place in seen.related}
            stream = run.by_exchange.get(seen.place.exchange)
            other = None if stream is None else held_against(run, stream, seen)
            names |= set() if other is None else {other.exchange.name}
        if judgement.witness is not None and id(judgement) in furthest:
            names.add(judgement.witness.place.exchange)
    return [stream for name, stream in run.by_exchange.items() if name in names]


def _lines(replayed: Replayed) -> Iterator[dict[str, Any]]:
    subject = replayed.subject
    yield {
        "kind": "head",
        "format": _FORMAT,
        "tokenwire": __version__,
        **{name: getattr(subject, name) for name in _OF_SUBJECT},
        "requirements": replayed.requirements,
        "selection": asdict(replayed.selection),
    }
    shown_witnesses = furthest(chain.from_iterable(chain.from_iterable(replayed.judged)))
    for run, judged in zip(subject.runs, replayed.judged, strict=True):
        judgements = list(chain.from_iterable(judged))
        yield _run_line(run)
        # A report may also show answers of a worker and its gateway, which are not in `run.streams`.
        alone = {stream.exchange.name for stream in run.streams}
        shown = _answers_of_report(run, judgements, shown_witnesses)
        names = {stream.exchange.name for stream in shown}
        for stream in _answers_of_causes(run, judgements):
            if stream.exchange.name not in names:
                asked = replace(stream.exchange.load(), reads=())
                yield {"kind": "request", "dialect": stream.dialect, "lines": list(exchange_lines(asked))}
        for stream in shown:
            exchange = stream.exchange.load()
            yield {
                "kind": "exchange",
                "dialect": stream.dialect,
                "alone": exchange.name in alone,
                "lines": list(exchange_lines(exchange)),
            }
        for row in judged:
            yield {"kind": "judged", "judgements": list(map(_judgement, row))}
    yield {"kind": "foot", "runs": len(subject.runs)}


def write_tally(replayed: Replayed, path: Path) -> None:
    """Write a tally file. Equal replays write equal bytes. Raises OSError."""
    write_lines(_lines(replayed), path)


def write_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write gzipped JSON Lines.

    The file appears only when it is complete. Equal rows give equal bytes. Raises OSError.
    """
    with begin(path) as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
        for row in rows:
            zipped.write(json.dumps(row, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n")
    unfinished(path).replace(path)


class _Reading:
    """Parses a tally file line by line."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        if head["kind"] != "head" or head["format"] != _FORMAT:
            raise ValueError(f"the first line is not the head of a tally file of format {_FORMAT}")
        if head["tokenwire"] != __version__:
            written = f"written by tokenwire {head['tokenwire']}, not by this version, {__version__}"
            raise UsageError(f"{written}; replay its captures again with --tally")
        self._head = head
        self.requirements = tuple(head["requirements"])
        unknown = set(self.requirements) - load_requirements().keys()
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]!r} is not a requirement")
        self._run: Mapping[str, Any] | None = None
        self._shown: list[tuple[Stream, bool]] = []
        self._asked: list[Stream] = []
        self._rows: list[list[Mapping[str, Any]]] = []
        self._runs: list[Run] = []
        self._judged: list[tuple[tuple[Judgement, ...], ...]] = []
        self.whole = False

    def take(self, line: Mapping[str, Any]) -> None:
        if self.whole:
            raise ValueError("there are lines after the last line of a tally (the foot)")
        match line["kind"]:
            case "run":
                self._close_run()
                self._run = line
            case "request":
                self._asked.append(self._read(line))
            case "exchange":
                self._shown.append((self._read(line), line["alone"]))
            case "judged":
                self._rows.append(line["judgements"])
            case "foot":
                self._close_run()
                if line["runs"] != len(self._runs):
                    raise ValueError(f"the file has {len(self._runs)} runs, not {line['runs']}")
                self.whole = True
            case kind:
                raise ValueError(f"{kind!r} is not a kind of line")

    def _read(self, line: Mapping[str, Any]) -> Stream:
        hint = _delivery(self._run or {})
        return load_dialects()[line["dialect"]].read(exchange_of(line["lines"]), delivery_hint=hint)

    def _close_run(self) -> None:
        head, shown, rows = self._run, self._shown, self._rows
        if head is None:
            return
        if len(rows) != len(self.requirements):
            raise ValueError(f"a run has judgements on {len(rows)} of {len(self.requirements)} requirements")
        name, version, _ = head["server"]
        run = Run(
            tuple(stream for stream, alone in shown if alone),
            Advertised(name=name, version=version, delivery=_delivery(head)),
            head["name"],
        )
        known = (*self._asked, *(stream for stream, _ in shown))
        honesty = [{what: tuple(by) for what, by in head[kind].items()} for kind in ("ignored", "refused")]
        # `Run` computes these values from all answers, but the file has only those that a report shows.
        vars(run).update(
            by_exchange={stream.exchange.name: stream for stream in known},
            is_gateway=head["is_gateway"],
            capabilities={fields["name"]: Capability(**fields) for fields in head["capabilities"]},
            flags=frozenset(head["flags"]),
            honesty=Honesty(*honesty),
            tells_prompt_ids=head["tells_prompt_ids"],
        )
        self._judged.append(
            tuple(
                tuple(_read_judgement(requirement, fields, run) for fields in row)
                for requirement, row in zip(self.requirements, rows, strict=True)
            )
        )
        self._runs.append(run)
        self._run, self._shown, self._asked, self._rows = None, [], [], []

    @property
    def replayed(self) -> Replayed:
        fields = ((name, self._head[name]) for name in _OF_SUBJECT)
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields
        }
        given["unanswered"] = {
            name: Unanswered(why, tuple(statuses)) for name, (why, statuses) in given["unanswered"].items()
        }
        left_out = {name: found.words for name, found in given["unanswered"].items()}
        subject = Subject(runs=tuple(self._runs), left_out=left_out, **given)
        selection = Selection(**{name: tuple(words) for name, words in self._head["selection"].items()})
        return Replayed(subject, self.requirements, selection, tuple(self._judged))


def _delivery(head: Mapping[str, Any]) -> Delivery | None:
    """Return the delivery mode that the server declared. None if the server declared none."""
    delivery = head["server"][2]
    return None if delivery is None else Delivery(delivery)


def values_of(path: Path) -> Iterator[Any]:
    """Yield the JSON value of each line. Raises UsageError and OSError."""
    size = values = 0
    try:
        for number, line in enumerate(lines(path, unzipped(path, cut_off=False)), 1):
            size, values = size + len(line), values + values_in(line)
            if size > _MOST_BYTES or values > _MOST_VALUES:
                raise UsageError(f"{path} is too large for memory; merge fewer captures at a time")
            try:
                yield value_of(line)
            except ValueError as error:
                raise UsageError(f"{path}, line {number}: not a line of a tally: {error}") from error
    except CaptureError as error:
        raise UsageError(f"{error}; write it again with --tally") from error


def kind_of_tally(path: Path) -> str:
    """Return the kind of a tally file.

    The kind is the name that a tool has given to the file, or `head` for a replay. Raises UsageError and
    OSError.
    """
    head = next(iter(values_of(path)), None)
    kind = head.get("kind") if isinstance(head, dict) else None
    return kind if isinstance(kind, str) else ""


def read_tally(path: Path) -> Replayed:
    """Read a tally file that `replay --tally` wrote. Raises UsageError and OSError."""
    reading: _Reading | None = None
    for number, line in enumerate(values_of(path), 1):
        try:
            if reading is None:
                reading = _Reading(line)
            else:
                reading.take(line)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: not a line of a tally: {error!r}") from error
    if reading is None or not reading.whole:
        raise UsageError(f"{path} is incomplete; write it again with --tally")
    return reading.replayed


def merged(parts: Sequence[tuple[str, Replayed]]) -> Replayed:
    """Merge tallies.

    The result is equal to that of one replay of all captures in this order. Each tally has a name for error
    messages. Raises UsageError if the tallies were judged with different options.
    """
    (first_name, first), *others = parts
    for name, other in others:
        for what, same in (
            ("requirements", other.requirements == first.requirements),
            ("options", other.selection == first.selection),
            ("tokenizer", other.subject.judged_with == first.subject.judged_with),
        ):
            if not same:
                raise UsageError(
                    f"{name} was judged with different {what} from {first_name}; replay both with equal "
                    "options"
                )
    subjects = [part.subject for _, part in parts]
    # In reverse order, so that the text of the first replay wins, as in a single replay.
    detected = {
        dialect: why
        for subject in reversed(subjects)
        for dialect, why in (
            *subject.taken.items(),
            *((name, found.why) for name, found in subject.unanswered.items()),
        )
    }
    taken = {name for subject in subjects for name in subject.taken}
    unanswered = {
        name: Unanswered(why, _all_statuses(name, subjects))
        for name, why in sorted(detected.items())
        if name not in taken
    }
    return replace(
        first,
        subject=Subject(
            captures=tuple(path for subject in subjects for path in subject.captures),
            runs=tuple(run for subject in subjects for run in subject.runs),
            dialects=tuple(sorted({name for subject in subjects for name in subject.dialects})),
            taken={name: why for name, why in sorted(detected.items()) if name in taken},
            left_out={name: found.words for name, found in unanswered.items()},
            unanswered=unanswered,
            remarks=tuple(words for subject in subjects for words in subject.remarks),
            rules=tuple(words for subject in subjects for words in subject.rules),
            judged_with=first.subject.judged_with,
        ),
        judged=tuple(judged for _, part in parts for judged in part.judged),
    )


def _all_statuses(dialect: str, subjects: Iterable[Subject]) -> tuple[int, ...]:
    """Return the statuses of the answers of a dialect in all replays, in order."""
    found = (subject.unanswered[dialect].statuses for subject in subjects if dialect in subject.unanswered)
    return tuple(sorted({status for statuses in found for status in statuses}))
