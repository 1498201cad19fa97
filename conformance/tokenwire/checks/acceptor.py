"""The acceptor: the executable definition of a legal delivery (spec chapter 2).

A server may cut a record into emissions in many ways, depending on its load. So the acceptor does not compare
a stream with one fixed cut: every legal cut of the record is accepted. It reads the emissions once, remembers
only how much of the record was delivered, and stops at the first illegal emission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tokenwire.record import Choice, Delivery
from tokenwire.target.alike import alike
from tokenwire.typed_table import counted
from tokenwire.wire.sharing import same_values


@dataclass(frozen=True)
class Record:
    """The whole answer of one choice, which must be delivered. None means unknown."""

    output_ids: Sequence[Any] | None = None
    text: str | None = None
    series: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Per-token series by name, one entry for each output id."""
    finish: str | None = None
    """The type of the finish reason."""
    text_after: Sequence[int] | None = None
    """The number of complete characters after each id. None if only the whole text is known."""


@dataclass(frozen=True)
class Delivered:
    """The content of one emission, as on the wire. None means that the emission lacks the field."""

    output_ids: Sequence[Any] | None = None
    text: str | None = None
    series: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    completion_tokens: int | None = None
    finish: str | None = None


@dataclass(frozen=True)
class Rules:
    """The rules by which a record is delivered."""

    mode: Delivery
    """Either CUMULATIVE or INCREMENTAL."""
    interval: int | None = None
    """The stream interval in force; None if unknown."""
    logprob_tolerance: float = 0.0
    """The allowed difference between two non-integer numbers, because two runs may round differently."""
    stop: tuple[str, ...] = ()
    """Stop strings that must not appear in the text. They only make an error message more precise."""


@dataclass(frozen=True)
class Acceptance:
    """The result for a delivery: legal, or the place and the reason of the first error."""

    legal: bool
    index: int | None = None
    """Index of the first illegal emission.

    The index equals the number of emissions if the stream ends too early.
    """
    field: str = ""
    """The illegal field: `output_ids`, `text`, `completion_tokens`, `finish` or the name of a series."""
    reason: str = ""
    """The reason, as a clause without its subject."""


@dataclass(frozen=True)
class DeliveryProgress:
    """The part of a record that was delivered so far."""

    ids: int = 0
    text: int = 0
    id_emissions: int = 0
    """The number of emissions with a list of ids, which may be empty."""
    finished: bool = False


@dataclass(frozen=True)
class Illegal:
    """The field of an emission that is illegal, and the reason."""

    field: str
    reason: str


def _first_difference(
    expected: Sequence[Any], actual: Sequence[Any], same: Callable[[Any, Any], bool]
) -> int | None:
    """Return the index of the first entry of `actual` that differs from `expected`. None if none differs."""
    if same_values(expected[: len(actual)], actual):
        # Most sequences are equal, and this test is many times faster than comparing each entry.
        return None
    for index, entry in enumerate(actual):
        if index >= len(expected) or not same(expected[index], entry):
            return index
    return None


def _same_id(first: object, second: object) -> bool:
    # 7.0 and True equal 7 and 1 in Python, but are not token ids (ids-are-token-ids).
    return type(first) is type(second) and first == second


def _judge_ids(record: Record, progress: DeliveryProgress, ids: Sequence[Any], rules: Rules) -> int | Illegal:
    """Return the number of ids delivered so far, or the error."""
    offset = progress.ids if rules.mode is Delivery.INCREMENTAL else 0
    if record.output_ids is not None:
        wrong = _first_difference(record.output_ids[offset:], ids, _same_id)
        if wrong is not None:
            position = offset + wrong
            if position >= len(record.output_ids):
                return Illegal("output_ids", f"has an id at position {position}, expected none")
            expected = repr(record.output_ids[position])
            return Illegal("output_ids", f"has {ids[wrong]!r} at position {position}, expected {expected}")
    delivered = offset + len(ids)
    if delivered < progress.ids:
        return Illegal("output_ids", f"goes back to {delivered} ids after {progress.ids} were delivered")
    return delivered


