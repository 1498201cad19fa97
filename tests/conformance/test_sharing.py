from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.record import Stream
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire.wire.sharing import same_values, sharing
from tokenwire.wire.strict_json import loads

numbers = st.sampled_from([0, 1, True, False, 1.0, 0.0, -0.0, 300, None, "1", "\ud800"])
values = st.recursive(
    numbers, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner)
)


@given(values, values)
def test_what_is_shared_is_what_was_read(value: Any, before: Any) -> None:
    read, written = repr(value), repr(before)
    assert repr(sharing(value, before)) == read
    assert repr(before) == written


@given(st.lists(values, min_size=1), st.lists(values))
def test_a_list_that_goes_on_keeps_the_entries_of_the_one_before(before: list[Any], more: list[Any]) -> None:
    again = loads(json.dumps(before + more))
    shared = sharing({"ids": again}, {"ids": before})["ids"]
    assert all(map(lambda item, other: item is other, shared, before))
    assert (shared is before) == (not more)


@pytest.mark.parametrize(
    ("value", "before"),
    [([1], [True]), ([1], [1.0]), ([0.0], [-0.0]), ([[1], 2], [[1.0], 2]), ([{"a": 1}], [{"a": True}])],
)
def test_what_is_only_equal_is_not_shared(value: list[Any], before: list[Any]) -> None:
    assert sharing(value, before) is value


def test_a_list_that_was_cut_shares_nothing() -> None:
    value = [1]
    assert sharing(value, [1, 2]) is value
    assert sharing(value, []) is value


@pytest.mark.parametrize("choices", [1, 2])
def test_a_cumulative_stream_holds_each_entry_once(choices: int) -> None:
    """So n large events of up to n entries make n entries; each read by itself, they would make n²/2."""
    entries = [[-0.25 * token, 1000 + token, None] for token in range(60)]
    events = [
        {
            "text": "x" * 5000,
            "output_ids": [1000 + token for token in range(count)],
            "meta_info": {"id": "a", "finish_reason": None, "output_token_logprobs": entries[:count]},
            "index": choice,
        }
        for count in range(1, len(entries) + 1)
        for choice in range(choices)
    ]
    reads = tuple(Read(0.1 * n, f"data: {json.dumps(event)}\n\n".encode()) for n, event in enumerate(events))
    parameters = {"n": choices}
    body = {"input_ids": [1], "stream": True, "return_logprob": True, "sampling_params": parameters}
    request = HttpRequest("POST", "/generate", body)
    headers = (("content-type", "text/event-stream"),)
    exchange = Exchange("generate/one", request, "one", 200, headers, reads, Ending.COMPLETE)

    stream = load_dialects()["sglang-generate"].read(exchange)
    assert len(stream.choices) == choices
    for choice in stream.choices:
        carried = [emission.series["output_token_logprobs"] for emission in choice.emissions]
        assert carried == [entries[:count] for count in range(1, len(entries) + 1)]
        assert len({id(entry) for series in carried for entry in series}) == len(entries)
        ids = [emission.output_ids for emission in choice.emissions]
        assert len({id(token) for part in ids if part is not None for token in part}) == len(entries)


def _cumulative(name: str) -> Stream:
    """A stream whose events repeat a long text, with other logprobs each time."""
    events = [
        {"text": f"{'x' * 2000} {count}", "output_ids": [7] * count, "meta_info": {"id": name}}
        | {"index": 0, "output_token_logprobs": [[-0.5, 7, None]] * count}
        for count in (1, 2, 3)
    ]
    reads = tuple(Read(0.1, f"data: {json.dumps(event)}\n\n".encode()) for event in events)
    request = HttpRequest("POST", "/generate", {"input_ids": [1], "stream": True, "return_logprob": True})
    headers = (("content-type", "text/event-stream"),)
    exchange = Exchange(f"generate/{name}", request, name, 200, headers, reads, Ending.COMPLETE)
    return load_dialects()["sglang-generate"].read(exchange)


def test_streams_of_one_request_hold_each_text_once() -> None:
    first, second = (_cumulative(name).choices[0].emissions for name in ("one", "other"))
    assert all(ours.text is theirs.text for ours, theirs in zip(first[1:], second[1:], strict=True))


def test_emissions_with_the_same_fields_share_their_pointers() -> None:
    first, *others = _cumulative("one").choices[0].emissions
    assert all(emission.pointers is first.pointers for emission in others)


def test_what_was_computed_of_an_answer_goes_once_it_was_observed_but_for_facts() -> None:
    stream = _cumulative("one")
    judge([Run((stream,))])
    assert {type(key) for key in (*stream.cache, *stream.choices[0].cache)} == {str}


@given(st.lists(values), st.lists(values))
def test_arrays_hold_the_same_values_only_if_they_are_written_alike(
    first: list[Any], other: list[Any]
) -> None:
    assert same_values(first, loads(json.dumps(first)))
    if same_values(first, other):
        assert repr(first) == repr(other)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ([1], [True]),
        ([1], [1.0]),
        ([0.0], [-0.0]),
        ([[1]], [[True]]),
        ([1], [1, 2]),
        ([object()], [object()]),
    ],
)
def test_what_is_only_equal_or_no_json_is_not_the_same(first: list[Any], other: list[Any]) -> None:
    assert not same_values(first, other)
