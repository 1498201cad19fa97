"""Reading logprob entries, in every shape in which servers write them.

SGLang writes `[logprob, id, text]`; chat and vLLM write objects with those names under `logprobs.content`,
the alternatives inside; completions write four parallel lists, in which tokens have texts and no ids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenwire.checks.reading.fields import read_once
from tokenwire.record import BROKEN, ID_LIMIT, Choice, Emission, as_list, integer

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
    for position, logprob in enumerate(logprobs):
        text = texts[position] if position < len(texts) else None
        row = rows[position] if position < len(rows) else None
        entry = LogprobEntry(logprob, id_in_text(text), text)
        positions.append(Position(entry, read_by_text(row), row))
    return positions


def reported_at(emission: Emission) -> Iterator[ReportedLogprobs]:
    """The logprobs of the output ids that an emission is the first to carry, in each shape that it uses."""
    names = (SAMPLED, TOP, CONTENT, NAMED, NAMED_TOP, NAMES)
    sampled, top, content, logprobs, named_top, texts = map(emission.entries, names)
    if sampled is not None:
        rows = emission.unseen(top) if top is not None and len(top) == len(sampled) else None
        yield ReportedLogprobs(
            SAMPLED,
            TOP if rows is not None else "",
            [
                Position(
                    read_entry(entry),
                    read_position(rows[position]) if rows else None,
                    rows[position] if rows else None,
                )
                for position, entry in enumerate(emission.unseen(sampled))
            ],
        )
    if content is not None:
        inner = [entry.get(NAMED_TOP) if isinstance(entry, Mapping) else None for entry in content]
        yield ReportedLogprobs(
            CONTENT,
            CONTENT if any(inner) else "",
            [
                Position(read_entry(entry), read_position(row) if row else None, row)
                for entry, row in zip(content, inner, strict=True)
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
    return tuple(tuple(reported_at(emission)) for emission in choice.emissions)


@read_once
def sampled_entries(choice: Choice) -> tuple[LogprobEntry | None, ...]:
    """The entries of the output ids of a choice, by position, in the first shape that tells them."""
    every = reported_logprobs(choice)
    first = (reported for emission in choice.delivered for reported in every[emission.position][:1])
    return tuple(position.sampled for reported in first for position in reported.positions)


class NewEntries(NamedTuple):
    """What a logprob series holds for the output ids that its emission is the first to bring."""

    emission: Emission
    name: str
    values: list[Any]
    """As they stand on the wire; not empty."""
    sound: bool
    """Whether each is `[logprob, id, …]`, or a list of such, of legal logprobs and ids. In other shapes, too,
    they may be legal.
    """


@read_once
def new_logprobs(choice: Choice) -> tuple[NewEntries, ...]:
    """All that a choice tells of logprobs, emission by emission, the series in the order of their names."""
    named = sorted(name for name in choice.series_names if "logprob" in name)
    names = [name for name in named if name not in choice.customized]
    found = []
    for emission in choice.delivered:
        for name in names:
            values = emission.series.get(name)
            if isinstance(values, list) and (new := values[emission.seen_entries :]):
                found.append(NewEntries(emission, name, new, all(map(_is_sound, new))))
    return tuple(found)


def _is_sound(value: object) -> bool:
    if type(value) is not list or not value:
        return False
    for entry in (value,) if type(value[0]) is float else value:
        if not (_is_plain(entry) and -math.inf < entry[0] <= 0 <= entry[1] < ID_LIMIT):
            return False
    return True


def reported_along(choice: Choice) -> Iterator[tuple[Emission, ReportedLogprobs]]:
    """All that the emissions of a choice tell of the logprobs of its new ids."""
    every = reported_logprobs(choice)
    return ((emission, reported) for emission in choice.delivered for reported in every[emission.position])


def _is_plain(entry: object) -> bool:
    """Whether a value is `[logprob, id, …]` with the types that these have."""
    return type(entry) is list and len(entry) > 1 and type(entry[0]) is float and type(entry[1]) is int


def ids_named(value: object) -> list[Any]:
    """What stands for an id at one position of any logprob series, in each entry that names one or should."""
    if type(value) is list and value:  # as nearly always
        if _is_plain(value):
            return [value[1]]
        if all(map(_is_plain, value)):
            return [entry[1] for entry in value]
    single = read_entry(value)
    entries = [single] if single is not None else read_position(value) or read_by_id(value) or []
    return [entry.token_id for entry in entries if entry.token_id is not None or entry.text is None]


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


def illegal_logprobs(value: object) -> Iterator[Any]:
    """The logprobs at one position that are not finite and up to 0; the position itself if it has none."""
    if type(value) is list and value:  # as nearly always
        entries = [value] if _is_plain(value) else value
        if all(_is_plain(entry) and -math.inf < entry[0] <= 0 for entry in entries):
            return
    logprobs = _logprobs_of(value)
    if not logprobs:
        yield value
    yield from (logprob for logprob in logprobs if not is_legal_logprob(logprob))
