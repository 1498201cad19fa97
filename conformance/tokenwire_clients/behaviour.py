"""Test cases about a server's behaviour, such as delays, broken connections and compression.

Each case serves the bytes of the case `PLAIN`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from tokenwire.typed_table import suggestion
from tokenwire_clients.vectors import Door, Vector, load_doors

PLAIN = "text"
"""The case whose bytes these cases serve."""
AFTER_S = 1
"""The value of Retry-After in seconds. A retry before this time shows that the client ignores the header."""


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of the server in one case, in addition to the bytes that the server sends."""

    comment: str
    sentence: str
    status: int = 200
    """The status of the first answer. Later answers have status 200."""
    slow_s: float = 0.0
    """Seconds to pause before each part of the answer."""
    keep_alives: int = 0
    """The number of comments (keep-alives) before the first event. The server pauses before each comment."""
    whole: bool = False
    """True if the stream is sent at once, with a Content-Length, as by a proxy that buffers."""
    zipped: bool = False
    """True if the stream is compressed for clients that accept compression."""
    breaks: int = 0
    """The number of parts after which the first answer breaks off. 0 if it does not break off.

    Later answers are complete.
    """
    keeps: bool | None = None
    """True if the connection stays open after the answer, so that the client's next request must use the same
    connection. False if the connection closes, so that the next request must use a new connection. None if
    this is not checked.
    """
    held_open: bool = False
    """True if the connection stays open without further data after the first events, until the client
    disconnects.
    """

    @property
    def may_tell(self) -> bool:
        """True if a correct client may report an error instead of retrying."""
        return self.status != 200 or self.breaks > 0


BEHAVIOURS = {
    "busy-429": Behaviour(
        "The first answer is 429 with Retry-After, the next is whole", "busy-servers-are-spared", status=429
    ),
    "busy-503": Behaviour(
        "The first answer is 503 with Retry-After, the next is whole", "busy-servers-are-spared", status=503
    ),
    "broken-once": Behaviour(
        "The first stream breaks off after four events, the next is whole",
        "begun-streams-are-not-asked-again",
        breaks=4,
    ),
    "slow": Behaviour("A pause before each event", "slow-streams-are-waited-for", slow_s=0.05),
    "slow-begin": Behaviour(
        "Comments keep the connection alive before the first event",
        "slow-streams-are-waited-for",
        slow_s=0.02,
        keep_alives=20,
    ),
    "buffered": Behaviour(
        "A proxy sends the whole stream at once, with a length", "slow-streams-are-waited-for", whole=True
    ),
    "compressed": Behaviour("A proxy compresses the stream", "reads-are-joined", zipped=True),
    "kept": Behaviour(
        "The connection stays open: the next request comes on an open one", "connections-are-kept", keeps=True
    ),
    "closes": Behaviour(
        "The server says that it closes the connection", "closed-connections-are-left", keeps=False
    ),
    "leave": Behaviour(
        "Leave after the first text: nothing else comes", "left-streams-are-closed", held_open=True
    ),
}


def behaviour_of(case: str) -> Behaviour:
    """Return the behaviour in a case. For a vector, return the default behaviour."""
    return BEHAVIOURS.get(case, Behaviour("", ""))


def cases_of(door: Door) -> Iterator[Vector]:
    """Yield all cases for an endpoint: its vectors, and the cases about behaviour."""
    yield from door.cases.values()
    for name, behaviour in BEHAVIOURS.items():
        yield replace(
            door.cases[PLAIN],
            id=name,
            comment=behaviour.comment,
            flags=(behaviour.sentence,),
            follows=PLAIN,
        )


@cache
def all_cases() -> dict[tuple[str, str], tuple[Door, Vector]]:
    """Return all cases by endpoint and id."""
    return {(door.name, case.id): (door, case) for door in load_doors().values() for case in cases_of(door)}


def cases_named(names: Iterable[str]) -> dict[tuple[str, str], tuple[Door, Vector]]:
    """Return the cases with these names.

    `CASE` means the case at all endpoints, `DOOR/CASE` the case at one endpoint. Raises ValueError for an
    unknown name.
    """
    cases, found = all_cases(), dict[tuple[str, str], tuple[Door, Vector]]()
    for name in names:
        named = {key: case for key, case in cases.items() if name in {key[1], "/".join(key)}}
        if not named:
            known = {known for key in cases for known in (key[1], "/".join(key))}
            raise ValueError(
                f"no case {name!r}; {suggestion(name, known, 'GET /tokenwire/cases lists them')}"
            )
        found |= named
    return found
