"""Checks of which keys stand in the events of a stream: a reader of the first event knows the others."""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.checks.about import about
from tokenwire.checks.check import Target, check
from tokenwire.checks.evidence import Observation, Row, expect_each
from tokenwire.checks.reading.channels import offered
from tokenwire.record import Choice, Stream

_FEWEST = 3
"""Only between a first and a last emission can a key be missing."""
_OF_CHANNELS = frozenset({"text", "content", "reasoning", "tool_calls"})


def _keys_of_all(choice: Choice) -> frozenset[str]:
    """The bound keys that stand in the first emission of a choice and in its last one."""
    emissions = choice.delivered
    if len(emissions) < _FEWEST:
        return frozenset()
    return frozenset(emissions[0].pointers.keys() & emissions[-1].pointers.keys())


@check("keys-do-not-come-and-go", about(streamed=True, ended=True))
def _keys_do_not_come_and_go(stream: Stream, target: Target) -> Iterator[Observation]:
    """What stands in the first emission of a choice and in its last one stands in all between."""
    for choice in stream.choices:
        expected = _keys_of_all(choice)
        parsed = choice.parsed or offered(stream) is not None or "channels" in target.capabilities
        if parsed:  # a channel brings what is its own, and when it is settled
            expected -= _OF_CHANNELS
        yield from expect_each(_with_keys(choice, expected), "choice {emission.choice} stands here {actual}")


def _with_keys(choice: Choice, keys: frozenset[str]) -> Iterator[Row]:
    words = f"the {len(keys)} keys of the first and the last emission"
    for emission in choice.emissions[1:-1] if keys else ():
        missing = sorted(keys - emission.pointers.keys())
        yield emission, "", not missing, words, f"without {', '.join(missing)}" if missing else "all of them"
