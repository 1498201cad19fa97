"""Infer the delivery mode of a stream from its events, if the server advertises none or a wrong one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import sub

from tokenwire.record import Columns, Delivery

_COUNT = "completion_tokens"
_CLEAR = 2
"""So many votes, all alike, tell a mode against the server's word."""


def _counted(own: Columns) -> Counter[Delivery]:
    """The modes in which the ids of emissions are as many as were counted since the ones before them."""
    counts = own.counters.get(_COUNT, [])
    if None not in own.output_ids and set(map(type, counts)) == {int} and min(counts) > 0:
        sizes = list(map(len, own.output_ids))[1:]
        if sizes == list(map(sub, counts[1:], counts)):  # as nearly always
            return Counter({Delivery.INCREMENTAL: len(sizes)} if sizes else {})
    votes: Counter[Delivery] = Counter()
    for ids, count, before in zip(
        islice(own.output_ids, 1, None), islice(counts, 1, None), counts, strict=False
    ):
        if ids is not None and type(count) is int and type(before) is int and before > 0:
            if len(ids) == count - before:
                votes[Delivery.INCREMENTAL] += 1
            elif len(ids) == count:
                votes[Delivery.CUMULATIVE] += 1
    return votes


def _extended(own: Columns) -> Iterator[Delivery]:
    """The modes that emissions look like, by whether they begin like the ones before them.

    A token that is repeated in pieces that grow looks cumulative and need not be.
    """
    for ids, before in zip(islice(own.output_ids, 1, None), own.output_ids, strict=False):
        if ids and before:
            yield Delivery.CUMULATIVE if ids[: len(before)] == before else Delivery.INCREMENTAL
    for text, before in zip(islice(own.text, 1, None), own.text, strict=False):
        if text and before:
            yield Delivery.CUMULATIVE if text.startswith(before) else Delivery.INCREMENTAL


def infer_delivery(choices: Iterable[Columns], said: Delivery | None = None) -> Delivery:
    """The delivery mode that fits most pairs of neighbouring emissions of a stream's choices.

    The ids of each pair are held against completion_tokens, and ids and text against those before; what only
    looks like a mode counts for nothing against what is counted. What the server says of its mode stands,
    unless all votes are against it: a server that says the wrong mode is not to blame for ids that it never
    sent. A stream without evidence, such as a single emission, counts as incremental: both modes read it
    alike.
    """
    columns = list(choices)
    proof = sum(map(_counted, columns), Counter[Delivery]())
    if len(proof) == 1 and proof.total() >= _CLEAR:  # what it looks like cannot change that
        return next(iter(proof))
    looks = Counter(vote for own in columns for vote in _extended(own))
    tally = proof + Counter({mode: votes for mode, votes in looks.items() if not proof or mode in proof})
    if said is not None and (tally[said] or tally.total() < _CLEAR):
        return said
    cumulative = tally[Delivery.CUMULATIVE] > tally[Delivery.INCREMENTAL]
    return Delivery.CUMULATIVE if cumulative else Delivery.INCREMENTAL
