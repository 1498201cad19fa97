"""The test vectors: cases by endpoint, each with the bytes to serve and the correct content."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import add
from pathlib import Path
from typing import Any

from tokenwire.requirement import Level
from tokenwire.spec_files import beside_packages, read_yaml, spec_root
from tokenwire.typed_table import typed
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

RESULTS = ("valid", "acceptable", "invalid")


def reads_of(rules: Iterable[Any]) -> Iterator[bytes]:
    """Yield the parts of a body from their rules.

    A rule is a text, bytes in base64, a text to split, or a text to repeat.
    """
    for rule in rules:
        if isinstance(rule, str):
            yield rule.encode()
        elif "base64" in rule:
            yield base64.b64decode(rule["base64"])
        elif "every" in rule:
            data, size = rule["text"].encode(), rule["every"]
            yield from (data[start : start + size] for start in range(0, len(data), size))
        else:
            numbers = range(rule["first"], rule["first"] + rule["times"])
            yield from (rule["text"].replace("{n}", str(number)).encode() for number in numbers)


def whole(value: Any) -> Any:
    """Return a value of the correct content. Parts that the file describes as repetitions are written out."""
    if isinstance(value, list):
        return [whole(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if "join" in value:
        return reduce(add, (whole(part) for part in value["join"]))
    if "repeat" in value:
        return value["repeat"] * value["times"]
    return {key: whole(entry) for key, entry in value.items()}


@dataclass(frozen=True)
class Vector:
    """One test case for clients, from a file of `vectors/`."""

    id: str
    comment: str
    flags: tuple[str, ...]
    """Names of requirements and features. The first one is the requirement that the case tests."""
    result: str
    request: Mapping[str, Any] = field(repr=False)
    reads: tuple[Any, ...] = field(repr=False)
    record: Any = field(repr=False)
    """The content that a correct client has at the end.

    For an invalid case, the content that the client should report.
    """
    requirement: str = ""
    """The requirement for servers that an invalid stream violates.

    For an acceptable stream, a SHOULD or MAY.
    """
    follows: str = ""
    """The simpler case from which this case is made. A mistake there explains a mistake here."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    ending: str = Ending.COMPLETE.value

    @property
    def sentence(self) -> str:
        return self.flags[0]

    def exchange(self, door: Door) -> Exchange:
        """Return the case as an exchange between client and server."""
        reads = tuple(Read(number / 1000, read) for number, read in enumerate(reads_of(self.reads)))
        return Exchange(
            f"{door.name}/{self.id}",
            HttpRequest("POST", door.path, self.request),
            door.name,
            self.status,
            tuple(self.headers.items()),
            reads,
            Ending(self.ending),
            started="2026-01-01T00:00:00.000000+00:00",
        )


@dataclass(frozen=True)
class Door:
    """An endpoint of a server family, with its cases by id."""

    name: str
    dialect: str
    path: str
    cases: Mapping[str, Vector] = field(repr=False)


@dataclass(frozen=True)
class Sentence:
    """A requirement for clients (`spec/clients.yaml`)."""

    level: Level
    sentence: str
    about: tuple[str, ...] = ()
    """The fields of a report that the requirement is about.

    A client that reports none of these is not judged by it.
    """
    implied_by: tuple[str, ...] = ()
    """Requirements whose violation in the same case explains a violation of this one."""


@cache
def sentences() -> dict[str, Sentence]:
    """Return the requirements for clients, by name."""
    table = read_yaml(spec_root() / "clients.yaml")
    return {name: typed(Sentence, row, f"sentence {name!r}") for name, row in table.items()}


def read_door(file: Path) -> Door:
    """Load the cases of one file. Raises OSError and ValueError."""
    document = json.loads(file.read_text("utf-8"))
    cases = [typed(Vector, row, f"case {row['id']!r} in {file.name}") for row in document["cases"]]
    return Door(document["door"], document["dialect"], document["path"], {case.id: case for case in cases})


@cache
def load_doors() -> dict[str, Door]:
    """Return all endpoints with their cases, by name."""
    files = sorted(beside_packages("vectors").glob("*-*.json"))
    return {door.name: door for door in map(read_door, files)}
