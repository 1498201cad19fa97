"""Checks of logprobs against the right logprobs, which can be computed for a known model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from tokenwire.checks.check import Target, check
from tokenwire.checks.difference import first_difference, observe_sequence
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.known_answers import SOURCE, KnownAnswer, ids_due, known_choices
from tokenwire.checks.prompt import prompt_logprobs
from tokenwire.checks.reading.fields import bringing, names_of_prompt
from tokenwire.dialects.dialect import policy_of
from tokenwire.dialects.logprobs import (
    CHOSEN,
    CONTENT,
    NAMED,
    NAMED_TOP,
    NAMES,
    OFFSETS,
    PROMPT_CHOSEN,
    PROMPT_TOP,
    SAMPLED,
    TOP,
    Logprob,
    Logprobs,
    LogprobSeries,
    id_in_text,
    joined_series,
    number_of,
    read_series,
)
from tokenwire.parrot.law import EXACT_ABOVE, Parrot
from tokenwire.parrot.recognition import Ids
from tokenwire.parrot.script import Truth
from tokenwire.parrot.vocabulary import Words
from tokenwire.record import Choice, Place, Stream, as_list, integer
from tokenwire.requirement import tolerance
from tokenwire.target.alike import ROUNDING

_MOST_RANKED = 20
"""The number of most likely ids whose order is certain for every type of weights."""
_COARSE = tolerance("coarse_share")
"""The allowed relative error of a small logprob, which is only as precise as the weights."""


Entry = list[Any]
"""A logprob, followed by its id if the id is known."""


@dataclass(frozen=True)
class _Right:
    """The right logprobs, and the allowed distance of reported logprobs from them."""

    law: Parrot
    rounding: float

    def number(self, due: float, reported: object) -> bool:
        number = number_of(reported)
        tolerance = self.rounding if due > EXACT_ABOVE else max(self.rounding, _COARSE * -due)
        return number is not None and abs(number - due) <= tolerance

    def entry(self, due: Entry, reported: Entry) -> bool:
        return self.number(due[0], reported[0]) and (len(reported) < 2 or reported[1] == due[1])

    def row(self, due: list[Entry], reported: list[Entry]) -> bool:
        return len(due) == len(reported) and all(map(self.entry, due, reported))

    def values(self, due: list[Entry], reported: list[Entry]) -> bool:
        return len(due) == len(reported) and all(
            self.number(right[0], entry[0]) for entry, right in zip(reported, due, strict=True)
        )

    def by_text(self, due: list[Entry], reported: list[Entry]) -> bool:
        """True if entries without ids are right. Tokens with equal text may share one entry; no other token
        has one.
        """
        of_some = (any(self.number(right[0], entry[0]) for right in due) for entry in reported)
        return 0 < len(reported) <= len(due) and all(of_some)


def _reported(entry: Logprob) -> Entry:
    return [entry.value] if entry.id is None else [entry.value, entry.id]


def _like(due: Sequence[Entry], reported: Sequence[Entry]) -> list[Entry]:
    """Return the right entries in the form of the reported ones: without the id if it is not reported."""
    forms = zip_longest(due, reported[: len(due)])
    return [right[: len(entry)] if entry else right for right, entry in forms]


def _rows_like(due: Sequence[list[Entry]], reported: Sequence[list[Entry]]) -> list[list[Entry]]:
    rows = zip_longest(due, reported[: len(due)], fillvalue=())
    return [_like(right, row) for right, row in rows]


def _sampled(choice: Choice) -> Iterator[tuple[str, list[Entry]]]:
    """Yield the entries of each series of the sampled ids of a choice. An entry that cannot be parsed stays
    as it is.
    """
    for name in (SAMPLED, CONTENT, NAMED):
        if (series := joined_series(choice, name)) is not None:
            both = zip(series.values, series.tokens, strict=True)
            yield name, [_reported(entry) if entry else [value] for value, entry in both]


def _with_logprobs(stream: Stream, target: Target) -> Iterator[tuple[KnownAnswer, _Right]]:
    """Yield the choices whose right logprobs are known and complete. A parser may have removed entries of
    other choices.
    """
    law = target.model.law if target.model is not None else None
    rounding_of = partial(target.noise.rounding, stream)
    if isinstance(law, Parrot) and stream.asked.uniform:
        for known in known_choices(stream, target):
            if not known.choice.parsed and not known.right.barred:
                names = known.choice.series_names | names_of_prompt(known.choice)
                yield known, _Right(law, max(map(rounding_of, names), default=ROUNDING))


def _due(stream: Stream, known: KnownAnswer, reported: int, name: str) -> Ids | None:
    """Return the ids for which a series must have entries. None if the server may choose.

    If the dialect promises entries only for visible content, the entries of a stop may be missing.
    """
    ids = ids_due(stream, known.right)
    if not known.finished:
        return ids[:reported]
    if name == CONTENT and not policy_of(stream).hidden_in_logprobs and reported < len(ids):
        return (
            ids[:reported] if known.right.finish == "stop" and _ids_of_final_text(known) <= reported else None
        )
    return ids


def _ids_of_final_text(known: KnownAnswer) -> int:
    """Count the ids that form the final text."""
    right = known.right
    sizes = (size for size, text in enumerate(right.texts, 1) if text.startswith(right.text))
    return next(sizes, len(right.ids))


def _observed_series(
    choice: Choice, name: str, due: Sequence[Any], reported: Sequence[Any], same: Callable[[Any, Any], bool]
) -> Observation:
    place = bringing(choice, name, first_difference(due, reported, same))
    return observe_sequence(place, f"{name} entry", expected=due, actual=reported, source=SOURCE, same=same)


@check("script-logprobs-are-right")
def _script_logprobs_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the entry of each output id has the right logprob."""
    for known, right in _with_logprobs(stream, target):
        for name, reported in _sampled(known.choice):
            ids = _due(stream, known, len(reported), name)
            if ids:
                due = _like([[right.law.logprob(token, token), token] for token in ids], reported)
                yield _observed_series(known.choice, name, due, reported, right.entry)


