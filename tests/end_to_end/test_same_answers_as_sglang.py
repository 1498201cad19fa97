"""Same weights, same ids: the reference answers greedy `/generate` requests as the recorded SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tokenwire.asking.recorder import Recorder
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Choice, Stream
from tokenwire.wire.capture import read_capture
from tokenwire.wire.exchange import Exchange

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures" / "sglang" / "0.5.23"
MODEL = ROOT / "fixtures" / "models" / "tiny-qwen2"
GENERATE = load_dialects()["sglang-generate"]
ENOUGH = 60

CASES = {
    "A_base": (),
    "C_incr": ("--incremental-streaming-output",),
}

REFUSED = {
    "d_lp_flat": "flat logprobs are not offered",
    "h_bad_regex_stream": "a pattern that does not compile",
    "h_image_data_text_model": "media for a model that reads none",
    "h_input_ids_empty_sublist": "an empty prompt in a batch",
    "h_logprob_start_too_large_stream": "a start beyond the prompt",
    "h_n0": "no sample at all",
    "h_n_negative": "no sample at all",
    "h_oov_vocab_size": "an id outside the vocabulary",
    "h_oov_vocab_size_stream": "an id outside the vocabulary",
    "h_routed_experts_not_enabled": "asked for and not offered: refused, not ignored",
    "h_stop_empty_string": "a stop string that everything contains",
    "h_stop_token_ids_negative": "an id outside the vocabulary",
    "h_stop_token_ids_oov": "an id outside the vocabulary",
    "h_top_logprobs_num_neg": "a negative number of logprobs",
    "h_top_logprobs_without_return_logprob": "asked for without the switch that turns logprobs on",
    "h_rid_empty": "an empty request id",
}
"""Recorded requests that SGLang answered with 200 and the reference refuses with 400, and why."""

DIFFERENT = {
    "h_max_new_tokens_null": "without a budget SGLang leaves the last two positions of the context unused",
    "f_json_schema": "JSON of a schema has white space without end in SGLang",
}
"""Recorded requests that the reference answers differently on purpose, and why."""


def _greedy(exchange: Exchange) -> bool:
    if exchange.request.path != "/generate" or exchange.status != 200:
        return False
    asked = GENERATE.read_asked(exchange.request)
    return asked.greedy


def _recorded(case: str) -> Iterator[Stream]:
    for exchange in read_capture(RECORDED / f"{case}.jsonl.gz"):
        if _greedy(exchange):
            stream = GENERATE.read(exchange)
            if stream.answered and stream.error is None and exchange.name not in DIFFERENT:
                yield stream


async def _ask_again(url: str, streams: list[Stream]) -> list[Stream]:
    recorder = Recorder(url, timeout_s=60.0)
    exchanges = await asyncio.gather(
        *(recorder.send(s.exchange.name, s.exchange.scenario, s.exchange.request) for s in streams)
    )
    return [
        GENERATE.read(exchange, delivery_hint=s.delivery)
        for exchange, s in zip(exchanges, streams, strict=True)
    ]


def _logprobs(value: Any) -> Any:
    """A series without the texts: pytest.approx for every logprob, ids as they are."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if isinstance(value, list):
        return [_logprobs(entry) for entry in value]
    return value


def _answer(choice: Choice) -> dict[str, Any]:
    return {
        "output_ids": choice.output_ids,
        "text": choice.text,
        "finish": choice.finish.raw if choice.finish else None,
    }


@pytest.mark.parametrize("case", CASES)
def test_greedy_requests_get_the_recorded_answers(
    case: str, start_reference: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = start_reference("--model", str(MODEL), "--context-length", "512", *CASES[case])
    recorded = list(_recorded(case))
    answered = asyncio.run(_ask_again(url, recorded))
    compared, refused = 0, []
    for theirs, ours in zip(recorded, answered, strict=True):
        name = theirs.exchange.name
        if ours.refused:
            refused.append(name)
            continue
        assert ours.answered, f"{name}: {ours.exchange.status} {ours.exchange.body[:300]!r}"
        assert len(ours.choices) == len(theirs.choices), name
        for mine, recorded_choice in zip(ours.choices, theirs.choices, strict=True):
            assert _answer(mine) == _answer(recorded_choice), name
            for series in recorded_choice.series_names & mine.series_names:
                if mine.output_ids:
                    assert mine.series(series) == _logprobs(recorded_choice.series(series)), (name, series)
            # Of the first id inside a prompt SGLang tells nothing (reference/DIFFERENCES.md).
            found = slice(1 if theirs.asked.logprob_start else 0, None)
            for series in recorded_choice.emissions[-1].prompt_series:
                expected = recorded_choice.emissions[-1].prompt_series[series][found]
                assert mine.emissions[-1].prompt_series[series][found] == _logprobs(expected), (name, series)
        compared += 1
    with capsys.disabled():
        print(f"\n{case}: {compared} exchanges compared with SGLang 0.5.23; {len(refused)} refused")
    assert set(refused) <= set(REFUSED)
    assert compared >= ENOUGH
