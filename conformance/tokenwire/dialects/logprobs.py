"""Converts logprobs to one form for the checks. Servers write them in several forms.

SGLang writes `[logprob, id, text]`. Chat endpoints and vLLM write objects under `logprobs.content`, each with
the alternatives. Completions endpoints write four parallel lists, in which tokens have a text and no id. For
the prompt, vLLM writes an object for each position, with ids as keys. The name of a series decides its form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, starmap, zip_longest
from typing import Any, NamedTuple

from tokenwire.record import BROKEN, Choice, Emission

SAMPLED = "output_token_logprobs"
TOP = "output_top_logprobs"
CHOSEN = "output_token_ids_logprobs"
PROMPT = "input_token_logprobs"
PROMPT_TOP = "input_top_logprobs"
PROMPT_CHOSEN = "input_token_ids_logprobs"
CONTENT = "logprobs_content"
"""The series of chat endpoints: one object for each token."""
MASK, MASK_LOGPROBS = "output_token_sampling_mask", "output_token_sampling_logprobs"
"""For each output id, the set of ids that the sampler allowed; and the logprob of the output id within this
set.
"""
NAMES, NAMED, NAMED_TOP, OFFSETS = "tokens", "token_logprobs", "top_logprobs", "text_offset"
"""The parallel lists of completions endpoints: token texts, their logprobs, alternatives by text, text
offsets.
"""
LISTS = frozenset({NAMES, NAMED, NAMED_TOP, OFFSETS})
RANKED = "prompt_logprobs"
"""The series of vLLM for prompts: for each position an object from ids to logprob, rank and text."""

LEAST = -745.0
"""No logprob is below this number: the logarithm of the smallest positive double is about -744.4.

Servers write a smaller number for a token that has no logprob: -9999.0 in OpenAI's format.
"""
_LARGE = 2**53
_ID_AS_TEXT = re.compile(r"token_id:(\d{1,19})")
"""Matches `token_id:7`, which vLLM may write in place of a text.

The number of digits is limited for Python's `int`.
"""
_ID_AS_KEY = re.compile(r"\d{1,19}")


class Logprob(NamedTuple):
    """An entry for a token: its logprob, and how the token is identified.

    Each field may be any JSON value.
    """

    value: Any
    id: Any = None
    """The token id; None if the entry does not have it."""
    text: Any = None
    data: Any = None
    """The bytes of the token as a list of integers; None if the entry does not have them."""

    @property
    def whole_text(self) -> str | None:
        """The text, if it identifies the token; None for a part of a character, whose text several tokens
        share.
        """
        text = self.text
        return text if isinstance(text, str) and text and BROKEN not in text else None

    @property
    def names_id(self) -> bool:
        """True if the entry has an id, or should have one because it has no text."""
        return self.id is not None or self.text is None

    @property
    def bytes(self) -> bytes | None:
        """The token's bytes; None if they are missing or not integers below 256."""
        data = self.data
        fits = isinstance(data, list) and all(type(byte) is int and 0 <= byte < 256 for byte in data)
        return bytes(data) if fits else None

    @property
    def number(self) -> float | None:
        """The logprob; None if the value is not a number, or is the placeholder for a missing logprob."""
        number = number_of(self.value)
        return None if number is None or number < LEAST else number


Logprobs = list[Logprob]


def id_in_text(text: object) -> int | None:
    """Return the id in a text like `token_id:7`; None for any other text."""
    found = _ID_AS_TEXT.fullmatch(text) if isinstance(text, str) else None
    return int(found[1]) if found else None


def _entry(value: object) -> Logprob | None:
    """Parse `[logprob, id]`, `[logprob, id, text]`, or an object with these; None for anything else."""
    if type(value) is list:
        # A list that begins with a list or an object is a list of alternatives, not an entry.
        if len(value) < 2 or isinstance(value[0], (list, dict)):
            return None
        return Logprob(*value[:3])
    if not isinstance(value, dict) or "logprob" not in value:
        return None
    text = value.get("token", value.get("decoded_token"))
    token = value.get("token_id", value.get("id"))
    return Logprob(value["logprob"], id_in_text(text) if token is None else token, text, value.get("bytes"))


