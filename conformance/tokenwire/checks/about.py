"""The subject of a check, as data: the answers in which it can observe anything.

The judge compares an answer's traits with the subject of each check, and calls only matching checks. The same
data explains why a requirement has no witness.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, overload

from tokenwire.dialects.dialect import has_items, is_chat
from tokenwire.record import Answer, Choice, ChoiceFacts, Delivery, Finish, Stream
from tokenwire.wire.exchange import Ending

_OK = 200


def is_error(finish: Finish | None) -> bool:
    """True if a failure ended a choice; see `Finish.failed`."""
    return finish is not None and finish.failed


def was_aborted(choice: ChoiceFacts) -> bool:
    """True if a client's abort ended a choice."""
    return choice.finish is not None and choice.finish.type == "abort" and not choice.finish.failed


def ended(stream: Answer) -> bool:
    """True if the answer is complete, so that missing parts will not come."""
    return stream.exchange.ending is Ending.COMPLETE and stream.error is None


def streamed(stream: Answer) -> bool:
    """True if a record was delivered in events."""
    return stream.answered and stream.delivery is not Delivery.WHOLE


@overload
def finished_choices(stream: Stream) -> list[Choice]: ...


@overload
def finished_choices(stream: Answer) -> Sequence[ChoiceFacts]: ...


def finished_choices(stream: Answer) -> Sequence[ChoiceFacts]:
    """Return the choices of a record with a finish reason, including a client's abort."""
    if stream.refused:
        return []
    return [choice for choice in stream.choices if choice.finish is not None and not is_error(choice.finish)]


def undisturbed_choices(stream: Stream) -> list[Choice]:
    """Return the choices of a complete record that were not aborted, because the length of an aborted one
    varies.
    """
    if not stream.answered or not ended(stream):
        return []
    return [choice for choice in stream.choices if choice.finish and choice.finish.type != "abort"]


class Traits(NamedTuple):
    """The properties of an answer that `About` may require."""

    answered: bool
    """True if it is a record with at least one choice."""
    streamed: bool
    """True if the record was delivered in events."""
    delivery: Delivery
    finished: bool
    """True if a choice has a finish reason."""
    ended: bool
    """True if the answer is complete."""
    chat: bool
    """True if the endpoint uses messages."""
    items: bool
    """True if it answers with typed items in place of choices."""
    event_stream: bool
    """True if a stream was requested, and the status announces one."""
    asked: frozenset[str]
    """The members of `WISHES` that the request sets to something other than empty, false or zero."""


WISHES = (
    *("chosen_ids", "continuous_usage", "echo", "ignore_eos", "input_ids", "logprobs", "media"),
    *("min_new_tokens", "no_stop_trim", "other_sampling", "return_meta_info", "return_prompt_token_ids"),
    *("stop", "stop_regex", "stop_token_ids", "stream", "temperature", "text_prompt", "top_logprobs"),
    *("truncated", "usage"),
)
"""Fields of `Asked` that a check may need."""


def traits_of(stream: Answer) -> Traits:
    asked = stream.asked
    return Traits(
        answered=stream.answered,
        streamed=streamed(stream),
        delivery=stream.delivery,
        finished=bool(finished_choices(stream)),
        ended=ended(stream),
        chat=is_chat(stream),
        items=has_items(stream),
        event_stream=asked.stream and stream.exchange.status == _OK,
        asked=frozenset(name for name in WISHES if getattr(asked, name)),
    )


@dataclass(frozen=True)
class About:
    """Properties that an answer must have for a check to observe it; None for any value."""

    answered: bool | None = None
    streamed: bool | None = None
    delivery: Delivery | None = None
    finished: bool | None = None
    ended: bool | None = None
    chat: bool | None = None
    items: bool | None = None
    event_stream: bool | None = None
    asked: frozenset[str] = frozenset()
    """The members of `WISHES` that the request must have."""
    unasked: frozenset[str] = frozenset()
    """The members that it must not have."""

    def stages(self) -> Iterator[tuple[str, Callable[[Traits], bool]]]:
        """Yield the required properties of an answer one by one, each as words and as a predicate."""
        for wish in sorted(self.asked):
            yield f"asked for {wish}", partial(_asks_for, wish)
        for wish in sorted(self.unasked):
            yield f"not asked for {wish}", partial(_asks_not_for, wish)
        for name, words in _WORDS.items():
            if (due := getattr(self, name)) is not None:
                yield words[not due], partial(_is, name, due)
        if self.delivery is not None:
            yield str(self.delivery), partial(_is, "delivery", self.delivery)

    @cached_property
    def _predicates(self) -> tuple[Callable[[Traits], bool], ...]:
        return tuple(passes for _, passes in self.stages())  # cached, because it is used for every answer

    def admits(self, traits: Traits) -> bool:
        return all(passes(traits) for passes in self._predicates)


def _asks_for(wish: str, traits: Traits) -> bool:
    return wish in traits.asked


def _asks_not_for(wish: str, traits: Traits) -> bool:
    return wish not in traits.asked


def _is(name: str, due: object, traits: Traits) -> bool:
    return bool(getattr(traits, name) == due)


_WORDS = {
    "chat": ("messages", "no messages"),
    "items": ("typed items", "choices"),
    "event_stream": ("a stream answered with 200", "no stream answered with 200"),
    "answered": ("with a record", "without a record"),
    "streamed": ("streamed", "whole"),
    "finished": ("finished", "without a finish reason"),
    "ended": ("ended", "cut off"),
}
"""Descriptions of the fields of `Traits`, if true and if false."""


def about(*asked: str, unasked: Collection[str] = (), **due: Any) -> About:
    """Return `About` for requests with some wishes and without others.

    `due`: its other fields. Raises ValueError for an unknown wish.
    """
    if unknown := {*asked, *unasked} - set(WISHES):
        raise ValueError(f"{sorted(unknown)[0]!r} is none of the wishes {', '.join(WISHES)}")
    return About(asked=frozenset(asked), unasked=frozenset(unasked), **due)


ANY = About()
ANSWERED = about(answered=True)
FINISHED = about(finished=True)
STREAMED = about(streamed=True)
CUMULATIVE = about(streamed=True, delivery=Delivery.CUMULATIVE)
INCREMENTAL = about(streamed=True, delivery=Delivery.INCREMENTAL)
EVENTS = about(event_stream=True)
