"""Checks of which keys stand in the events of a stream: a reader of the first event knows the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import repeat

from tokenwire.checks.channel_reading import offered
from tokenwire.checks.check import Observation, Target, check, demand, look_at_each
from tokenwire.checks.walk import ended, streamed, walked_choice
from tokenwire.record import Choice, Stream

_FEWEST = 3
"""Only between a first and a last emission can a key be missing."""
_OF_CHANNELS = frozenset({"text", "content", "reasoning", "tool_calls"})


def _keys_of_all(choice: Choice) -> frozenset[str]:
    """The bound keys that stand in the first emission of a choice and in its last one."""
    own = walked_choice(choice)
    if len(own.at) < _FEWEST:
        return frozenset()
    return own.columns.keys[0] & own.columns.keys[-1]


@check("keys-do-not-come-and-go")
def keys_do_not_come_and_go(stream: Stream, _target: Target) -> Iterator[Observation]:
    """What stands in the first emission of a choice and in its last one stands in all between."""
    if not streamed(stream) or not ended(stream):
        return

    def look(at: int, choice: Choice, expected: frozenset[str]) -> Observation:
        emission = choice.emissions[at]
        missing = ", ".join(sorted(expected - emission.pointers.keys()))
        message = f"{missing} of choice {emission.choice}, there before and after, missing here"
        return demand(
            emission.event.place,
            not missing,
            expected=f"the {len(expected)} keys of the first and the last emission",
            actual=f"without {missing}" if missing else "all of them",
            message=message,
        )

    for choice in stream.choices:
        expected = _keys_of_all(choice)
        if choice.parsed or offered(stream) is not None:  # a channel brings what is its own, and when
            expected -= _OF_CHANNELS
        if expected:
            between, keys = range(1, len(choice.emissions) - 1), choice.columns.keys
            each = frozenset(keys[1:-1])
            whole = all(map(expected.issubset, each))
            there = repeat(True, len(between)) if whole else (expected <= keys[at] for at in between)
            yield from look_at_each(between, there, partial(look, choice=choice, expected=expected))