def _single(value: object) -> Logprobs | None:
    entry = _entry(value)
    return None if entry is None else [entry]


def _several(value: object) -> Logprobs | None:
    if not isinstance(value, list):
        return None
    # The usual case is inlined, because a function call for each entry would take longer than the work
    # itself.
    read = [
        Logprob(*entry)
        if type(entry) is list and len(entry) == 3 and type(entry[0]) is float
        else _entry(entry)
        for entry in value
    ]
    known = [entry for entry in read if entry is not None]
    return known if len(known) == len(read) else None


def _with_alternatives(value: object) -> Logprobs | None:
    entry = _entry(value)
    if entry is None:
        return None
    return [entry, *(_several(value.get(NAMED_TOP)) or ())] if isinstance(value, dict) else [entry]


def _by_text(value: object) -> Logprobs | None:
    if not isinstance(value, dict):
        return None
    return [Logprob(number, id_in_text(text), text) for text, number in value.items()]


def _by_id(value: object) -> Logprobs | None:
    """Parse an object from ids to entries. They are sorted by rank, because some gateways sort the keys."""
    if not isinstance(value, dict) or not all(map(_ID_AS_KEY.fullmatch, value)):
        return None
    read = [(int(key), _entry(entry)) for key, entry in sorted(value.items(), key=_rank)]
    known = [Logprob(entry.value, token, entry.text) for token, entry in read if entry is not None]
    return known if len(known) == len(read) else None


def _rank(item: tuple[str, Any]) -> float:
    """Return a sort key: the rank of an entry, or its negative logprob if it has no rank."""
    entry = item[1] if isinstance(item[1], dict) else {}
    rank = entry.get("rank")
    return rank if type(rank) is int else -(number_of(entry.get("logprob")) or 0.0)


def _named(number: object, text: object = None) -> Logprob:
    """Return an entry of the parallel lists, which identify a token by its text."""
    return Logprob(number, id_in_text(text), text if isinstance(text, str) else "")


def _number(value: object) -> Logprobs | None:
    return [_named(value)]


_SHAPES: Mapping[str, Callable[[Any], Logprobs | None]] = {
    SAMPLED: _single,
    PROMPT: _single,
    **dict.fromkeys((TOP, CHOSEN, PROMPT_TOP, PROMPT_CHOSEN), _several),
    CONTENT: _with_alternatives,
    NAMED: _number,
    NAMED_TOP: _by_text,
    RANKED: _by_id,
}
"""The parser for the values of each series. It returns None for a malformed value."""


class LogprobSeries(NamedTuple):
    """A logprob series of an emission, parsed."""

    name: str
    values: list[Any]
    """The values as the server wrote them."""
    positions: list[Logprobs | None]
    """The entries at each position: the token itself, then its alternatives; None for a malformed value."""

    @property
    def tokens(self) -> list[Logprob | None]:
        """Return the entry of the token itself at each position."""
        return [position[0] if position else None for position in self.positions]

    @property
    def illegal(self) -> list[Any]:
        """Return the logprobs that are not finite numbers of at most 0, and the values that are malformed."""
        found: list[Any] = []
        for value, position in zip(self.values, self.positions, strict=True):
            if not position:
                found.append(value)
                continue
            for number, _, _, _ in position:
                if not (type(number) is float and -math.inf < number <= 0) and not is_legal(number):
                    found.append(number)
        return found

    @property
    def is_observed(self) -> bool:
        """True if an entry has a logprob, and not only the placeholder for a missing one."""
        numbers = (number for position in self.positions for number, _, _, _ in position or ())
        return any(type(number) in {float, int} and number >= LEAST for number in numbers)

    @property
    def ids(self) -> list[Any]:
        """Return the id of each entry that has an id, or that should have one because it has no text."""
        return [
            token
            for position in self.positions
            for _, token, text, _ in position or ()
            if token is not None or text is None
        ]


