"""Reading logprob entries, in every shape in which servers write them.

SGLang writes `[logprob, id, text]`; chat and vLLM write objects with those names under `logprobs.content`,
the alternatives inside; completions write four parallel lists, in which tokens have texts and no ids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, cast

from tokenwire.checks.walk import (
    Field,
    Walked,
    all_of,
    as_list,
    integer,
    read_once,
    walked_choice,
)
from tokenwire.record import BROKEN, Choice, Columns

SAMPLED = "output_token_logprobs"
TOP = "output_top_logprobs"
CHOSEN = "output_token_ids_logprobs"
PROMPT = "input_token_logprobs"
PROMPT_TOP = "input_top_logprobs"
PROMPT_CHOSEN = "input_token_ids_logprobs"
CONTENT = "logprobs_content"
"""One object for each token, as chat has them."""
NAMES, NAMED, NAMED_TOP, OFFSETS = "tokens", "token_logprobs", "top_logprobs", "text_offset"
"""The parallel lists of completions: the text of each token, its logprob, the likeliest by text, offsets."""
LISTS = frozenset({NAMES, NAMED, NAMED_TOP, OFFSETS})
RANKED = "prompt_logprobs"
"""For each prompt position an object from token ids to logprob, rank and text, as vLLM has it."""

_LARGE = 2**53
_ID_AS_TEXT = re.compile(r"token_id:(\d+)")
"""How vLLM writes an id where the shape has room for a text only."""


class LogprobEntry(NamedTuple):
    """One token and the logprob that it had at its position; each may be any JSON value."""

    logprob: Any
    token_id: Any = None
    """None where the entry does not name an id."""
    text: Any = None
    data: Any = None
    """The bytes of the token, where the entry has them."""

    @property
    def whole_text(self) -> str | None:
        """The text by which the token is known; None for a part of a character, whose text others share."""
        text = self.text
        return text if isinstance(text, str) and text and BROKEN not in text else None


def id_in_text(text: object) -> int | None:
    """The id in a text of the form `token_id:7`; None for every other text."""
    found = _ID_AS_TEXT.fullmatch(text) if isinstance(text, str) else None
    return int(found[1]) if found else None


def read_entry(value: object) -> LogprobEntry | None:
    """An entry of a logprob series; None where the value is not one."""
    if type(value) is list and len(value) > 1 and type(value[0]) is float:  # as nearly always
        return LogprobEntry(value[0], value[1], value[2] if len(value) > 2 else None)
    if isinstance(value, (dict, Mapping)):
        if "logprob" not in value:
            return None
        text = value.get("token", value.get("decoded_token"))
        token_id = value.get("token_id", value.get("id"))
        if token_id is None:
            token_id = id_in_text(text)
        return LogprobEntry(value["logprob"], token_id, text, value.get("bytes"))
    entry = as_list(value)
    if entry is None or len(entry) < 2 or isinstance(entry[0], (list, tuple, Mapping)):
        return None
    return LogprobEntry(entry[0], entry[1], entry[2] if len(entry) > 2 else None)


def read_position(value: object) -> list[LogprobEntry] | None:
    """The entries of one position of a top or chosen-id series; None where it is not a list of entries."""
    entries = as_list(value)
    if entries is None:
        return None
    read = [read_entry(entry) for entry in entries]
    complete = [entry for entry in read if entry is not None]
    return complete if len(complete) == len(read) else None


def read_by_text(value: object) -> list[LogprobEntry] | None:
    """The entries of an object from texts to logprobs; None where it is not an object."""
    if not isinstance(value, Mapping):
        return None
    return [LogprobEntry(logprob, id_in_text(text), text) for text, logprob in value.items()]


def read_by_id(value: object) -> list[LogprobEntry] | None:
    """The entries of an object from ids, as digits, to objects; None where it is not one."""
    if not isinstance(value, Mapping):
        return None
    read = {key: read_entry(one) for key, one in value.items()}
    if any(one is None or not str(key).isdecimal() for key, one in read.items()):
        return None
    return [LogprobEntry(one.logprob, int(key), one.text) for key, one in read.items() if one]


class Position(NamedTuple):
    """What one logprob series tells of one output id."""

    sampled: LogprobEntry | None
    """None where the value is not an entry."""
    top: list[LogprobEntry] | None
    """None where no alternatives are told, or where the value is not a list of entries."""
    written_top: Any
    """The alternatives as they stand on the wire."""


class ReportedLogprobs(NamedTuple):
    """One way in which an emission tells the logprobs of its new output ids."""

    series: str
    """The series of the sampled entries."""
    top_series: str
    """The series of the alternatives; empty where the emission tells none."""
    positions: Sequence[Position]
    by_text: bool = False
    """The alternatives stand under their texts, of which several may be equal."""


def _of_lists(logprobs: list[Any], texts: list[Any], rows: list[Any]) -> list[Position]:
    positions: list[Position] = []
    for at, logprob in enumerate(logprobs):
        text = texts[at] if at < len(texts) else None
        row = rows[at] if at < len(rows) else None
        entry = LogprobEntry(logprob, id_in_text(text), text)
        positions.append(Position(entry, read_by_text(row), row))
    return positions


def reported_at(own: Walked, at: int) -> Iterator[ReportedLogprobs]:
    """The logprobs of the output ids that an emission is the first to carry, in each shape that it uses."""
    columns = own.columns.series
    names = (SAMPLED, TOP, CONTENT, NAMED, NAMED_TOP, NAMES)
    sampled, top, content, logprobs, named_top, texts = (
        as_list(columns[name][at]) if name in columns else None for name in names
    )
    seen = 0 if own.incremental else own.before[at]
    if sampled is not None:
        rows = top[seen:] if top is not None and len(top) == len(sampled) else None
        pairs = enumerate(sampled[seen:])
        yield ReportedLogprobs(
            SAMPLED,
            TOP if rows is not None else "",
            [
                Position(read_entry(one), read_position(rows[at]) if rows else None, rows and rows[at])
                for at, one in pairs
            ],
        )
    if content is not None:
        inner = [one.get(NAMED_TOP) if isinstance(one, Mapping) else None for one in content]
        yield ReportedLogprobs(
            CONTENT,
            CONTENT if any(inner) else "",
            [
                Position(read_entry(one), read_position(row) if row else None, row)
                for one, row in zip(content, inner, strict=True)
            ],
        )
    if logprobs is not None:
        top_series = "" if named_top is None else NAMED_TOP
        yield ReportedLogprobs(
            NAMED, top_series, _of_lists(logprobs, texts or [], named_top or []), by_text=True
        )


@read_once
def reported_logprobs(choice: Choice) -> tuple[tuple[ReportedLogprobs, ...], ...]:
    """What each emission of a choice tells of the logprobs of its new ids."""
    own = all_of(choice)
    return tuple(tuple(reported_at(own, at)) for at in own.at)


@read_once
def sampled_entries(choice: Choice) -> tuple[LogprobEntry | None, ...]:
    """The entries of the output ids of a choice, by position, in the first shape that tells them."""
    plain = plainly(choice)
    if plain is not None:
        return tuple(read_entry(entry) for part in plain.told.values for entry in part)
    told = (reported_logprobs(choice)[at][:1] for at in walked_choice(choice).kept)
    return tuple(at.sampled for first in told for one in first for at in one.positions)


def logprob_series(columns: Columns) -> tuple[str, ...]:
    """The names of the series of a choice that hold logprobs of the server's own, in their order."""
    return _of_logprobs(tuple(columns.series), columns.customized) if columns.series else ()