def _beginnings(right: Truth, words: Words) -> Iterator[int | None]:
    """Yield the offset of each id in the text. None for an id without visible text of its own."""
    for token, before, after in zip(right.ids, ("", *right.texts), right.texts, strict=False):
        piece = after[len(before) :]
        alone = words.pieces[token].decode("utf-8", "replace").startswith(piece)
        yield len(before) if piece and alone and len(before) < len(right.text) else None


def _same_beginning(due: int | None, reported: object) -> bool:
    return due is None or reported == due


@check("script-text-offsets-are-right")
def _script_text_offsets_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that each offset is where the id's characters begin, relative to the first id's offset."""
    if target.model is None:
        return
    words = target.model.words
    for known in known_choices(stream, target):
        reported, names = known.choice.series(OFFSETS), known.choice.series(NAMES) or []
        first = integer(reported[0]) if reported else None
        if not reported or first is None or first < 0 or any(id_in_text(name) is not None for name in names):
            continue
        due = list(_beginnings(known.right, words))[: len(reported)]
        if sum(position is not None for position in due) > 1:
            shown = [position if position is None else first + position for position in due]
            yield _observed_series(known.choice, OFFSETS, shown, reported[: len(due)], _same_beginning)


def _ranked(choice: Choice) -> Iterator[tuple[str, list[Logprobs | None]]]:
    """Yield the most likely ids of each series of a choice, by position."""
    for name in (TOP, CONTENT, NAMED_TOP):
        if (series := joined_series(choice, name)) is not None:
            first = name == CONTENT  # the entry of the token itself precedes its alternatives
            yield name, [entries[first:] if entries else None for entries in series.positions]


@dataclass(frozen=True)
class _Position:
    """A position at which the request enabled alternatives.

    `sampled` is the sampled id before the position.
    """

    right: _Right
    sampled: int
    token: int
    """The id at this position, which is sampled or part of the prompt."""
    count: int

    def is_right_for(self, entries: Logprobs | None) -> bool:
        """True if the entries have the highest logprobs at this position, and each id has its own logprob."""
        law, is_right = self.right.law, self.right.number
        if entries is None:
            return False
        numbers = [entry.number for entry in entries]
        known = sorted((number for number in numbers if number is not None), reverse=True)
        right = [logprob for _, logprob in law.top(self.sampled, self.count + 1)]
        stands = law.logprob(self.sampled, self.token)
        for entry in entries:
            token = integer(entry.id)
            if token is not None and not 0 <= token < law.vocab_size:
                return False
            if token is not None and not is_right(law.logprob(self.sampled, token), entry.value):
                return False
        if len(known) < len(entries) or not known:
            return False
        if any(entry.id is None for entry in entries):
            # Tokens with equal text may share an entry. So the most likely entry must come first, and there
            # must be no unexpected entry.
            among = [*right, stands]
            return is_right(right[0], known[0]) and all(
                any(is_right(logprob, number) for logprob in among) for number in known
            )
        beside = [*right[: self.count], *([stands] if len(known) > self.count else [])]
        due = sorted(beside, reverse=True)
        return len(known) == len(due) and all(map(is_right, due, known))

    @property
    def shown(self) -> list[Entry]:
        """The right entries, for a message."""
        return [[round(logprob, 5), token] for token, logprob in self.right.law.top(self.sampled, self.count)]


def _observed_ranks(
    place: Place, name: str, due: Sequence[_Position], reported: Sequence[Logprobs | None]
) -> Observation:
    position = first_difference(due, reported, _Position.is_right_for)
    if position is None:
        words = f"the likeliest at each of {len(due)} positions"
        return expect(place, words, words, holds=True)
    entries = (reported[position] or []) if position < len(reported) else []
    rows = [_reported(entry) for entry in entries]
    expected: Any = _like(due[position].shown, rows) if position < len(due) else "nothing"
    actual = rows or "nothing"
    message = f"{name} entry {position} is {actual}, but {expected} in {SOURCE}"
    return expect(place, expected, actual, message, holds=False)


@check("script-top-logprobs-are-right")
def _script_top_logprobs_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check the highest logprobs at each output id, by value."""
    count = stream.asked.top_logprobs
    for known, right in _with_logprobs(stream, target) if 1 <= count <= _MOST_RANKED else ():
        for name, reported in _ranked(known.choice):
            ids = _due(stream, known, len(reported), name)
            if ids:
                due = [_Position(right, token, token, count) for token in ids]
                wrong = first_difference(due, reported, _Position.is_right_for)
                place = bringing(known.choice, name, wrong)
                yield _observed_ranks(place, name, due, reported)


