"""No false alarm: every legal cut of a record, in either mode, at any interval, satisfies every check."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from stream_builder import (
    ABORT,
    FAILED,
    Reply,
    build,
    change,
    chosen_logprobs,
    incremental,
    logprobs,
    named,
    top_logprobs,
    whole,
)

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.record import Choice, Delivery, Emission, Finish, Stream
from tokenwire.target.determinism import Comparison

PROMPT = (5, 6, 7)
TARGET = Target()
MODES = [Delivery.CUMULATIVE, Delivery.INCREMENTAL]


def record(ids: list[int], *, finish: Finish) -> Reply:
    """A record with everything that a server can tell of a token; the text repeats itself as text may."""
    return Reply(
        ids=ids,
        text="".join("ab"[token % 2] for token in ids),
        series={
            "output_token_logprobs": logprobs(ids),
            "output_top_logprobs": top_logprobs(ids),
            "output_token_ids_logprobs": chosen_logprobs(ids),
            "mirror_token_id": ids,
            "mirror_position": range(2, 2 + len(ids)),
        },
        customized=frozenset({"mirror_token_id", "mirror_position"}),
        prompt_ids=PROMPT,
        prompt_series={"input_token_logprobs": [[None, 5, None], [-1.0, 6, None], [-2.0, 7, None]]},
        counters={"prompt_tokens": 3, "cached_tokens": 2},
        details={"request_id": "r-1", "cached_tokens_details": {"device": 2, "host": 0}},
        finish=finish,
    )


@st.composite
def cuts(draw: st.DrawFn, size: int, interval: int) -> list[int]:
    """Sizes of the emissions of a record: the first and the last free, all others at least the interval."""
    left = size - draw(st.integers(1, size))
    sizes = [size - left]
    while left:
        part = draw(st.integers(min(interval, left), left))
        sizes.append(part)
        left -= part
    return sizes


def _texts(stream: Stream, lags: list[int]) -> Stream:
    """Let the text of each emission but the last lag behind its ids, and never go back."""

    def lagging(choice: Choice) -> Choice:
        emissions: list[Emission] = []
        full, shown, reached = whole_text(choice), 0, 0
        for position, emission in enumerate(choice.emissions):
            length = len(emission.output_ids or ())
            reached = reached + length if choice.delivery is Delivery.INCREMENTAL else length
            last = position == len(choice.emissions) - 1
            end = len(full) if last else max(shown, reached - lags[position % len(lags)])
            start = shown if choice.delivery is Delivery.INCREMENTAL else 0
            emissions.append(replace(emission, text=full[start:end]))
            shown = end
        return replace(choice, emissions=tuple(emissions))

    return replace(stream, choices=tuple(lagging(choice) for choice in stream.choices))


def whole_text(choice: Choice) -> str:
    return choice.text or ""


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[Stream, Stream]:
    """A request answered whole, and the same answered by a legal stream."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    interval = draw(st.integers(1, 5))
    mode = draw(st.sampled_from(MODES))
    finish = draw(st.sampled_from([Finish("length"), Finish("stop", matched=9)]))
    stream_ = [
        record([*draw(st.lists(st.integers(0, 3), min_size=size - 1, max_size=size - 1)), 9], finish=finish)
        for size in sizes
    ]
    alone = len(stream_) == 1
    asked: dict[str, Any] = {
        "input_ids": (PROMPT,),
        "max_new_tokens": sizes[0] if alone and finish.type == "length" else None,
        "logprobs": True,
        "top_logprobs": 2,
        "chosen_ids": (7, 5),
        "logprob_start": 0,
        "return_prompt_token_ids": True,
    }
    parts = [draw(cuts(size, interval)) for size in sizes]
    streams = [
        build(mode, choices=[item], sizes=cut, stream_interval=interval, **asked)
        for item, cut in zip(stream_, parts, strict=True)
    ]
    stream = _interleaved(streams) if not alone else streams[0]
    stream = _texts(stream, draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)))
    again = [replace(item, details={"request_id": "r-2"}) for item in stream_]
    return named(whole(*again, **asked), "generate/whole"), stream


def _interleaved(streams: list[Stream]) -> Stream:
    """Several single answers as the choices of one, an event after the other."""
    events, choices = [], []
    starts = [0, *accumulate(len(stream.events) - 1 for stream in streams)]
    for index, (stream, start) in enumerate(zip(streams, starts, strict=False)):
        moved = [replace(event, index=start + event.index) for event in stream.events[:-1]]
        events += moved
        emissions = tuple(
            replace(emission, choice=index, event=event)
            for emission, event in zip(stream.choices[0].emissions, moved, strict=True)
        )
        choices.append(Choice(index, stream.delivery, emissions=emissions))
    end = replace(streams[0].events[-1], index=len(events))
    asked = replace(streams[0].asked, n=len(streams), batch=True)
    return replace(streams[0], events=(*events, end), choices=tuple(choices), asked=asked)