def read_series(name: str, values: list[Any], texts: object = None) -> LogprobSeries:
    """Parse a logprob series. `texts`: the texts of its tokens, if they are in a list of their own."""
    if name == NAMED and isinstance(texts, list):
        named = zip_longest(values, texts[: len(values)])
        return LogprobSeries(name, values, [[_named(value, text)] for value, text in named])
    return LogprobSeries(name, values, list(map(_SHAPES[name], values)))


class Position(NamedTuple):
    """The logprobs at one output position."""

    sampled: Logprob | None
    """The entry of the sampled id; None if it is malformed."""
    top: Logprobs | None = None
    """The alternatives; None if they are missing or malformed."""
    written_top: Any = None
    """The alternatives as the server wrote them."""


class ReportedLogprobs(NamedTuple):
    """The logprobs of an emission's new output ids, from one series."""

    series: str
    """The name of the series with the sampled entries."""
    top_series: str
    """The name of the series with the alternatives; empty if there are none."""
    positions: list[Position]
    by_text: bool = False
    """True if the alternatives are an object with texts as keys. Tokens with equal texts then share a key."""


def _beside(sampled: LogprobSeries, top: LogprobSeries | None) -> list[Position]:
    """Combine a series of sampled entries with a series of alternatives."""
    if top is None:
        return [Position(token) for token in sampled.tokens]
    known = zip_longest(sampled.tokens, top.positions, top.values)
    return list(starmap(Position, islice(known, len(sampled.values))))


def _of_content(content: LogprobSeries) -> ReportedLogprobs:
    positions = []
    for value, entries in zip(content.values, content.positions, strict=True):
        inner = value.get(NAMED_TOP) if isinstance(value, dict) else None
        sampled, top = (entries[0], entries[1:]) if entries else (None, None)
        positions.append(Position(sampled, top or _several(inner), inner))
    has_top = any(position.written_top for position in positions)
    return ReportedLogprobs(CONTENT, CONTENT if has_top else "", positions)


def _reported(emission: Emission, read: Mapping[str, LogprobSeries]) -> Iterator[ReportedLogprobs]:
    """Yield the logprobs of an emission's new output ids, once for each form in which the emission has
    logprobs.
    """
    if (sampled := read.get(SAMPLED)) is not None:
        top = read.get(TOP)
        # If the lists have different lengths, it is unknown which alternatives belong to which id.
        if top is None or len(top.values) != len(sampled.values):
            yield ReportedLogprobs(SAMPLED, "", _beside(sampled, None))
        else:
            yield ReportedLogprobs(SAMPLED, TOP, _beside(sampled, top))
    if (content := read.get(CONTENT)) is not None:
        yield _of_content(content)
    if (named := read.get(NAMED)) is not None:
        top, has_top = read.get(NAMED_TOP), emission.entries(NAMED_TOP) is not None
        yield ReportedLogprobs(NAMED, NAMED_TOP if has_top else "", _beside(named, top), by_text=True)


class _EmittedLogprobs(NamedTuple):
    """All logprobs of an emission's new output ids, parsed."""

    series: Sequence[LogprobSeries]
    """The series that are not empty, sorted by name."""
    reported: Sequence[ReportedLogprobs]


_NO_LOGPROBS = _EmittedLogprobs((), ())


def logprobs_of(choice: Choice) -> list[_EmittedLogprobs]:
    """Return the logprobs of each emission of a choice.

    Cached, because nearly all checks of logprobs need them.
    """
    if logprobs_of not in choice.cache:
        names = sorted(_SHAPES.keys() & choice.series_names)
        choice.cache[logprobs_of] = [_emitted(emission, names) for emission in choice.emissions]
    found: list[_EmittedLogprobs] = choice.cache[logprobs_of]
    return found


def _emitted(emission: Emission, names: Sequence[str]) -> _EmittedLogprobs:
    if not names:
        return _NO_LOGPROBS
    read: dict[str, LogprobSeries] = {}
    all_series, seen = emission.series, emission.seen_entries
    texts = all_series.get(NAMES)
    if seen and isinstance(texts, list):
        texts = texts[seen:]
    for name in names:
        values = all_series.get(name)
        if isinstance(values, list) and (new := values[seen:] if seen else values):
            read[name] = read_series(name, new, texts)
    return _EmittedLogprobs(list(read.values()), list(_reported(emission, read)))


