"""Checks of what may not wait and not be left out in streams: first ids, a sampler's keys, asked fields."""

from __future__ import annotations

from typing import Any

import pytest
from stream_builder import GONE, IDS, Reply, change, cumulative, incremental, logprobs, whole
from test_checks_pairs import observe, why_left_out
from wire_answers import DONE, answered

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.record import Delivery, Stream
from tokenwire.target.determinism import Comparison


def first_ids(*streams: Stream, default: int | None = None) -> list[bool]:
    check = CHECKS["first-ids-at-once"].on_run
    assert check is not None
    return [observation.holds for observation in check(streams, Target(stream_interval=default))]


def cut(*sizes: int, interval: int | None = 3, **asked: Any) -> Stream:
    return incremental(sizes=sizes, stream_interval=interval, **asked)


LATE, EARLY = cut(3, 3), cut(1, 3, 2)


def test_first_ids_that_wait_in_every_stream_waited() -> None:
    assert first_ids(*[LATE] * 4) == [False] * 4


def test_one_stream_that_does_not_wait_shows_that_none_has_to() -> None:
    assert first_ids(*[LATE] * 4, EARLY) == [True]
    assert first_ids(EARLY, cut(2, 4)) == [True, True]


def test_a_few_streams_may_have_been_joined_by_chance() -> None:
    assert first_ids(*[LATE] * 3) == []


@pytest.mark.parametrize(
    "stream",
    [
        cut(3, 3, interval=1),
        cut(3, 3, interval=None),
        cut(6, interval=6),
        cut(3, 3, stop=("x",)),
        whole(stream_interval=3),
    ],
    ids=["every step", "no interval known", "no longer than the interval", "held back", "whole"],
)
def test_first_ids_are_not_looked_at_where_they_tell_nothing(stream: Stream) -> None:
    assert first_ids(*[stream] * 4) == []


def test_the_interval_of_the_server_counts_where_a_request_has_none() -> None:
    assert first_ids(*[cut(3, 3, interval=None)] * 4, default=3) == [False] * 4
    assert first_ids(cut(1, 5, interval=None), default=3) == [True]


def test_cumulative_streams_are_read_by_their_growth() -> None:
    late = cumulative(sizes=[3, 3], stream_interval=3)
    assert late.delivery is Delivery.CUMULATIVE
    assert first_ids(*[late] * 4) == [False] * 4
    assert first_ids(cumulative(sizes=[1, 5], stream_interval=3)) == [True]


# customized-info-in-streams

MIRRORED = Reply(series={"mirror": list(IDS), "own": logprobs()}, customized=frozenset({"mirror"}))


def keys_in(stream: Stream, reply: Reply = MIRRORED) -> list[Observation]:
    check = CHECKS["customized-info-in-streams"].on_comparison
    assert check is not None
    return list(check(Comparison(whole(reply), stream), Target()))


def without(stream: Stream, name: str) -> Stream:
    for index in range(len(stream.choices[0].emissions)):
        stream = change(stream, index, series={name: GONE})
    return stream


def test_the_keys_of_a_sampler_stand_in_streams_too() -> None:
    assert [key.holds for key in keys_in(incremental(MIRRORED))] == [True]
    (lost,) = keys_in(without(incremental(MIRRORED), "mirror"))
    assert not lost.holds
    assert "mirror" in lost.message


def test_one_emission_with_the_key_is_enough_here() -> None:
    stream = change(incremental(MIRRORED), 0, series={"mirror": GONE})
    assert [key.holds for key in keys_in(stream)] == [True]


def test_series_of_the_server_itself_and_empty_ones_are_not_owed() -> None:
    assert [key.holds for key in keys_in(without(incremental(MIRRORED), "own"))] == [True]
    empty = Reply(ids=(), text="", series={"mirror": []}, customized=frozenset({"mirror"}))
    assert keys_in(without(incremental(MIRRORED), "mirror"), empty) == []
    assert keys_in(incremental(Reply(ids=(), text=""))) == []


# asked-or-refused


def asked(stream: Stream) -> list[bool]:
    check = CHECKS["asked-or-refused"].on_stream
    assert check is not None
    return [observation.holds for observation in check(stream, Target())]


def test_top_logprobs_of_chat_are_owed_as_well() -> None:
    entry = {"token": "a", "logprob": -1.0, "bytes": [97]}
    bare = Reply(series={"logprobs_content": [entry] * 6})
    full = Reply(series={"logprobs_content": [{**entry, "top_logprobs": [entry]}] * 6})
    wanted = {"dialect": "sglang-chat", "logprobs": True, "top_logprobs": 1}
    assert asked(incremental(full, **wanted)) == [True, True]
    assert asked(incremental(bare, **wanted)) == [True, False]
    assert asked(incremental(bare, **{**wanted, "top_logprobs": 0})) == [True]


def created(*times: int, seconds: float = 0.0) -> Stream:
    """A stream of events that were created at these times, 0.1 s apart."""
    head = {"id": "c", "object": "text_completion", "model": "m"}
    choices = [{"index": 0, "text": "a", "finish_reason": None}] * (len(times) - 1)
    choices.append({"index": 0, "text": "a", "finish_reason": "length"})
    chunks = [{**head, "created": at, "choices": [one]} for at, one in zip(times, choices, strict=True)]
    body = {"prompt": "a", "max_tokens": len(times), "stream": True}
    return answered("openai-completions", body, *chunks, DONE, label=f"at-{seconds}", seconds=seconds)


def test_a_time_of_creation_is_constant_only_if_the_clock_moved_on() -> None:
    """Two releases of one server had PASS and WARN: a second began within a stream of the one only."""
    row, short = "created-is-constant", [created(*[1] * 21, seconds=2.1 * n) for n in range(3)]
    assert len(observe(row, tuple(short))) == 3
    assert all(seen.holds for seen in observe(row, tuple(short)))
    assert observe(row, tuple(short[:2])) == []
    beside = tuple(created(*[1] * 21, seconds=0.1 * n) for n in range(3))
    assert observe(row, beside) == [], "streams beside each other meet the same seconds"
    assert why_left_out(row, beside)[0] == ("streams with `created` last only 2.2 s; a clock may not advance")
    (wrong,) = [seen for seen in observe(row, (*short, created(1, 1, 2))) if not seen.holds]
    assert (wrong.place.event, wrong.message) == (2, "created changed from 1 to 2")
    assert not observe(row, (created(1, 2),))[0].holds, "one answer shows it"
