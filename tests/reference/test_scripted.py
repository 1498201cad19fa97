"""builtin:scripted says what it is told to, step by step, in the way of all tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_requests import ask, record
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import FinishReason, Request
from tokenwire_reference.extras.builtin import IM_END, VOCAB_SIZE
from tokenwire_reference.extras.scripted import Script, ScriptedModel
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]
PROMPT = (20, 21, 22)
NEVER_EOS = st.lists(st.lists(st.integers(IM_END + 1, VOCAB_SIZE - 1), min_size=1, max_size=6), max_size=6)


def scripted_ask(script: Any, rid: str = "r", **options: Any) -> Request:
    return ask(rid, PROMPT, options.pop("new", 64), custom_params={"script": script}, **options)


def steps(engine: Engine, request: Request) -> list[list[int]]:
    """The ids that each step gave."""
    engine.add(request)
    given: list[list[int]] = []
    while not engine.idle:
        engine.step()
        given.append(request.output_ids[sum(map(len, given)) :])
    return given


@settings(deadline=None, max_examples=40)
@given(script=NEVER_EOS, temperature=st.sampled_from([0.0, 0.7, 1.5]))
def test_each_step_gives_its_ids_and_then_the_sequence_ends(
    scripted: ScriptedModel, script: list[list[int]], temperature: float
) -> None:
    request = scripted_ask(script, temperature=temperature)
    assert steps(make_engine(scripted), request) == [*script, [IM_END]]
    assert request.finish == FinishReason("stop", matched=IM_END)


def test_an_end_of_sequence_inside_a_step_ends_it(scripted: ScriptedModel) -> None:
    request = scripted_ask([[5, 6, IM_END, 7], [8]])
    assert steps(make_engine(scripted), request) == [[5, 6, IM_END]]
    free = scripted_ask([[5, 6, IM_END, 7], [8]], ignore_eos=True, new=5)
    assert steps(make_engine(scripted), free) == [[5, 6, IM_END, 7], [8]]
    assert free.finish == FinishReason("length", length=5)


def test_the_budget_and_a_stop_string_cut_a_step(scripted: ScriptedModel) -> None:
    short = scripted_ask([[5, 6], [7, 8, 9, 10]], new=4)
    assert steps(make_engine(scripted), short) == [[5, 6], [7, 8]]
    assert short.finish == FinishReason("length", length=4)
    letters = [scripted.tokenizer.encode(letter)[0] for letter in "abXYcd"]
    stopped = scripted_ask([letters], stop=("XY",))
    assert steps(make_engine(scripted), stopped) == [letters[:4]]
    assert stopped.finish == FinishReason("stop", matched="XY")


def test_a_step_never_needs_more_room_than_its_request_may(scripted: ScriptedModel) -> None:
    request = scripted_ask([[5] * 20], new=4)
    assert steps(make_engine(scripted, EngineArgs(page_size=1, chunked_prefill_size=4)), request) == [[5] * 4]


def test_broken_characters_come_as_the_script_breaks_them(scripted: ScriptedModel, run_to_end: Run) -> None:
    byte_ids = [scripted.tokenizer.convert_tokens_to_ids(letter) for letter in ("ç", "Į", "Ģ")]
    (request,) = run_to_end(make_engine(scripted), scripted_ask([[byte_ids[0]], byte_ids[1:]]))
    assert scripted.tokenizer.decode(byte_ids[:1]) == "\ufffd"
    assert scripted.tokenizer.decode(request.output_ids[:-1]) == b"\xe7\x8c\x80".decode()


def test_an_error_ends_one_request_with_what_it_has(scripted: ScriptedModel, run_to_end: Run) -> None:
    engine = make_engine(scripted)
    failing, other = run_to_end(
        engine, scripted_ask([[5, 6], {"error": "out of luck"}, [7]], "f"), scripted_ask([[5], [6], [7]], "o")
    )
    assert failing.finish == FinishReason("abort", message="out of luck", status_code=500)
    assert failing.output_ids == [5, 6]
    assert other.output_ids == [5, 6, 7, IM_END]


def test_a_slow_step_sleeps_before_it_speaks(
    scripted: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[tuple[float, int]] = []
    request = scripted_ask([[5], {"sleep_ms": 20}, {"ids": [6, 7], "sleep_ms": 30}, [8]])
    monkeypatch.setattr(
        "tokenwire_reference.extras.scripted.time.sleep",
        lambda seconds: slept.append((seconds, len(request.output_ids))),
    )
    steps(make_engine(scripted), request)
    assert slept == [(0.05, 1)]


def test_without_a_script_the_prompt_comes_back(scripted: ScriptedModel, run_to_end: Run) -> None:
    (request,) = run_to_end(make_engine(scripted), ask(prompt=PROMPT, new=64))
    assert request.output_ids == [*PROMPT, IM_END]


def test_a_file_has_the_script_of_requests_that_bring_none(tmp_path: Path, run_to_end: Run) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps([[5, 6], [7]]))
    model = load_model("builtin:scripted", script=str(path), context_length=100)
    assert model.context_length == 100
    plain, with_script = run_to_end(make_engine(model), ask("a", PROMPT), scripted_ask([[9]], "b"))
    assert (plain.output_ids, with_script.output_ids) == ([5, 6, 7, IM_END], [9, IM_END])


def test_logprobs_are_the_same_each_time_and_name_the_best_id(
    scripted: ScriptedModel, run_to_end: Run
) -> None:
    script = [[5, 6, 7], [8], [9, 10]]
    wanted = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    first, again = (run_to_end(make_engine(scripted), scripted_ask(script, **wanted))[0] for _ in range(2))
    (by_token,) = run_to_end(
        make_engine(scripted), scripted_ask([[i] for step in script for i in step], **wanted)
    )
    assert record(first) == record(again) == record(by_token)
    tokens, tops = first.series["output_token_logprobs"], first.series["output_top_logprobs"]
    assert [entry[1] for entry in tokens] == first.output_ids
    assert [top[0] for top in tops] == tokens
    assert len({entry[0] for entry in tokens}) == len(tokens)
    assert all(entry[0] < 0 for entry in tokens)
    assert [entry[1] for entry in first.prompt_series["input_token_logprobs"]] == list(PROMPT)


def test_retraction_and_chunks_change_nothing(scripted: ScriptedModel, run_to_end: Run) -> None:
    script = [[5, 6, 7], [8], [9, 10], [11]]
    (calm,) = run_to_end(make_engine(scripted), scripted_ask(script, return_logprob=True))
    engine = make_engine(scripted, EngineArgs(test_retract_interval=1, page_size=2, chunked_prefill_size=2))
    (disturbed,) = run_to_end(engine, scripted_ask(script, return_logprob=True))
    assert disturbed.num_retractions > 1
    assert record(disturbed) == record(calm)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("no", "the script is 'no'; give a list"),
        ([[]], r"script\[0\].ids is \[\]"),
        ([[5], [736]], r"script\[1\].ids is \[736\]; give a text, ids \(at least one, each from 0 to 735\)"),
        ([[True]], r"script\[0\].ids is \[True\]"),
        ([5], r"script\[0\].ids is 5"),
        ([{"sleep_ms": -1}], r"script\[0\].sleep_ms is -1"),
        ([{"sleep_ms": 1e300}], r"script\[0\].sleep_ms is 1e\+300"),
        ([{"error": 3}], r"script\[0\].error is 3"),
        ([{"speed": 3}], r"script\[0\].speed is 3"),
    ],
)
def test_what_is_no_script(scripted: ScriptedModel, tmp_path: Path, script: Any, message: str) -> None:
    engine = make_engine(scripted)
    with pytest.raises(ValueError, match=message):
        engine.add(scripted_ask(script))
    assert engine.idle
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    with pytest.raises(ValueError, match=f"script.json is not a script: .*{message}"):
        ScriptedModel(script=str(path))


def test_scripts_are_refused_by_other_models(tiny: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"custom_params\.script is for builtin:scripted"):
        make_engine(tiny).add(scripted_ask([[5]]))
    with pytest.raises(ValueError, match="needs the model builtin:scripted, not builtin:tiny"):
        load_model("builtin:tiny", script=str(tmp_path))


def test_a_text_in_a_script_is_said_token_by_token(scripted: ScriptedModel) -> None:
    text = "<tool_call>\n😀"
    script = Script([text, [7, 8]], [5])
    ids = [script.following(count) for count in range(40)]
    assert scripted.tokenizer.decode(ids[: ids.index(7)]) == text
    assert script.draft([5], 8) == []
