"""Infer the delivery mode of a stream from its events, if the server advertises none or a wrong one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tokenwire.record import Delivery, Emission

_CLEAR = 2
"""The number of unanimous votes that outweigh the declared mode."""


def _modes_by_counters(emissions: Sequence[Emission]) -> Iterator[Delivery]:
    """Yield the modes in which the number of ids agrees with the counters of neighbouring emissions."""
    for previous, emission in pairwise(emissions):
        count, before = (part.counters.get("completion_tokens") for part in (emission, previous))
        # If the count was zero before, both modes carry the same list.
        if emission.output_ids is not None and type(count) is int and type(before) is int and before > 0:
            if len(emission.output_ids) == count - before:
                yield Delivery.INCREMENTAL
            elif len(emission.output_ids) == count:
                yield Delivery.CUMULATIVE


def _extended(emissions: Sequence[Emission]) -> Iterator[Delivery]:
    """Yield the apparent modes of neighbouring emissions: cumulative if one begins like the previous.

    A repeated token in growing pieces may look cumulative without being so.
    """
    for previous, emission in pairwise(emissions):
        ids, before = emission.output_ids, previous.output_ids
        if ids and before:
            yield Delivery.CUMULATIVE if ids[: len(before)] == before else Delivery.INCREMENTAL
        if emission.text and previous.text:
            extends = emission.text.startswith(previous.text)
            yield Delivery.CUMULATIVE if extends else Delivery.INCREMENTAL


def infer_delivery(choices: Iterable[Sequence[Emission]], advertised: Delivery | None = None) -> Delivery:
    """Return the delivery mode that fits most pairs of neighbouring emissions of a stream's choices.

    The ids of each pair are compared with completion_tokens, and ids and text with the previous ones. Votes
    by counters outweigh votes by appearance. The declared mode wins, unless all votes are against it, because
    a server with a wrong declaration is not to blame for ids that it never sent. A stream without evidence,
    such as a single emission, counts as incremental: both modes parse it alike.
    """
    choices = list(choices)
    proof = Counter(vote for emissions in choices for vote in _modes_by_counters(emissions))
    if len(proof) == 1 and proof.total() >= _CLEAR:  # votes by appearance cannot change that
        return next(iter(proof))
    extended = Counter(vote for emissions in choices for vote in _extended(emissions))
    tally = proof + Counter({mode: votes for mode, votes in extended.items() if not proof or mode in proof})
    if advertised is not None and (tally[advertised] or tally.total() < _CLEAR):
        return advertised
    cumulative = tally[Delivery.CUMULATIVE] > tally[Delivery.INCREMENTAL]
    return Delivery.CUMULATIVE if cumulative else Delivery.INCREMENTAL