def violations(*streams: Stream, comparison: Comparison | None = None) -> list[tuple[str, Observation]]:
    """What all checks find wrong with some streams, and with a comparison of them."""
    found: list[tuple[str, Observation]] = []
    for check in CHECKS.values():
        seen: list[Observation] = []
        if check.on_stream is not None:
            seen += [item for stream in streams for item in check.on_stream(stream, TARGET)]
        if check.on_comparison is not None and comparison is not None:
            seen += check.on_comparison(comparison, TARGET)
        if check.on_run is not None:
            seen += check.on_run(streams, TARGET)
        found += [(check.requirement, observation) for observation in seen if not observation.holds]
    return found


@given(deliveries())
def test_every_legal_delivery_satisfies_every_check(answers: tuple[Stream, Stream]) -> None:
    baseline, stream = answers
    assert violations(baseline, stream, comparison=Comparison(baseline, stream)) == []


@given(deliveries(), st.data())
def test_dropped_snapshots_are_legal(answers: tuple[Stream, Stream], data: st.DataObject) -> None:
    baseline, stream = answers
    stream = replace(stream, delivery=Delivery.CUMULATIVE)

    def thinned(choice: Choice) -> Choice:
        held = build(
            Delivery.CUMULATIVE, choices=[record(list(choice.output_ids or ()), finish=Finish("length"))]
        )
        kept = [e for e in held.choices[0].emissions[:-1] if data.draw(st.booleans())]
        last = held.choices[0].emissions[-1]
        emissions = [*kept, replace(last, finish=choice.finish)]
        of_choice = tuple(replace(e, choice=choice.index) for e in emissions)
        return Choice(choice.index, held.delivery, emissions=of_choice)

    choices = tuple(thinned(choice) for choice in stream.choices)
    events = tuple(e.event for choice in choices for e in choice.emissions)
    asked = replace(stream.asked, stream_interval=1)
    stream = replace(stream, choices=choices, events=(*events, stream.events[-1]), asked=asked)
    names = {name for name, _ in violations(baseline, stream, comparison=Comparison(baseline, stream))}
    assert names == set()


def test_a_graceful_abort_keeps_its_promises() -> None:
    reply = replace(record([1, 2, 3], finish=ABORT), prompt_ids=None)
    stream = incremental(
        reply, input_ids=(PROMPT,), max_new_tokens=9, logprobs=True, top_logprobs=2, chosen_ids=(7, 5)
    )
    assert violations(stream) == []


def test_data_that_an_abort_repeats_is_found() -> None:
    reply = Reply(ids=[1, 2, 3], text="abc", finish=ABORT)
    stream = change(incremental(reply), output_ids=[2], text="ab", counters={"completion_tokens": 2})
    assert "incremental-ids-are-new" in {name for name, _ in violations(stream)}


def test_nothing_is_promised_of_an_emission_that_reports_a_failure() -> None:
    reply = replace(record([1, 2, 3], finish=FAILED), prompt_ids=None)
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "chosen_ids": (7, 5)}
    stream = incremental(reply, input_ids=(PROMPT,), max_new_tokens=9, **asked)
    stream = change(stream, output_ids=[4], series={"output_token_logprobs": []})
    stream = change(stream, counters={"prompt_tokens": 1, "completion_tokens": 1})
    assert {name for name, _ in violations(stream)} == {"requests-do-not-break-the-server"}


def test_extra_fields_and_a_second_order_of_keys_are_legal() -> None:
    stream = incremental(record([1, 2, 3], finish=Finish("length")), input_ids=(PROMPT,))
    asked = replace(
        stream.asked, logprobs=True, top_logprobs=2, chosen_ids=(7, 5), return_prompt_token_ids=True
    )
    stream = change(replace(stream, asked=asked), 1, details={"x-new": [1, 2, 3, 4]})
    reversed_series = dict(reversed(stream.choices[0].emissions[1].series.items()))
    choice = stream.choices[0]
    emissions = list(choice.emissions)
    emissions[1] = replace(emissions[1], series=reversed_series)
    stream = replace(stream, choices=(replace(choice, emissions=tuple(emissions)),))
    assert violations(stream) == []
