"""Framing of event streams: features that a server may use, alone and in pairs.

A client may handle two features alone, but fail if both occur. For example, it skips a comment and keeps an
id. But a comment with a blank line after an id becomes an event without data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from proofs.mutation.edit import Body


@dataclass(frozen=True)
class Feature:
    """One way to frame events. Attributes that are not set do not change the stream."""

    comment: str
    before: str = ""
    """Lines before an event, each with its line end."""
    every: int = 1
    """The lines come before every Nth event. 0 means only before the first event."""
    end_of_line: str = ""
    name: str = ""
    prefix: bytes = b""

    def of(self, body: Body) -> Body:
        """Return the stream with this feature added."""
        size = len(body.data)
        places = range(0, size, self.every or size)
        lines = {place: [body.before.get(place, ""), self.before] for place in places if self.before}
        return replace(
            body,
            before={
                **body.before,
                **{place: "".join(sorted(some, key=_ends_an_event)) for place, some in lines.items()},
            },
            end_of_line=self.end_of_line or body.end_of_line,
            name=self.name or body.name,
            prefix=self.prefix or body.prefix,
        )


def _ends_an_event(lines: str) -> bool:
    """True if the lines are fields of the next event. Such lines must come after lines that end with a blank
    line.
    """
    return not lines.endswith("\n\n")


FEATURES: dict[str, Feature] = {
    "crlf": Feature("Lines end with CR LF", end_of_line="\r\n"),
    "cr": Feature("Lines end with CR", end_of_line="\r"),
    "no-space": Feature("No space after the colon of a field", name="data:"),
    "comments": Feature("A comment before each event", ": keep-alive\n"),
    "comments-alone": Feature("Comments with a blank line behind them", ": keep-alive\n\n"),
    "empty-comments": Feature("A line of a colon alone", ":\n", every=2),
    "comments-like-data": Feature("A comment that looks like data", ':data: {"error": "no"}\n'),
    "comments-first": Feature(
        "Keep-alives before the first event", ": OPENROUTER PROCESSING\n\n" * 3, every=0
    ),
    "ids": Feature("Each event has an id", "id: 7\n"),
    "retry": Feature("A reconnection time before the first event", "retry: 3000\n", every=0),
    "unknown-fields": Feature("Fields that no standard knows", "x-trace: data: 1\n", every=2),
    "field-without-colon": Feature("A field without a colon", "id\n", every=3),
    "blank-lines": Feature("Blank lines between events", "\n\n"),
    "message": Feature("Each event has the name that is meant without one", "event: message\n"),
    "bom": Feature("A byte order mark at the beginning", prefix=b"\xef\xbb\xbf"),
}
UNNAMED = frozenset({"message"})
"""Features that apply only to streams whose events have no names."""
_APART = frozenset({frozenset({"crlf", "cr"}), frozenset({"ids", "field-without-colon"})})
"""Features that cannot be combined: two line ends, and two ids of one event."""


def pairs(*, named: bool) -> Iterator[tuple[str, str]]:
    """Yield the names of each pair of features that a stream may combine."""
    names = [name for name in FEATURES if not (named and name in UNNAMED)]
    yield from (pair for pair in combinations(names, 2) if frozenset(pair) not in _APART)
