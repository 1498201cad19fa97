"""When a request emits, and what a row carries."""

from __future__ import annotations

import pytest

from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import FinishReason, Request, SamplingParams
from tokenwire_reference.core.request_extras import EMBEDDING, WANTS_EMBEDDING


def request(text="", *, stream=True, interval=None, **fields):
    asked = Request(
        rid="r",
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(stream_interval=interval),
        stream=stream,
        **fields,
    )
    for letter in text:
        asked.append(ord(letter), {}, {})
    return asked


def row_sizes(steps, *, server_interval=1, ends=True, **fields):
    """The sizes of the rows of a request that gets so many tokens in each step."""
    streamer = OutputStreamer(stream_interval=server_interval)
    asked = request(**fields)
    streamer.admit(asked)
    sizes = []
    for i, count in enumerate(steps):
        for _ in range(count):
            asked.append(ord("x"), {}, {})
        if ends and i + 1 == len(steps):
            asked.finish = FinishReason("length", length=len(asked.output_ids))
        sizes += [row.end - row.start for row in streamer.stream([asked])]
    return sizes


@pytest.mark.parametrize(
    ("steps", "request_interval", "server_interval", "sizes"),
    [
        ([1] * 10, 3, 1, [1, 3, 3, 3]),
        ([1] * 10, 4, 1, [1, 4, 4, 1]),
        ([1] * 10, None, 4, [1, 4, 4, 1]),
        ([1] * 10, 0, 4, [1, 4, 4, 1]),
        ([1] * 4, -1, 4, [1, 1, 1, 1]),
        ([1] * 4, 1, 4, [1, 1, 1, 1]),
        ([1] * 10, 8, 2, [1, 8, 1]),
        ([3] * 5, 4, 1, [3, 6, 6]),
        ([1], 100, 1, [1]),
    ],
)
def test_rows_come_first_then_by_interval_then_at_the_end(steps, request_interval, server_interval, sizes):
    assert row_sizes(steps, interval=request_interval, server_interval=server_interval) == sizes


def test_a_request_that_is_not_streamed_has_a_row_every_50_tokens():
    assert row_sizes([1] * 120, stream=False, interval=1) == [50, 50, 20]


def test_a_step_without_a_token_has_no_row():
    assert row_sizes([1, 0, 0, 1], ends=False) == [1, 1]


def test_a_finish_is_emitted_once_even_where_it_brings_no_token():
    streamer = OutputStreamer(stream_interval=1)
    asked = request("a")
    streamer.admit(asked)
    assert len(streamer.stream([asked])) == 1
    asked.finish = FinishReason("abort")
    (last,) = streamer.stream([asked])
    assert (last.start, last.end, last.finish) == (1, 1, asked.finish)
    assert streamer.stream([asked]) == []


def test_a_live_request_id_cannot_be_admitted_twice():
    streamer = OutputStreamer(stream_interval=1)
    streamer.admit(request())
    with pytest.raises(ValueError, match="'r' is in use"):
        streamer.admit(request())


def test_a_request_that_is_held_back_emits_with_the_step_that_lets_it_go():
    streamer = OutputStreamer(stream_interval=1)
    asked = request()
    streamer.admit(asked)
    sizes = []
    for held_back in [True, False, True, True, False]:
        asked.append(5, {}, {})
        asked.held_back = held_back
        sizes.append([row.end - row.start for row in streamer.stream([asked])])
    assert sizes == [[], [2], [], [], [3]]


def test_the_end_lets_go_of_what_is_held_back():
    assert row_sizes([1, 1], held_back=True) == [2]
    assert row_sizes([1, 1], held_back=True, ends=False) == []


def test_every_series_is_sliced_as_the_ids_are():
    streamer = OutputStreamer(stream_interval=2)
    asked = request()
    asked.prompt_series["input_token_logprobs"] = [[None, 1, None]]
    streamer.admit(asked)
    rows = []
    for i in range(5):
        late = {"late": i} if i >= 2 else {}
        asked.append(10 + i, {"output_token_logprobs": [-1.0, 10 + i, None]}, late)
        rows += streamer.stream([asked])
    assert [(row.start, row.end) for row in rows] == [(0, 1), (1, 3), (3, 5)]
    for row in rows:
        assert row.record is asked
        entries = row.series["output_token_logprobs"][row.start : row.end]
        assert [entry[1] for entry in entries] == asked.output_ids[row.start : row.end]
    late = [row.series["late"][row.start : row.end] for row in rows[1:]]
    assert late == [[None, 2], [3, 4]]
    assert "late" not in rows[0].series


def test_a_key_that_comes_later_is_not_in_the_rows_before():
    streamer = OutputStreamer(stream_interval=1)
    asked = request("a")
    asked.series = {"s": [0]}
    streamer.admit(asked)
    (row,) = streamer.stream([asked])
    asked.append(5, {"s": 1}, {"late": 2})
    assert (row.end, list(row.series)) == (1, ["s"])
    assert asked.series == {"s": [0, 1], "late": [None, 2]}


@pytest.mark.parametrize(
    ("cached", "tiers", "backend", "details"),
    [
        (0, (0, 0, 0), None, None),
        (0, (0, 0, 0), "file", None),
        (5, (5, 0, 0), None, {"device": 5, "host": 0}),
        (7, (4, 3, 0), None, {"device": 4, "host": 3}),
        (8, (4, 3, 1), None, {"device": 4, "host": 3, "storage": 1}),
        (7, (4, 3, 0), "file", {"device": 4, "host": 3, "storage": 0, "storage_backend": "file"}),
        (8, (4, 3, 1), "file", {"device": 4, "host": 3, "storage": 1, "storage_backend": "file"}),
    ],
)
def test_cached_tokens_details(cached, tiers, backend, details):
    asked = request("x")
    asked.cached_tokens_device, asked.cached_tokens_host, asked.cached_tokens_storage = tiers
    assert asked.cached_tokens == cached
    asked.storage_backend = backend
    assert asked.cached_tokens_details == details


def test_an_embedding_emits_once_with_no_token():
    streamer = OutputStreamer(stream_interval=1)
    asked = request(stream=True, extras={WANTS_EMBEDDING: True})
    streamer.admit(asked)
    assert streamer.stream([asked]) == []
    asked.finish = FinishReason("length", length=0)
    EMBEDDING.put(asked, [0.6, 0.8])
    (row,) = streamer.stream([asked])
    assert (EMBEDDING.of(row.record), row.end, row.finish) == ([0.6, 0.8], 0, asked.finish)
    assert streamer.stream([asked]) == []
