"""The request fields that enable each capability, and the scenario that sends them.

An answer shows some capabilities only if its request enables them (`spec/asked_by.yaml`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from tokenwire.ask import Ask, RequestFields
from tokenwire.checks.reading.refusals import was_refused
from tokenwire.dialects.dialect import Dialect
from tokenwire.record import Answer
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed


@dataclass(frozen=True)
class AskedBy:
    """The request fields that enable a capability, and a scenario that sends them."""

    asks: Mapping[str, Any]
    """The request fields, by their names in `Ask`, with example values."""
    scenario: str
    """The name of a scenario that sends these fields."""

    def is_asked(self, asked: RequestFields) -> bool:
        """True if a request sets all of these fields, to any value."""
        return all(getattr(asked, name) != _DEFAULTS[name] for name in self.asks)

    def can_be_asked(self, dialect: Dialect) -> bool:
        """True if an endpoint supports these fields. A field that its requests leave out is not supported."""
        if not dialect.request.never.isdisjoint(self.asks):
            return False
        values: dict[str, Any] = (
            {"messages": ({"role": "user", "content": "a"},)} if dialect.chat else {"text": ("a",)}
        )
        values |= {name: tuple(v) if isinstance(v, list) else v for name, v in self.asks.items()}
        return dialect.can_say(Ask(**values))


_DEFAULTS = {field.name: field.default for field in fields(RequestFields)}


@cache
def asked_by() -> Mapping[str, AskedBy]:
    """Return the table of request fields by the name of the capability."""
    table = read_yaml(spec_root() / "asked_by.yaml")
    return {name: typed(AskedBy, row, name) for name, row in table.items()}


def asked_among(streams: Iterable[Answer]) -> frozenset[str]:
    """Return the names of the capabilities that at least one request enables.

    To find them, each answer is read only once.
    """
    rows = asked_by().items()
    requests = (stream.asked for stream in streams)
    return frozenset(name for asked in requests for name, row in rows if row.is_asked(asked))


def always_refused(streams: Iterable[Answer]) -> dict[str, int]:
    """Count the requests that enable a capability, by its name, if the server refused each of them."""
    asked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for stream in streams:
        names = [name for name, row in asked_by().items() if row.is_asked(stream.asked)]
        asked.update(names)
        if was_refused(stream):
            refused.update(names)
    return {name: count for name, count in asked.items() if refused[name] == count}