@lru_cache(maxsize=1 << 8)
def _of_logprobs(names: tuple[str, ...], customized: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if "logprob" in name and name not in customized))


class Flat(NamedTuple):
    """All entries `[logprob, id, text]` of a series, one behind the other."""

    entries: list[list[Any]]
    logprobs: list[float]
    ids: list[Any]
    width: int | None
    """How many stand in a list at each position; None where that differs, 0 where one stands in none."""

    @property
    def legal(self) -> bool:
        """Whether all logprobs are finite and not above 0."""
        return self.finite and max(self.logprobs, default=0.0) <= 0.0

    @property
    def finite(self) -> bool:
        return math.isfinite(sum(self.logprobs)) or all(map(math.isfinite, self.logprobs))

    @property
    def by_id(self) -> bool:
        """Whether every entry names an id."""
        return set(map(type, self.ids)) <= {int}


def flat(own: Walked, name: str) -> Flat | None:
    """The entries that a series of a choice tells first, at all positions; None where one is not plainly an
    entry, with a logprob that is a fraction, or a list of entries.
    """
    kept = vars(own).setdefault("flat", {})
    if name not in kept:
        kept[name] = _flat(list(chain.from_iterable(own.unseen(name).values)))
    return cast("Flat | None", kept[name])


def _flat(entries: list[Any]) -> Flat | None:
    width: int | None = 0
    if not _are_lists(entries):
        return None
    if entries and type(entries[0][0]) is list:
        sizes = set(map(len, entries))
        width = sizes.pop() if len(sizes) == 1 else None
        entries = list(chain.from_iterable(entries))
        if not _are_lists(entries):
            return None
    logprobs = [entry[0] for entry in entries]
    if not set(map(type, logprobs)) <= {float} or min(map(len, entries), default=2) < 2:
        return None
    return Flat(entries, logprobs, [entry[1] for entry in entries], width)


