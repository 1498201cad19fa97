"""Infers the delivery mode of a stream (incremental or cumulative) from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tokenwire.record import Delivery, Emission

_CLEAR = 2
"""The least number of unanimous votes that overrule the mode that the server declares."""


def _modes_by_counters(emissions: Sequence[Emission]) -> Iterator[Delivery]:
    """Yield a vote for each pair of neighbouring emissions, by comparing the number of ids with
    `completion_tokens`.
    """
    for previous, emission in pairwise(emissions):
        count, before = (part.counters.get("completion_tokens") for part in (emission, previous))
        # If the earlier count is 0, the number of ids is the same in both modes.
        if emission.output_ids is not None and type(count) is int and type(before) is int and before > 0:
            if len(emission.output_ids) == count - before:
                yield Delivery.INCREMENTAL
            elif len(emission.output_ids) == count:
                yield Delivery.CUMULATIVE


def _extended(emissions: Sequence[Emission]) -> Iterator[Delivery]:
    """Yield votes for each pair of neighbouring emissions: cumulative if the later one begins with the
    earlier one.

    A wrong vote is possible, for example if an incremental stream repeats a token in growing pieces.
    """
    for previous, emission in pairwise(emissions):
        ids, before = emission.output_ids, previous.output_ids
        if ids and before:
            yield Delivery.CUMULATIVE if ids[: len(before)] == before else Delivery.INCREMENTAL
        if emission.text and previous.text:
            extends = emission.text.startswith(previous.text)
            yield Delivery.CUMULATIVE if extends else Delivery.INCREMENTAL


def infer_delivery(choices: Iterable[Sequence[Emission]], advertised: Delivery | None = None) -> Delivery:
    """Return the delivery mode with the most votes; each pair of neighbouring emissions in a choice votes.

    Votes by counters outweigh votes by appearance. If the server declares a mode, that mode wins unless all
    votes are against it. A server with a wrong declaration must not be blamed for ids that it never sent.
    Without votes, for example with a single emission, the mode is incremental, because both modes are then
    the same.
    """
    choices = list(choices)
    proof = Counter(vote for emissions in choices for vote in _modes_by_counters(emissions))
    if len(proof) == 1 and proof.total() >= _CLEAR:  # votes by appearance are not needed
        return next(iter(proof))
    extended = Counter(vote for emissions in choices for vote in _extended(emissions))
    tally = proof + Counter({mode: votes for mode, votes in extended.items() if not proof or mode in proof})
    if advertised is not None and (tally[advertised] or tally.total() < _CLEAR):
        return advertised
    cumulative = tally[Delivery.CUMULATIVE] > tally[Delivery.INCREMENTAL]
    return Delivery.CUMULATIVE if cumulative else Delivery.INCREMENTAL