def _judge_text(record: Record, progress: DeliveryProgress, text: str, rules: Rules) -> int | Illegal:
    """Return the number of characters delivered so far, or the error."""
    if record.text is None:
        return progress.text
    offset = progress.text if rules.mode is Delivery.INCREMENTAL else 0
    if not record.text.startswith(text, offset):
        shown = next((stop for stop in rules.stop if stop and stop in text), None)
        if shown is not None:
            return Illegal("text", f"shows the stop string {shown!r}")
        if text.startswith(record.text[offset:]):
            return Illegal("text", "runs ahead of the expected text")
        return Illegal("text", f"is not the expected text from character {offset}")
    delivered = offset + len(text)
    if delivered < progress.text:
        return Illegal("text", f"goes back to {delivered} characters after {progress.text} were delivered")
    return delivered


def _runs_ahead(record: Record, ids: int, text: int) -> bool:
    """True if the delivered text is longer than the text of the delivered ids."""
    if record.text_after is None or record.output_ids is None:
        return False
    return text > (record.text_after[ids - 1] if ids else 0)


def _judge_series(
    record: Record, progress: DeliveryProgress, emission: Delivered, ids: int, rules: Rules
) -> Illegal | None:
    """Return the error if a series does not have exactly the record's entries for the emission's ids.

    A series may be missing where the record has only nulls, because it is unknown whether a late series will
    come.
    """
    start = progress.ids if rules.mode is Delivery.INCREMENTAL else 0
    if emission.output_ids is None:
        return None
    for name in sorted(record.series.keys() | emission.series.keys()):
        whole, entries = record.series.get(name), emission.series.get(name)
        due = ids - start
        if whole is not None and emission.finish is not None and not record.output_ids:
            due = len(whole)  # a request for zero tokens may be answered with one entry that has no id
        if entries is None:
            if due and whole is not None and any(entry is not None for entry in whole[start:ids]):
                return Illegal(name, f"is missing beside {due} output ids")
            continue
        if len(entries) != due:
            return Illegal(name, f"holds {counted(len(entries), 'entry')} for {due} output ids")
        same = partial(alike, tolerance=rules.logprob_tolerance)
        wrong = None if whole is None else _first_difference(whole[start:], entries, same)
        if wrong is not None:
            return Illegal(name, f"has another entry than expected at position {start + wrong}")
    return None


def _judge_finish(record: Record, ids: int, text: int, finish: str) -> Illegal | None:
    """Return the error if a finish comes before the whole record was delivered."""
    if record.finish is not None and finish != record.finish:
        return Illegal("finish", f"is {finish!r}, expected {record.finish!r}")
    if record.output_ids is not None and ids < len(record.output_ids):
        return Illegal("output_ids", f"finishes after {ids} of {len(record.output_ids)} output ids")
    if record.text is not None and text < len(record.text):
        return Illegal("text", f"finishes after {text} of {len(record.text)} characters")
    return None


def _is_idle(emission: Delivered, progress: DeliveryProgress) -> bool:
    """True if an emission of an incremental stream carries no new content."""
    counted = emission.completion_tokens in {None, progress.ids}
    holds = emission.output_ids or emission.text or emission.finish or any(emission.series.values())
    return counted and not holds