def _are_lists(values: list[Any]) -> bool:
    return set(map(type, values)) <= {list} and all(values)


def sizes_of(told: Field) -> list[int]:
    return list(map(len, told.values))


class Plainly(NamedTuple):
    """What a choice tells of its ids in lists `[logprob, id, text]`, and in no other shape."""

    told: Field
    """The entries of each emission."""
    sampled: Flat
    top: Flat | None
    """The alternatives; None where they do not stand at all positions, as many at each."""


@read_once
def plainly(choice: Choice) -> Plainly | None:
    """The logprobs of the ids of a choice in the usual shape; None for others: see `reported_logprobs`."""
    own = walked_choice(choice)
    sampled, names = flat(own, SAMPLED), own.columns.series
    if sampled is None or sampled.width != 0 or CONTENT in names or NAMED in names:
        return None
    told, beside = own.unseen(SAMPLED), own.unseen(TOP)
    if TOP not in names:
        return Plainly(told, sampled, None)
    top = flat(own, TOP)
    if top is None or not top.width or told.at != beside.at or sizes_of(told) != sizes_of(beside):
        return None
    return Plainly(told, sampled, top)


def reported_along(own: Walked) -> list[tuple[int, ReportedLogprobs]]:
    """All that a choice tells of the logprobs of its new ids, with where it stands."""
    told = reported_logprobs(own.choice)
    return [(at, one) for at, position in enumerate(own.kept) for one in told[position]]


def ids_listed(value: object) -> list[Any] | None:
    """The ids of a list of entries `[logprob, id, text]`; None for all that is not plainly one."""
    if type(value) is not list or not value:
        return None
    plain = [
        one[1]
        for one in value
        if type(one) is list and len(one) > 1 and type(one[0]) is float and type(one[1]) is int
    ]
    return plain if len(plain) == len(value) else None


def ids_named(value: object) -> list[Any]:
    """What stands for an id at one position of any logprob series, in each entry that names one or should."""
    if type(value) is list and len(value) > 1 and type(value[0]) is float and type(value[1]) is int:
        return [value[1]]
    ids = ids_listed(value)
    return [entry.token_id for entry in _entries_of(value)] if ids is None else ids


def _entries_of(value: object) -> list[LogprobEntry]:
    """The entries at one position of any logprob series that name an id, or should; none where malformed."""
    single = read_entry(value)
    entries = [single] if single is not None else read_position(value) or read_by_id(value) or []
    return [entry for entry in entries if entry.token_id is not None or entry.text is None]


def number_of(value: object) -> float | None:
    """A JSON number that can be calculated with; None for every other value."""
    small = isinstance(value, float) or (integer(value) is not None and abs(integer(value) or 0) < _LARGE)
    return float(value) if small and isinstance(value, int | float) and math.isfinite(value) else None


def is_legal_logprob(value: object) -> bool:
    """A finite JSON number that is not above 0."""
    if isinstance(value, float):
        return math.isfinite(value) and value <= 0
    number = integer(value)
    return number is not None and number <= 0


def _logprobs_of(value: object) -> list[Any]:
    """All logprobs at one position of any logprob series; empty where it holds none."""
    if isinstance(value, float) or integer(value) is not None:
        return [value]
    single = read_entry(value)
    if single is not None:
        inner = value.get(NAMED_TOP) if isinstance(value, Mapping) else None
        return [single.logprob, *(entry.logprob for entry in read_position(inner) or [])]
    entries = read_position(value) or read_by_id(value) or read_by_text(value) or []
    return [entry.logprob for entry in entries]


def surely_legal(value: object) -> bool:
    """Whether one position of a logprob series holds legal logprobs only, as can be seen at a glance."""
    if type(value) is list and value:
        first = value[0]
        if type(first) is float:
            return -math.inf < first <= 0 and len(value) > 1
        return type(first) is list and all(
            type(one) is list and len(one) > 1 and type(one[0]) is float and -math.inf < one[0] <= 0
            for one in value
        )
    if type(value) is dict and "logprob" in value:
        own, top = value["logprob"], value.get(NAMED_TOP) or []
        legal = type(own) is float and -math.inf < own <= 0
        return legal and type(top) is list and all(map(surely_legal, top))
    if type(value) is dict:
        return bool(value) and all(type(one) is float and -math.inf < one <= 0 for one in value.values())
    return type(value) is float and -math.inf < value <= 0


def illegal_logprobs(value: object) -> Iterator[Any]:
    """The logprobs at one position that are not finite and up to 0; the position itself if it has none."""
    logprobs = _logprobs_of(value)
    if not logprobs:
        yield value
    yield from (logprob for logprob in logprobs if not is_legal_logprob(logprob))
