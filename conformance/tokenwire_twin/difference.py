"""A difference between two answers, and the two answers that are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

from tokenwire.checks.evidence import Observation
from tokenwire.checks.reading.json_fields import is_of_the_cache
from tokenwire.dialects.dialect import dialect_of
from tokenwire.record import Place, Stream
from tokenwire.report.wording import value
from tokenwire.target.alike import alike
from tokenwire.target.determinism import Comparison
from tokenwire.wire import strict_json
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import join

NAMES = frozenset({"model", "rid", "request_id"})
"""Request fields that may differ between two equal requests."""
_ABSENT = object()


class Gravity(StrEnum):
    """The subjects of differences, the most serious first."""

    FAILED = "server errors"
    SERVED = "endpoints not served"
    REFUSED_B = "refused by B alone"
    REFUSED_A = "refused by A alone"
    PROMPT = "prompt ids"
    IDS = "output ids"
    TEXT = "text"
    CHANNELS = "channels"
    FINISH = "finish, usage"
    LOGPROBS = "logprobs"
    FIELDS = "other fields"
    ERRORS = "refusals"
    ROWS = "requirements"
    REMARKS = "remarks"


@dataclass(frozen=True)
class Difference:
    """A difference between two answers to the same request."""

    gravity: Gravity
    kind: str
    """The kind of value that differs: status, field, text, series, finish, counter, and others."""
    subject: str
    """The field, JSON pointer or series that differs; empty for the whole answer."""
    says: str
    """A description without numbers and names, so that it is equal for all differences of one family."""
    message: str
    exchange: str
    dialect: str
    key: str = ""
    """A key that is equal for requests with the same expected output, with and without streaming."""
    one: Place | None = None
    other: Place | None = None
    excerpts: tuple[str, str] = ("", "")
    """The values of both sides at the place of the difference, as text."""
    sizes: tuple[int, int] | None = None
    """The number of entries on each side, if the two numbers differ."""
    request: str = ""
    """The request in one line, for a server error."""

    @property
    def family(self) -> tuple[str, str, str]:
        return self.kind, self.subject, self.says

    @property
    def decides(self) -> bool:
        """True if the two answers count as different.

        Differences such as the number of events do not count.
        """
        return self.gravity is not Gravity.REMARKS


def is_volatile(path: str, volatile: frozenset[str]) -> bool:
    """True if the value at a path differs even between two answers of one server."""
    name = path.rpartition("/")[2]
    return is_of_the_cache(path) or any(fnmatchcase(name, pattern) for pattern in volatile)


def body_of(request: HttpRequest) -> Any:
    """Return the body of a request, without the fields that may differ between equal requests."""
    body = request.body
    if request.raw_body is not None:
        try:
            body = strict_json.loads(request.raw_body.decode())
        except ValueError:
            return request.raw_body
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if name not in NAMES}


def first_apart(
    first: Any,
    second: Any,
    volatile: frozenset[str] = frozenset(),
    path: str = "",
    tolerance: float | None = None,
) -> tuple[str, Any, Any] | None:
    """Return the first path at which two JSON values differ by more than rounding, with both values at this
    path. Volatile fields are ignored. Return None if the values are equal.
    """
    if volatile and is_volatile(path, volatile):
        return None
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        pairs: Iterator[tuple[object, Any, Any]] = (
            (name, first.get(name, _ABSENT), second.get(name, _ABSENT)) for name in {**first, **second}
        )
    elif isinstance(first, list) and isinstance(second, list):
        entries = zip_longest(first, second, fillvalue=_ABSENT)
        pairs = ((index, ours, theirs) for index, (ours, theirs) in enumerate(entries))
    else:
        same = alike(first, second) if tolerance is None else alike(first, second, tolerance)
        return None if same else (path, first, second)
    for key, ours, theirs in pairs:
        found = first_apart(ours, theirs, volatile, path + join(key), tolerance)
        if found is not None:
            return found
    return None


def asked_otherwise(first: Stream, second: Stream) -> tuple[str, Any, Any] | None:
    """Return the first path at which two requests differ, with the value in each request.

    None if the requests are equal.
    """
    return first_apart(body_of(first.exchange.request), body_of(second.exchange.request))


def in_words(thing: Any) -> str:
    return "nothing" if thing is _ABSENT else value(thing)


@dataclass(frozen=True)
class Pair:
    """Two answers to requests with the same exchange name."""

    both: Comparison
    names: tuple[str, str]
    """The names of both sides, for messages."""
    volatile: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        dialects = map(dialect_of, (self.both.baseline, self.both.other))
        names = frozenset(name for dialect in dialects if dialect is not None for name in dialect.volatile)
        object.__setattr__(self, "volatile", names)

    @property
    def first(self) -> Stream:
        return self.both.baseline

    @property
    def second(self) -> Stream:
        return self.both.other

    @property
    def source(self) -> str:
        return self.names[0]

    def differs(
        self,
        gravity: Gravity,
        family: tuple[str, str, str],
        message: str = "",
        places: tuple[Place | None, Place | None] = (None, None),
    ) -> Difference:
        """Return a difference. `family`: its kind, its subject and its description."""
        name, dialect = self.first.exchange.name, self.second.dialect
        key = self.first.asked.key or name
        return Difference(gravity, *family, message or family[-1], name, dialect, key, *places)

    def in_sides(self, ours: str, theirs: str) -> str:
        return f"{ours} in {self.names[0]}, {theirs} in {self.names[1]}"

    def longer(self, ours: Sized, theirs: Sized) -> str:
        """Return the name of the side with the longer value."""
        return self.names[len(ours) < len(theirs)]

    def may_differ(self, seen: Observation) -> bool:
        """True if an observation is a difference that chance does not explain."""
        return not seen.holds and (self.both.steady or not seen.by_chance)
