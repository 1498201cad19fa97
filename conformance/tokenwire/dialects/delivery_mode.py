"""Which delivery mode a stream shows by itself, where nobody says, or where what is said is not so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tokenwire.record import Delivery, Emission

_COUNT = "completion_tokens"
_CLEAR = 2
"""So many votes, all alike, tell a mode against the server's word."""


def _votes(before: Emission, emission: Emission) -> Iterator[Delivery]:
    """What two neighbouring emissions of one choice speak for."""
    ids, count, count_before = emission.output_ids, emission.counters.get(_COUNT), before.counters.get(_COUNT)
    if ids is not None and type(count) is int and type(count_before) is int and count_before > 0:
        if len(ids) == count - count_before:
            yield Delivery.INCREMENTAL
        elif len(ids) == count:
            yield Delivery.CUMULATIVE
    if ids and before.output_ids:
        extends = list(ids[: len(before.output_ids)]) == list(before.output_ids)
        yield Delivery.CUMULATIVE if extends else Delivery.INCREMENTAL
    if emission.text and before.text:
        yield Delivery.CUMULATIVE if emission.text.startswith(before.text) else Delivery.INCREMENTAL


def infer_delivery(choices: Iterable[Sequence[Emission]], said: Delivery | None = None) -> Delivery:
    """The delivery mode that most neighbouring emissions of a stream's choices speak for.

    Each pair has up to three votes: its ids against completion_tokens and against the ids before, and its
    text. What the server says of its mode stands, unless all votes are against it: a server that says the
    wrong mode is not to blame for ids that it never sent. A stream without evidence, such as a single
    emission, counts as incremental: both modes read it alike.
    """
    tally = Counter(vote for emissions in choices for pair in pairwise(emissions) for vote in _votes(*pair))
    if said is not None and (tally[said] or tally.total() < _CLEAR):
        return said
    cumulative = tally[Delivery.CUMULATIVE] > tally[Delivery.INCREMENTAL]
    return Delivery.CUMULATIVE if cumulative else Delivery.INCREMENTAL
