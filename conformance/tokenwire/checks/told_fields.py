"""The fields that an answer tells, wherever they stand: what must not get lost on the way to a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenwire.record import Place, Stream
from tokenwire.wire.json_pointer import join

_KEYED_BY_TOKENS = frozenset({"top_logprobs", "prompt_logprobs"})
"""Their objects have tokens for names, which are values and no fields."""
_DEPENDS_ON_THE_CACHE = "cached"


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The paths in a JSON value that lead to something other than null and empty lists and objects, with it.

    Positions in lists and names that are tokens are left out of the path.
    """
    found = [(value, "")]
    while found:
        here, path = found.pop()
        if isinstance(here, Mapping):
            by_token = path.rpartition("/")[2] in _KEYED_BY_TOKENS and "logprob" not in here
            for name, held in here.items():
                found.append((held, f"{path}/*" if by_token else f"{path}{join(name)}"))
        elif isinstance(here, list):
            found += [(held, path) for held in here]
        elif here is not None and _DEPENDS_ON_THE_CACHE not in path:
            yield path, here


def told_by(stream: Stream) -> dict[str, Place]:
    """The fields of all events of an answer, each with the first place where it stands."""
    reported: dict[str, Place] = {}
    for event in stream.events:
        for path, _ in fields_of(event.data):
            reported.setdefault(path, event.place)
    return reported
