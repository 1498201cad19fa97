"""Which delivery mode a stream shows by itself, where nobody says, or where what is said is not so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tokenwire.record import Delivery, Emission

_COUNT = "completion_tokens"
_CLEAR = 2
"""So many votes, all alike, tell a mode against the server's word."""


def _counted(before: Emission, emission: Emission) -> Iterator[Delivery]:
    """The mode in which the ids of the later of two neighbouring emissions are as many as were counted."""
    ids, count, count_before = emission.output_ids, emission.counters.get(_COUNT), before.counters.get(_COUNT)
    if ids is not None and type(count) is int and type(count_before) is int and count_before > 0:
        if len(ids) == count - count_before:
            yield Delivery.INCREMENTAL
        elif len(ids) == count:
            yield Delivery.CUMULATIVE


def _extended(before: Emission, emission: Emission) -> Iterator[Delivery]:
    """The mode that two neighbouring emissions look like, by whether one begins like the other.

    A token that is repeated in pieces that grow looks cumulative and need not be.
    """
    ids = emission.output_ids
    if ids and before.output_ids:
        extends = list(ids[: len(before.output_ids)]) == list(before.output_ids)
        yield Delivery.CUMULATIVE if extends else Delivery.INCREMENTAL
    if emission.text and before.text:
        yield Delivery.CUMULATIVE if emission.text.startswith(before.text) else Delivery.INCREMENTAL


def infer_delivery(choices: Iterable[Sequence[Emission]], said: Delivery | None = None) -> Delivery:
    """The delivery mode that most neighbouring emissions of a stream's choices speak for.

    The ids of each pair are held against completion_tokens, and ids and text against those before; what only
    looks like a mode counts for nothing against what is counted. What the server says of its mode stands,
    unless all votes are against it: a server that says the wrong mode is not to blame for ids that it never
    sent. A stream without evidence, such as a single emission, counts as incremental: both modes read it
    alike.
    """
    pairs = [pair for emissions in choices for pair in pairwise(emissions)]
    proof = Counter(vote for pair in pairs for vote in _counted(*pair))
    looks = Counter(vote for pair in pairs for vote in _extended(*pair))
    tally = proof + Counter({mode: votes for mode, votes in looks.items() if not proof or mode in proof})
    if said is not None and (tally[said] or tally.total() < _CLEAR):
        return said
    cumulative = tally[Delivery.CUMULATIVE] > tally[Delivery.INCREMENTAL]
    return Delivery.CUMULATIVE if cumulative else Delivery.INCREMENTAL