def step(
    record: Record, progress: DeliveryProgress, emission: Delivered, rules: Rules
) -> DeliveryProgress | Illegal:
    """Return the progress after one emission, or the error."""
    if progress.finished:
        # After the finish, a cumulative emission would repeat it, but the finish must come exactly once.
        idle = rules.mode is Delivery.INCREMENTAL and _is_idle(emission, progress)
        return progress if idle else Illegal("finish", "comes before the rest of the output")
    ids, text = progress.ids, progress.text
    if emission.output_ids is not None:
        judged = _judge_ids(record, progress, emission.output_ids, rules)
        if isinstance(judged, Illegal):
            return judged
        ids = judged
        new = ids - progress.ids
        # A choice that ends without any id has one emission, and it has no ids (spec/delivery.md).
        if progress.id_emissions == 0 and new == 0 and (record.output_ids or emission.finish is None):
            return Illegal("output_ids", "the first emission carries no id")
        # The interval applies only between the first and the last emission. The first comes with the first
        # token, the last brings the rest, and the finish may come alone. An emission between them may have no
        # new ids, because it may bring text that was held back.
        left = record.output_ids is None or ids < len(record.output_ids)
        inner = progress.id_emissions > 0 and emission.finish is None and left
        if inner and rules.interval is not None and 0 < new < rules.interval:
            return Illegal("output_ids", f"carries {new} new ids under an interval of {rules.interval}")
        if emission.completion_tokens is not None and emission.completion_tokens != ids:
            return Illegal("completion_tokens", f"is {emission.completion_tokens} after {ids} output ids")
    if emission.text is not None:
        judged = _judge_text(record, progress, emission.text, rules)
        if isinstance(judged, Illegal):
            return judged
        text = judged
        # Text may lag behind the ids (half a character, half a stop string), but never be ahead of them.
        # Otherwise a client that disconnects here would have text without its ids.
        if emission.finish is None and _runs_ahead(record, ids, text):
            return Illegal("text", f"shows {text} characters, more than {ids} output ids have completed")
    illegal = _judge_series(record, progress, emission, ids, rules)
    if illegal is None and emission.finish is not None:
        illegal = _judge_finish(record, ids, text, emission.finish)
    if illegal is not None:
        return illegal
    id_emissions = progress.id_emissions + (emission.output_ids is not None)
    return DeliveryProgress(ids, text, id_emissions, emission.finish is not None)


def accept(record: Record, emissions: Iterable[Delivered], rules: Rules) -> Acceptance:
    """Decide if the emissions, in order, are a legal delivery of the record.

    A delivery is legal under these conditions:

    - The first emission carries an id, if the record has any.
    - Each emission between the first and the last has no new ids, or at least as many as the interval.
    - Each series has one entry for each id, at every emission.
    - The text is a beginning of the record's text. It may lag behind the ids until the finish.
    - The finish comes exactly once, when everything was delivered, and nothing follows it.

    Fields that the record lacks, or that every emission lacks, are not judged.
    """
    emissions = tuple(emissions)
    record = _of_both_sides(record, emissions)
    progress = DeliveryProgress()
    for index, emission in enumerate(emissions):
        result = step(record, progress, emission, rules)
        if isinstance(result, Illegal):
            return Acceptance(False, index, result.field, result.reason)
        progress = result
    if not progress.finished:
        return Acceptance(False, len(emissions), "finish", "the delivery ends without a finish")
    return Acceptance(True)


def idle_start(emissions: Sequence[Delivered]) -> int:
    """Return the number of empty emissions at the beginning of an incremental stream.

    The requirement first-emission-has-a-token judges them, and not all server families promise it.
    """
    before = (n for n, emission in enumerate(emissions) if not _is_idle(emission, DeliveryProgress()))
    return next(before, 0)


def _of_both_sides(record: Record, emissions: Sequence[Delivered]) -> Record:
    """Return the record without the fields that every emission lacks. The two requests may have enabled
    different fields.
    """
    carried = {name for emission in emissions for name in emission.series}
    return replace(
        record,
        output_ids=record.output_ids if any(e.output_ids is not None for e in emissions) else None,
        text=record.text if any(e.text is not None for e in emissions) else None,
        series={name: entries for name, entries in record.series.items() if name in carried},
    )


def record_of(choice: Choice) -> Record:
    """Return the record that the emissions of a choice add up to. A whole answer has one emission, which is
    the record.
    """
    series = {name: choice.series(name) for name in choice.series_names}
    return Record(
        output_ids=choice.output_ids,
        text=choice.text,
        series={name: entries for name, entries in series.items() if entries is not None},
        finish=choice.finish.type if choice.finish else None,
    )


def deliveries_of(choice: Choice) -> tuple[Delivered, ...]:
    """Return the contents of a choice's emissions. A series that is not a list counts as missing."""
    return tuple(
        Delivered(
            output_ids=emission.output_ids,
            text=emission.text,
            series={name: value for name, value in emission.series.items() if isinstance(value, list)},
            completion_tokens=count if type(count) is int else None,
            finish=emission.finish.type if emission.finish else None,
        )
        for emission in choice.emissions
        for count in [emission.counters.get("completion_tokens")]
    )
