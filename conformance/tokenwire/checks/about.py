"""The subject of a check, as data: the properties of the answers that the check can observe.

The judge compares an answer's traits with the subject of each check, and calls only the checks that match.
The same data explains why a requirement has no witness.
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
    """True if the answer is complete, so that a missing part cannot arrive later."""
    return stream.exchange.ending is Ending.COMPLETE and stream.error is None


def streamed(stream: Answer) -> bool:
    """True if an answer was delivered in events."""
    return stream.answered and stream.delivery is not Delivery.WHOLE


@overload
def finished_choices(stream: Stream) -> list[Choice]: ...


@overload
def finished_choices(stream: Answer) -> Sequence[ChoiceFacts]: ...


def finished_choices(stream: Answer) -> Sequence[ChoiceFacts]:
    """Return the choices that have a finish reason, including `abort`. Empty for a refused request."""
    if stream.refused:
        return []
    return [choice for choice in stream.choices if choice.finish is not None and not is_error(choice.finish)]


def undisturbed_choices(stream: Stream) -> list[Choice]:
    """Return the choices of a complete answer that were not aborted. The length of an aborted
    choice varies.
    """
    if not stream.answered or not ended(stream):
        return []
    return [choice for choice in stream.choices if choice.finish and choice.finish.type != "abort"]


class Traits(NamedTuple):
    """The properties of an answer that `About` may require."""

    answered: bool
    """True if the answer has at least one choice."""
    streamed: bool
    """True if the answer was delivered in events."""
    delivery: Delivery
    finished: bool
    """True if a choice has a finish reason."""
    ended: bool
    """True if the answer is complete."""
    chat: bool
    """True if the endpoint takes messages."""
    items: bool
    """True if the endpoint answers with typed items instead of choices."""
    event_stream: bool
    """True if the request asked for a stream and was answered with status 200."""
    asked: frozenset[str]
    """The members of `WISHES` that the request sets to a value other than empty, false or zero."""


WISHES = (
    *(
        "allowed_token_ids",
        "bad_words",
        "chosen_ids",
        "chosen_in_top",
        "continuous_usage",
        "echo",
        "ignore_eos",
        "input_ids",
        "logprobs",
        "media",
    ),
    *("min_new_tokens", "no_stop_trim", "other_sampling", "return_meta_info", "return_prompt_token_ids"),
    *("stop", "stop_regex", "stop_token_ids", "stream", "temperature", "text_prompt", "top_logprobs"),
    *("truncated", "usage"),
)
"""Fields of `Asked` that a check may require."""


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
    """Properties that an answer must have for a check to observe the answer. None admits any value."""

    answered: bool | None = None
    streamed: bool | None = None
    delivery: Delivery | None = None
    finished: bool | None = None
    ended: bool | None = None
    chat: bool | None = None
    items: bool | None = None
    event_stream: bool | None = None
    asked: frozenset[str] = frozenset()
    """Members of `WISHES` that the request must set."""
    unasked: frozenset[str] = frozenset()
    """Members of `WISHES` that the request must not set."""

    def stages(self) -> Iterator[tuple[str, Callable[[Traits], bool]]]:
        """Yield each required property of an answer, as a description and as a predicate."""
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
        return tuple(passes for _, passes in self.stages())  # cached, because it is called for every answer

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
"""Descriptions of the fields of `Traits`: the first for True, the second for False."""


def about(*asked: str, unasked: Collection[str] = (), **due: Any) -> About:
    """Return `About` for requests that set the wishes `asked` and do not set `unasked`.

    `due`: values for the other fields of `About`. Raises ValueError for an unknown wish.
    """
    if unknown := {*asked, *unasked} - set(WISHES):
        raise ValueError(f"{sorted(unknown)[0]!r} is unknown; the wishes are {', '.join(WISHES)}")
    return About(asked=frozenset(asked), unasked=frozenset(unasked), **due)


ANY = About()
ANSWERED = about(answered=True)
FINISHED = about(finished=True)
STREAMED = about(streamed=True)
CUMULATIVE = about(streamed=True, delivery=Delivery.CUMULATIVE)
INCREMENTAL = about(streamed=True, delivery=Delivery.INCREMENTAL)
EVENTS = about(event_stream=True)