def _rows(series: LogprobSeries) -> list[list[Entry]]:
    return [list(map(_reported, entries or ())) for entries in series.positions]


@check("script-chosen-logprobs-are-right")
def _script_chosen_logprobs_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check the logprobs of the ids that the request chose, at each output id and in the order of the
    request.
    """
    asked = stream.asked.chosen_ids
    for known, right in _with_logprobs(stream, target) if asked else ():
        law, series = right.law, joined_series(known.choice, CHOSEN)
        if series is None or not all(0 <= token < law.vocab_size for token in asked):
            continue
        reported = _rows(series)
        ids = _due(stream, known, len(reported), CHOSEN)
        if ids:
            due = _rows_like([_chosen_row(law, asked, token) for token in ids], reported)
            yield _observed_series(known.choice, CHOSEN, due, reported, right.row)
    yield from _in_place_of_top(stream, target)


def _in_place_of_top(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check the logprobs of the chosen ids where they follow the sampled id among the top logprobs.

    They are compared by value, because their ids are not reported.
    """
    asked = stream.asked.chosen_in_top
    for known, right in _with_logprobs(stream, target) if asked else ():
        law = right.law
        in_vocabulary = all(0 <= token < law.vocab_size for token in asked)
        for name, rows in _ranked(known.choice) if in_vocabulary else ():
            reported = [list(map(_reported, row or ())) for row in rows]
            ids = _due(stream, known, len(reported), name)
            if ids:
                rows_due = [_chosen_row(law, tuple(dict.fromkeys((token, *asked))), token) for token in ids]
                due = _rows_like(rows_due, reported)
                same = right.by_text if name == NAMED_TOP else right.values
                yield _observed_series(known.choice, name, due, reported, same)


@check("script-prompt-logprobs-are-right")
def _script_prompt_logprobs_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that each id of the prompt has the right logprob, given the ids before it."""
    for known, right in _with_logprobs(stream, target):
        law, carried = right.law, prompt_logprobs(stream, known.choice)
        if carried is not None and carried[1]:
            place, reported = carried
            positions = sorted(position for position in reported if 0 < position < len(known.prompt))
            ids = known.prompt
            yield observe_sequence(
                place,
                "the logprob of prompt id",
                expected=[law.logprob(ids[p - law.lag(p)], ids[p]) for p in positions],
                actual=[reported[position] for position in positions],
                source=SOURCE,
                same=right.number,
                numbers=positions,
            )
        yield from _beside_the_prompt(stream, known, right)


def _beside_the_prompt(stream: Stream, answer: KnownAnswer, right: _Right) -> Iterator[Observation]:
    """Check the most likely ids and the chosen ids at each position of the prompt, in SGLang's format."""
    asked, prompt, law = stream.asked, answer.prompt, right.law
    start = asked.logprob_start
    for emission in answer.choice.emissions[:1] if start is not None else ():
        ranks = as_list(emission.prompt_series.get(PROMPT_TOP))
        positions = range((start or 0) + 1, len(prompt))
        stated = [prompt[position - law.lag(position)] for position in positions]
        if ranks is not None and 1 <= asked.top_logprobs <= _MOST_RANKED and positions:
            due = [
                _Position(right, token, prompt[position], asked.top_logprobs)
                for position, token in zip(positions, stated, strict=True)
            ]
            reported = read_series(PROMPT_TOP, ranks[1:]).positions
            yield _observed_ranks(emission.at(PROMPT_TOP), PROMPT_TOP, due, reported)
        rows = as_list(emission.prompt_series.get(PROMPT_CHOSEN))
        known = all(0 <= token < law.vocab_size for token in asked.chosen_ids)
        if rows is not None and asked.chosen_ids and positions and known:
            yield observe_sequence(
                emission.at(PROMPT_CHOSEN),
                f"{PROMPT_CHOSEN} entry",
                expected=[_chosen_row(law, asked.chosen_ids, token) for token in stated],
                actual=_rows(read_series(PROMPT_CHOSEN, rows[1:])),
                source=SOURCE,
                same=right.row,
            )


def _chosen_row(law: Parrot, chosen: Sequence[int], stated: int) -> list[Entry]:
    return [[law.logprob(stated, token), token] for token in chosen]
