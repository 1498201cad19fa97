"""Facts: what a run keeps of an answer whose content it does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from tokenwire.record import FACTS, Asked, Choice, Finish, Place, Stream


@dataclass(frozen=True, slots=True)
class ChoiceFacts:
    """What is kept of a choice; the fields are named as those of `Choice`."""

    index: int
    likeliest: bool
    output_ids: list[Any] | None
    text: str | None
    reasoning: str | None
    finish: Finish | None
    series_names: frozenset[str]
    customized: frozenset[str]
    parsed: bool
    called: bool
    """Whether it has any tool calls."""
    counters: Mapping[str, int | None]
    """The last value of each."""
    computed: dict[str, Any]
    """The facts of choices that functions compute, by name; see `record.fact`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ChoiceFacts, _values(self)

    @classmethod
    def of(cls, choice: Choice) -> ChoiceFacts:
        names = {name for emission in choice.emissions for name in emission.counters}
        return cls(
            index=choice.index,
            likeliest=choice.likeliest,
            output_ids=choice.output_ids,
            text=choice.text,
            reasoning=choice.reasoning,
            finish=choice.finish,
            series_names=choice.series_names,
            customized=choice.customized,
            parsed=choice.parsed,
            called=bool(choice.calls),
            counters={name: choice.counter(name) for name in names},
            computed=computed(choice),
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What is kept of an answer, but its choices and `computed`; the fields are named as in `Stream`."""

    asked: Asked
    error: Any
    usage: Mapping[str, Any] | None
    usage_place: Place | None
    schema: str
    undecodable_at: int | None

    def __reduce__(self) -> tuple[Any, ...]:
        return Facts, _values(self)

    @classmethod
    def of(cls, stream: Stream) -> Facts:
        return cls(
            asked=stream.asked,
            error=stream.error,
            usage=stream.usage,
            usage_place=stream.usage_place,
            schema=stream.schema,
            undecodable_at=stream.undecodable_at,
        )


def computed(source: Stream | Choice) -> dict[str, Any]:
    """The facts that functions compute of a stream or choice, but for those whose computation raises."""
    known = {}
    for name, compute in FACTS[type(source)].items():
        with suppress(Exception):  # it is computed again where it is asked for, and raises there
            known[name] = source.fact(name, compute)
    return known


def _values(facts: Facts | ChoiceFacts) -> tuple[Any, ...]:
    """What makes them anew: many are unpickled, and what dataclasses do takes several times as long."""
    return tuple(getattr(facts, field.name) for field in fields(facts))