class Ranked(NamedTuple):
    """An entry with the rank that it reports, and the position to which it belongs."""

    token: object
    number: float
    rank: Any
    """The reported rank, which may be any JSON value; None if the entry has no rank."""


def _ranked(token: object, entry: object) -> list[Ranked]:
    """Return a list with the entry; an empty list if its logprob is not a number."""
    number = number_of(entry.get("logprob")) if isinstance(entry, dict) else None
    return [] if number is None or not isinstance(entry, dict) else [Ranked(token, number, entry.get("rank"))]


def ranked_entries(value: object) -> list[Ranked]:
    """Return the entries with ranks at a position.

    The value is an object as in chat, or an object with ids as keys.
    """
    if not isinstance(value, dict):
        return []
    if "logprob" not in value:
        return [found for token, entry in value.items() for found in _ranked(token, entry)]
    listed = value.get(NAMED_TOP)
    entries = [value, *(listed if isinstance(listed, list) else ())]
    named = (
        (entry.get("token_id", entry.get("token")), entry) for entry in entries if isinstance(entry, dict)
    )
    return [found for token, entry in named for found in _ranked(token, entry)]


def has_ranks(emission: Emission) -> bool:
    """True if an emission has logprob entries with ranks, for output ids or for the prompt."""
    every = (emission.series.get(CONTENT), emission.prompt_series.get(RANKED))
    firsts = (next(filter(None, values), None) for values in every if isinstance(values, list))
    return any(entry.rank is not None for first in firsts for entry in ranked_entries(first)[:1])


def series_along(choice: Choice) -> Iterator[tuple[Emission, LogprobSeries]]:
    """Yield all logprob series in the emissions of a choice, without repeated entries."""
    every = logprobs_of(choice)
    return ((emission, series) for emission in choice.delivered for series in every[emission.position].series)


def reported_along(choice: Choice) -> Iterator[tuple[Emission, ReportedLogprobs]]:
    """Yield the logprobs of new output ids in the emissions of a choice."""
    every = logprobs_of(choice)
    return (
        (emission, reported)
        for emission in choice.delivered
        for reported in every[emission.position].reported
    )


def joined_series(choice: Choice, name: str) -> LogprobSeries | None:
    """Return a series of a choice, joined over all emissions; None if it has no list."""
    if all(emission.entries(name) is None for emission in choice.emissions):
        return None
    joined = LogprobSeries(name, [], [])
    for _, series in series_along(choice):
        if series.name == name:
            joined.values.extend(series.values)
            joined.positions.extend(series.positions)
    return joined


def sampled_entries(choice: Choice) -> list[Logprob | None]:
    """Return the entries of a choice's output ids by position, from the first form that has them."""
    every = logprobs_of(choice)
    first = (reported for emission in choice.delivered for reported in every[emission.position].reported[:1])
    return [position.sampled for reported in first for position in reported.positions]


def prompt_series(choice: Choice, name: str) -> tuple[Emission, LogprobSeries] | None:
    """Return a logprob series of a choice's prompt; None if it has no list."""
    for emission in choice.emissions:
        if isinstance(values := emission.prompt_series.get(name), list):
            return emission, read_series(name, values, emission.prompt_series.get(NAMES))
    return None


def is_logprob_series(name: str) -> bool:
    """True if a series has logprobs of the model.

    False for logprobs within the set of ids that the sampler allowed.
    """
    return "logprob" in name and "sampling" not in name


def is_legal(value: object) -> bool:
    """True if a value is a legal logprob: a finite JSON number of at most 0."""
    if type(value) is float:
        return -math.inf < value <= 0
    return type(value) is int and value <= 0


def number_of(value: object) -> float | None:
    """Return a finite JSON number as a float; None for any other value, and for large integers."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    # A larger integer has no exact float; a very large one raises OverflowError.
    return float(value) if type(value) is int and abs(value) < _LARGE else None
