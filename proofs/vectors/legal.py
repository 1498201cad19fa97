"""Changes of an answer by a server or a network that have no effect on the content of a correct client.

Each row of a table is a change, with the sentence for clients that it tests.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise, zip_longest
from typing import Any

from proofs.mutation.framing import FEATURES
from proofs.vectors.answers import Answer
from proofs.vectors.doors import Event, Shape, Step

DELTAS, READS, LINES, FIELDS = (
    "every-delta-is-kept",
    "reads-are-joined",
    "lines-end-in-three-ways",
    "comments-are-skipped",
)
JSON, USAGE, CHARACTERS, UNKNOWN = (
    "json-is-read-as-json",
    "usage-is-read-where-it-stands",
    "characters-are-joined",
    "unknown-is-ignored",
)

# Deliveries: the tokens that come together. A list of ends becomes steps, choice by choice.


def _steps(answer: Answer, ends: Callable[[int], Sequence[int]]) -> Iterator[list[Step]]:
    for index, output in enumerate(answer.choices):
        size = len(output.tokens)
        bounds = pairwise((0, *ends(size)))
        steps = [Step(index, start, end) for start, end in bounds]
        yield [*steps[:-1], replace(steps[-1], last=True)]


def _turns(answer: Answer, ends: Callable[[int], Sequence[int]]) -> list[Step]:
    """Return the steps of the choices in turns, as an engine produces them."""
    rounds = zip_longest(*_steps(answer, ends))
    return [step for steps in rounds for step in steps if step is not None]


def _every_token(size: int) -> list[int]:
    return list(range(1, size + 1))


ENDS: dict[str, tuple[str, Callable[[int], Sequence[int]]]] = {
    "all-at-once": ("All tokens in one event", lambda size: [size]),
    "in-pairs": ("Two tokens an event", lambda size: [*range(2, size, 2), size]),
    "first-alone": ("The first token, then all others", lambda size: [1, size] if size > 1 else [size]),
    "last-alone": (
        "All tokens but one, then the last",
        lambda size: [size - 1, size] if size > 1 else [size],
    ),
    "finish-alone": ("The finish in an event without a token", lambda size: [*_every_token(size), size]),
    "growing": (
        "One token, then two, then three",
        lambda size: [*(end for end in (1, 3, 6, 10, 15) if end < size), size],
    ),
    "empty-deltas": (
        "After each token an event that brings nothing",
        lambda size: [*(repeated for end in _every_token(size - 1) for repeated in (end, end)), size],
    ),
}


def plain(answer: Answer) -> list[Step]:
    """Return one step for each token. The finish reason comes with the last token."""
    return _turns(answer, _every_token)


def deliveries(answer: Answer) -> Iterator[tuple[str, str, list[Step]]]:
    """Yield all other ways of delivery, each with its name and its description."""
    for name, (comment, ends) in ENDS.items():
        yield name, comment, _turns(answer, ends)
    if len(answer.choices) > 1:
        by_choice = list(_steps(answer, _every_token))
        yield (
            "one-by-one",
            "A choice begins when the one before it is finished",
            list(chain.from_iterable(by_choice)),
        )
        yield "last-first", "The last choice comes first", list(chain.from_iterable(reversed(by_choice)))


# Shapes: the contents of each event, with the endpoints and the answers that have this shape.

SHAPES: dict[str, tuple[str, str, Shape, str, str]] = {
    "role-with-content": (
        DELTAS,
        "The role is beside the first text",
        Shape(role="with"),
        "chat",
        "text",
    ),
    "usage-in-each": (
        USAGE,
        "Each event counts what came so far",
        Shape(usage="each"),
        "chat completions messages",
        "text",
    ),
    "usage-with-the-finish": (
        USAGE,
        "The usage is beside the last finish",
        Shape(usage="last"),
        "chat completions",
        "text",
    ),
    "no-deltas": (
        "closing-events-are-read",
        "No deltas: what closes an item has all of it",
        Shape(deltas="none"),
        "responses",
        "text agent calls",
    ),
    "opens-with-text": (
        "opening-events-are-read",
        "What opens a block or a part has its first piece, and the deltas bring the others",
        Shape(deltas="after-the-first"),
        "responses messages",
        "text reasoning",
    ),
    "all-in-the-opening": (
        "opening-events-are-read",
        "What opens a block has all of it, and no delta comes",
        Shape(deltas="none"),
        "messages",
        "text reasoning",
    ),
}


def _strange(event: Event, value: Any) -> Event:
    """Return an event with an unknown field in each of its objects that a server may extend."""
    if isinstance(event, str):
        return event
    changed = copy.deepcopy(event)
    changed["x_later"] = value
    for holder in (
        changed.get("meta_info"),
        *changed.get("choices", ()),
        changed.get("usage"),
        changed.get("delta"),
    ):
        if isinstance(holder, dict):
            holder["x_later"] = value
    return changed


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(entry) for key, entry in reversed(value.items())}
    return [_turned(entry) for entry in value] if isinstance(value, list) else value


def _nulls(event: Event) -> Event:
    """Return a chunk with null for each channel without content."""
    if isinstance(event, str) or not event.get("choices"):
        return event
    changed = copy.deepcopy(event)
    for choice in changed["choices"]:
        choice["delta"] = {"tool_calls": None, "refusal": None, "function_call": None, **choice["delta"]}
    return changed | {"usage": None}


def _absent(event: Event) -> Event:
    """Return a chunk without null and empty values."""
    if isinstance(event, str) or not event.get("choices"):
        return event
    changed = copy.deepcopy(event)
    for choice in changed["choices"]:
        choice["delta"] = {key: value for key, value in choice["delta"].items() if value}
    changed["choices"] = [
        {key: value for key, value in choice.items() if value is not None} for choice in changed["choices"]
    ]
    return changed


CHANGED: dict[str, tuple[str, str, Callable[[Event], Event]]] = {
    "nulls": (UNKNOWN, "Each delta has null for what it does not bring", _nulls),
    "absent": (UNKNOWN, "What is null or empty is absent", _absent),
    "unknown-numbers": (
        UNKNOWN,
        "Each object has a field that no schema knows",
        lambda event: _strange(event, 1.5),
    ),
    "unknown-nulls": (UNKNOWN, "Such a field is null", lambda event: _strange(event, None)),
    "unknown-objects": (
        UNKNOWN,
        "Such a field holds an object",
        lambda event: _strange(event, {"text": "no", "delta": {"content": "no"}}),
    ),
    "unknown-lists": (UNKNOWN, "Such a field holds an empty list", lambda event: _strange(event, {"of": []})),
    "keys-turned": (JSON, "The keys of each object are in the opposite order", _turned),
}

# Ways to write JSON


def _escaped(value: Any) -> str:
    """Return JSON in which one letter of each string is escaped, in keys and in values."""
    return re.sub(r'(?<=")([a-z])(?=[a-z_]*")', lambda match: f"\\u{ord(match[1]):04x}", json.dumps(value))


WRITTEN: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "ascii": (JSON, "All other characters are escaped, some as surrogates", json.dumps),
    "spaces": (
        JSON,
        "White space around each value",
        lambda value: json.dumps(value, ensure_ascii=False, separators=(" , ", " :\t")),
    ),
    "escapes": (JSON, "The first letter of each word is escaped, of keys too", _escaped),
    "lines": (
        "data-lines-are-joined",
        "The data of an event are several lines",
        lambda value: json.dumps(value, ensure_ascii=False, indent=1),
    ),
}


# Framing of events: `proofs.mutation.framing`

FRAMED = {name: (LINES if feature.end_of_line else FIELDS, feature) for name, feature in FEATURES.items()}

# Ways in which the network cuts bytes


def _every(size: int) -> Callable[[bytes], list[int]]:
    return lambda body: list(range(size, len(body), size))


def _behind(pattern: bytes, offset: int = 0) -> Callable[[bytes], list[int]]:
    return lambda body: [match.end() + offset for match in re.finditer(pattern, body)]


def _in_characters(body: bytes) -> list[int]:
    return [offset for offset, byte in enumerate(body) if byte & 0xC0 == 0x80]


CUT: dict[str, tuple[str, str, Callable[[bytes], list[int]]]] = {
    "one-read": (READS, "The whole stream in one read", lambda _: []),
    "sevens": (READS, "Reads of seven bytes", _every(7)),
    "hundreds": (READS, "Reads of a hundred bytes", _every(100)),
    "byte-by-byte": (READS, "Each byte alone", _every(1)),
    "two-events": (READS, "Two events a read", lambda body: _behind(rb"\n\n")(body)[1::2]),
    "between-line-ends": (READS, "Each read ends between two line ends", _behind(rb"\n\n", -1)),
    "before-line-ends": (READS, "Each read ends before the line ends of an event", _behind(rb"\n\n", -2)),
    "behind-data": (READS, "Each read ends behind `data`", _behind(rb"data(?=:)")),
    "behind-colons": (READS, "Each read ends behind the colon of a field", _behind(rb"data:(?= )")),
    "in-escapes": (READS, "Each read ends behind a quotation mark", _behind(rb'"')),
    "last-byte-late": (READS, "All but the last byte, then that", lambda body: [len(body) - 1]),
    "first-byte-early": (READS, "The first byte, then all others", lambda _: [1]),
}  # fmt: skip
CUT_CHARACTERS: dict[str, tuple[str, str, Callable[[bytes], list[int]]]] = {
    "in-characters": (CHARACTERS, "Each read ends within a character", _in_characters),
    "byte-by-byte": (CHARACTERS, "Each byte alone", _every(1)),
    "fives": (CHARACTERS, "Reads of five bytes", _every(5)),
}


def cut(body: bytes, offsets: Sequence[int]) -> list[bytes]:
    """Return the reads of a body that is cut at some offsets."""
    bounds = pairwise(sorted({0, *(offset for offset in offsets if 0 < offset < len(body)), len(body)}))
    return [body[start:end] for start, end in bounds]
