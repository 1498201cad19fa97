"""From the engine's steps to what a client joins: nothing is lost, whatever is merged on the way.

Streamer and manager together: any steps, any interval, any moments at which the consumer comes, several
samples at once, keys of customized_info that start late, pause or never come.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import Letters

from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import OWN_SERIES, FinishReason, Request, SamplingParams
from tokenwire_reference.doors.reader import Delivery
from tokenwire_reference.doors.request_manager import RequestManager

LOGPROBS = "output_token_logprobs"
KEYS = ("early", "late")


class Nobody:
    def add(self, request, *, aborted=False):
        pass

    def abort(self, rid):
        pass


@dataclass(frozen=True)
class Sample:
    """What one request gets: in each step so many tokens, each with some of the keys."""

    steps: list[list[set[str]]]
    interval: int


tokens = st.sets(st.sampled_from(KEYS))
samples = st.builds(
    Sample,
    steps=st.lists(st.lists(tokens, max_size=4), min_size=1, max_size=8).filter(any),
    interval=st.integers(1, 5),
)


LETTERS = Letters(first=ord("a"), letters=26)


def advance(request, step, *, last):
    for keys in step:
        token_id = len(request.output_ids)
        request.append(token_id, {LOGPROBS: [-0.5, token_id, None]}, dict.fromkeys(keys, token_id))
    if last:
        request.finish = FinishReason("length", length=len(request.output_ids))


async def run(given_samples, drains, delivery):
    manager = RequestManager(Nobody(), LETTERS)
    streamer = OutputStreamer(stream_interval=1)
    requests = [
        Request(
            f"r{i}",
            (7,),
            SamplingParams(stream_interval=sample.interval),
            stream=True,
            return_logprob=True,
        )
        for i, sample in enumerate(given_samples)
    ]
    for request in requests:
        streamer.admit(request)
    generation = manager.submit(requests)
    taken = [[] for _ in requests]
    for number in range(max(len(sample.steps) for sample in given_samples)):
        touched = []
        for request, sample in zip(requests, given_samples, strict=True):
            if number < len(sample.steps):
                advance(request, sample.steps[number], last=number + 1 == len(sample.steps))
                touched.append(request)
        if rows := streamer.stream(touched):
            manager.deliver(rows)
        if drains[number]:
            drain(generation, taken, delivery)
    drain(generation, taken, delivery)
    assert manager.live == 0
    return requests, taken


def drain(generation, taken, delivery):
    for reader in generation.readers:
        if reader.pending:
            taken[reader.index].append(reader.take(delivery))


@given(
    given_samples=st.lists(samples, min_size=1, max_size=3),
    drains=st.lists(st.booleans(), min_size=8, max_size=8),
    delivery=st.sampled_from(Delivery),
)
def test_any_steps_and_any_drains_join_to_the_record(given_samples, drains, delivery):
    requests, taken = asyncio.run(run(given_samples, drains, delivery))
    for request, emissions in zip(requests, taken, strict=True):
        joined = {LOGPROBS: [], **{key: [] for key in request.series.keys() - OWN_SERIES}}
        ids, text = [], ""
        for emission in emissions:
            if delivery is Delivery.CUMULATIVE:
                ids, text, joined = [], "", {name: [] for name in joined}
            length = len(emission.output_ids)
            assert all(len(values) == length for values in emission.series.values())
            ids += emission.output_ids
            text += emission.text
            for name in joined:
                # A key that has not come yet is absent: nulls, for one who joins.
                joined[name] += emission.series.get(name, [None] * length)
            assert emission.completion_tokens == len(ids)
        assert ids == request.output_ids
        assert text == LETTERS.decode(request.output_ids)
        assert joined == {name: request.series[name] for name in joined}
        assert [e.finish is not None for e in emissions] == [False] * (len(emissions) - 1) + [True]
        assert emissions[-1].series.keys() == request.series.keys()
