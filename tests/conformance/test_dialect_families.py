"""The dialects of completions, vLLM and llama.cpp: what their tables say of requests and answers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokenwire.ask import OMIT, Ask, Asked
from tokenwire.dialects.dialect import Dialect, Unsupported, is_chat, load_dialects, policy_of
from tokenwire.record import Delivery, Stream
from tokenwire.spec_files import spec_root
from tokenwire.wire.capture import exchanges_of
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire.wire.foreign_capture import any_chunks

DIALECTS = load_dialects()
SGLANG, VLLM = DIALECTS["sglang-completions"], DIALECTS["vllm-completions"]
CHAT, GENERATE, LLAMA = DIALECTS["vllm-chat"], DIALECTS["vllm-generate"], DIALECTS["llamacpp-completion"]
IDS = (5, 6, 7)
FIXTURES = Path(__file__).parents[2] / "fixtures"


def body(dialect: Dialect, ask: Ask) -> dict[str, Any]:
    request = dialect.render(ask, "m")
    assert isinstance(request, HttpRequest), request
    value: dict[str, Any] = request.body
    return value


def asked(dialect: Dialect, value: Any, *headers: tuple[str, str]) -> Asked:
    return dialect.read_asked(HttpRequest("POST", dialect.endpoint.path, value, headers=headers))


def read(dialect: Dialect, request: Mapping[str, Any], *answers: Any) -> Stream:
    """A stream of some events, or the whole answer where there is one and the request asks for no stream."""
    if request.get("stream"):
        data = (
            b"".join(f"data: {json.dumps(answer)}\n\n".encode() for answer in answers) + b"data: [DONE]\n\n"
        )
    else:
        data = json.dumps(answers[0]).encode()
    media_type = "text/event-stream" if request.get("stream") else "application/json"
    sent = HttpRequest("POST", dialect.endpoint.path, dict(request))
    headers = (("content-type", media_type),)
    return dialect.read(Exchange("x", sent, "s", 200, headers, (Read(0.1, data),), Ending.COMPLETE))


def recorded(name: str, file: str = "vllm/0.32.0-cpu/si1") -> Stream:
    """A recorded exchange, read by its dialect."""
    for exchange in exchanges_of(any_chunks(FIXTURES / f"{file}.jsonl.gz")):
        if exchange.name == name:
            family = file.partition("/")[0]
            (dialect,) = (
                item
                for item in DIALECTS.values()
                if item.family == family and exchange.request in item.endpoint
            )
            return dialect.read(exchange)
    raise AssertionError(f"{file} holds no {name}")


@pytest.mark.parametrize("dialect", [SGLANG, VLLM, LLAMA])
def test_one_field_takes_ids_and_texts(dialect: Dialect) -> None:
    assert body(dialect, Ask(input_ids=(IDS,)))["prompt"] == [5, 6, 7]
    assert body(dialect, Ask(text=("a", "b")))["prompt"] == ["a", "b"]
    for prompt, ids, text, prompts in (
        ([5, 6, 7], (IDS,), False, 1),
        ([[5], [6, 7]], ((5,), (6, 7)), False, 2),
        ("a", None, True, 1),
        (["a", "b"], None, True, 2),
    ):
        read_ = asked(dialect, {"prompt": prompt, "temperature": 0})
        assert (read_.input_ids, read_.text_prompt, read_.prompts) == (ids, text, prompts)
        assert read_.key


def test_a_malformed_prompt_is_no_prompt() -> None:
    read_ = asked(VLLM, {"prompt": [5, "a"], "temperature": 0})
    assert (read_.input_ids, read_.text_prompt, read_.key) == (None, False, "")
    assert read_.sent["input_ids"].values == ([5, "a"],)
    assert "text" not in read_.sent


@pytest.mark.parametrize("dialect", [SGLANG, VLLM, CHAT])
def test_every_request_asks_for_ids(dialect: Dialect) -> None:
    ask = Ask(messages=({"role": "user", "content": "a"},)) if dialect.chat else Ask(input_ids=(IDS,))
    value = body(dialect, ask)
    assert value["return_token_ids"] is True
    read_ = asked(dialect, value)
    assert (read_.return_prompt_token_ids, read_.return_token_ids) == (True, True)
    left_out = Ask(input_ids=ask.input_ids, messages=ask.messages, raw={"return_token_ids": OMIT})
    assert asked(dialect, body(dialect, left_out)).return_token_ids is False


@pytest.mark.parametrize(
    ("dialect", "ask", "number"),
    [
        (SGLANG, {"logprobs": True}, 0),
        (SGLANG, {"top_logprobs": 3}, 3),
        (VLLM, {"top_logprobs": 2}, 2),
        (LLAMA, {"logprobs": True}, 1),
        (LLAMA, {"top_logprobs": 4}, 4),
    ],
)
def test_a_number_asks_for_logprobs(dialect: Dialect, ask: Mapping[str, Any], number: int) -> None:
    value = body(dialect, Ask(input_ids=(IDS,), **ask))
    assert value["n_probs" if dialect is LLAMA else "logprobs"] == number
    read_ = asked(dialect, value)
    assert (read_.logprobs, read_.top_logprobs) == (True, number)
    assert not asked(dialect, body(dialect, Ask(input_ids=(IDS,)))).logprobs


@pytest.mark.parametrize(("value", "there"), [(0, False), (1, True), (-1, True), (True, False), ("2", False)])
def test_which_numbers_ask_for_logprobs(value: Any, there: bool) -> None:
    assert asked(LLAMA, {"prompt": [5], "n_probs": value}).logprobs is there


def test_a_number_asks_for_the_logprobs_of_the_whole_prompt() -> None:
    value = body(GENERATE, Ask(input_ids=(IDS,), logprob_start=0, top_logprobs=2))
    assert value["sampling_params"] == {
        "repetition_penalty": 1.0,
        "temperature": 0.0,
        "logprobs": 2,
        "prompt_logprobs": 2,
    }
    assert asked(GENERATE, value).logprob_start == 0
    alone = asked(VLLM, {"prompt": [5], "prompt_logprobs": 1})
    assert (alone.logprob_start, alone.logprobs) == (0, False)
    refused = GENERATE.render(Ask(input_ids=(IDS,), logprob_start=2))
    assert isinstance(refused, Unsupported)
    assert "from its beginning" in refused.reason


def test_wrong_values_find_the_field_that_is_a_number() -> None:
    for name in ("logprobs", "top_logprobs"):
        assert body(VLLM, Ask(input_ids=(IDS,), wrong={name: "x"}))["logprobs"] == "x"
    assert asked(VLLM, {"prompt": [5], "logprobs": "x"}).sent["logprobs"].values == ("x",)


def test_a_header_wins_over_the_request_id_of_the_body() -> None:
    value = {"messages": [], "request_id": "mine"}
    assert asked(CHAT, value).request_id == "mine"
    assert asked(CHAT, value, ("x-request-ID", "theirs")).request_id == "theirs"


def test_usage_of_every_event_needs_usage() -> None:
    options = {"continuous_usage_stats": True}
    assert asked(SGLANG, {"prompt": [5], "stream_options": options}).continuous_usage
    assert not asked(VLLM, {"prompt": [5], "stream_options": options}).continuous_usage
    assert asked(VLLM, {"prompt": [5], "stream_options": options | {"include_usage": True}}).continuous_usage


LISTS: Mapping[str, Sequence[Any]] = {
    "tokens": ["a", "b", "c", "d"],
    "token_logprobs": [None, -1.0, -2.0, -3.0],
    "top_logprobs": [None, {"b": -1.0}, {"c": -2.0}, {"d": -3.0}],
    "text_offset": [0, 1, 2, 3],
}


def completion(logprobs: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "cd", "logprobs": logprobs, "finish_reason": "length", **more}
    return {"id": "c", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]}


ECHO = {"prompt": [5, 6], "echo": True, "logprobs": 1, "max_tokens": 2}


@pytest.mark.parametrize("dialect", [SGLANG, VLLM])
def test_an_echo_is_cut_off_by_the_length_of_the_prompt(dialect: Dialect) -> None:
    stream = read(dialect, ECHO, completion(LISTS, token_ids=[11, 12]))
    (emission,) = stream.choices[0].emissions
    assert emission.series == {name: entries[2:] for name, entries in LISTS.items()}
    assert emission.prompt_series == {name: entries[:2] for name, entries in LISTS.items()}
    assert emission.at("token_logprobs").pointer == "/choices/0/logprobs/token_logprobs"


def test_an_echo_stands_in_the_first_event_of_each_choice() -> None:
    first = completion(LISTS, token_ids=[11, 12], finish_reason=None)
    last = completion({name: entries[3:] for name, entries in LISTS.items()}, token_ids=[13])
    stream = read(VLLM, {**ECHO, "stream": True}, first, last)
    (choice,) = stream.choices
    assert choice.series("token_logprobs") == [-2.0, -3.0, -3.0]
    assert [sorted(emission.prompt_series) for emission in choice.emissions] == [sorted(LISTS), []]


def test_an_echo_of_several_samples_is_cut_by_the_prompt_that_each_answers() -> None:
    answer = completion(LISTS)
    (first,) = answer["choices"]
    answer["choices"] = [{**first, "index": index} for index in range(4)]
    stream = read(VLLM, {**ECHO, "prompt": [[5, 6], [5, 6, 7]], "n": 2}, answer)
    assert [len(choice.emissions[0].prompt_series["tokens"]) for choice in stream.choices] == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("prompt", "more", "usage", "cut"),
    [
        ("ab", {"prompt_token_ids": [5, 6, 7]}, None, 3),
        ("ab", {}, {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}, 2),
        ("ab", {}, None, 2),
        ("ä", {}, {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}, 1),
        ("ä", {}, None, None),
    ],
)
def test_where_a_text_was_sent_the_answer_tells_the_length(
    prompt: str, more: Any, usage: Any, cut: int | None
) -> None:
    answer = {**completion(LISTS, **more), "usage": usage}
    (emission,) = read(VLLM, {**ECHO, "prompt": prompt}, answer).choices[0].emissions
    assert emission.series.get("tokens") == (None if cut is None else LISTS["tokens"][cut:])
    assert emission.prompt_series.get("tokens") == (None if cut is None else LISTS["tokens"][:cut])


@pytest.mark.parametrize(
    ("dialect", "request_", "cut"),
    [
        (VLLM, {**ECHO, "logprobs": 0}, 2),
        (SGLANG, {**ECHO, "logprobs": 0}, 0),
        (VLLM, {**ECHO, "echo": False}, 0),
        (VLLM, {"prompt": [5, 6], "echo": True}, 0),
    ],
)
def test_without_an_echo_of_logprobs_nothing_is_cut(dialect: Dialect, request_: Any, cut: int) -> None:
    (emission,) = read(dialect, request_, completion(LISTS)).choices[0].emissions
    assert emission.series["tokens"] == LISTS["tokens"][cut:]


def test_an_empty_list_of_top_logprobs_is_none() -> None:
    lists = {**LISTS, "top_logprobs": []}
    request = {"prompt": [5, 6], "logprobs": 0}
    assert "top_logprobs" not in read(SGLANG, request, completion(lists)).choices[0].series_names
    assert "top_logprobs" in read(VLLM, request, completion(lists)).choices[0].series_names


def test_null_is_absent_where_the_table_says_so() -> None:
    answer = completion(token_ids=None, prompt_token_ids=None, matched_stop=None)
    quiet = read(VLLM, {"prompt": [5]}, answer).choices[0].emissions[0]
    assert "output_ids" not in quiet.pointers
    assert "finish" in quiet.pointers
    choice = read(SGLANG, {"prompt": [5]}, answer).choices[0].emissions[0]
    assert choice.pointers["output_ids"] == "/choices/0/token_ids"
    assert choice.output_ids is None


def test_what_stands_beside_the_choices_is_every_choices() -> None:
    stream = recorded("chat_n2_stream")
    assert [choice.emissions[0].prompt_token_ids for choice in stream.choices] == [
        stream.events[0].data["prompt_token_ids"]
    ] * 2
    place = stream.choices[1].emissions[0].at("prompt_token_ids")
    assert (place.event, place.pointer) == (1, "/prompt_token_ids")
    assert {emission.details["request_id"] for emission in stream.emissions()} == {
        stream.events[0].data["id"]
    }


def test_continuous_usage_counts_the_choice_of_the_event() -> None:
    (choice,) = recorded("cmplids_stream_cont_usage").choices
    counts = [emission.counters["completion_tokens"] for emission in choice.emissions]
    assert counts == sorted(counts)
    assert counts[-1] == 8
    assert {emission.counters["prompt_tokens"] for emission in choice.emissions} == {6}


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("chat_tokids_lp", {"logprobs_content"}),
        ("chat_stream_tokids_lp", {"logprobs_content"}),
        ("cmplids_stream_tokids_lp", set(LISTS)),
        ("cmpl_echo_stream", set(LISTS)),
        ("tito_tokens_lp", {"logprobs_content"}),
        ("tito_text_stream_lp", {"logprobs_content"}),
    ],
)
def test_recorded_series_are_in_lockstep_with_their_ids(name: str, series: set[str]) -> None:
    (choice,) = recorded(name).choices
    assert choice.series_names == series
    for emission in choice.emissions:
        for entries in emission.series.values():
            assert len(entries) == len(emission.output_ids or ())


@pytest.mark.parametrize("name", ["chat_tokids_lp", "cmplids_tokids_lp", "tito_tokens_lp"])
def test_recorded_prompt_logprobs_cover_the_prompt(name: str) -> None:
    stream = recorded(name)
    (emission,) = stream.choices[0].emissions
    assert stream.asked.logprob_start == 0
    assert len(emission.prompt_series["prompt_logprobs"]) == (stream.usage or {})["prompt_tokens"]


def test_a_recorded_completion_of_sglang() -> None:
    stream = recorded("c_comp_echo_logprobs", "sglang/0.5.23/A_base")
    (emission,) = stream.choices[0].emissions
    assert emission.series["tokens"] == ["spec", "andlers", " option"]
    assert emission.prompt_series["tokens"] == ["The", " license", " applies", " to"]
    stopped = recorded("c_comp_stop_stream", "sglang/0.5.23/A_base").choices[0]
    assert (stopped.finish and stopped.finish.matched, stopped.output_ids) == (
        "nuil",
        [1262, 1059, 542, 88, 1806],
    )


def part(ids: Sequence[int], content: str, count: int) -> dict[str, Any]:
    return {
        "index": 0,
        "content": content,
        "tokens": ids,
        "stop": False,
        "tokens_predicted": count,
        "tokens_evaluated": 2,
    }


@pytest.mark.parametrize(
    ("stop_type", "word", "finish"),
    [("eos", "", ("stop", None)), ("word", "c", ("stop", "c")), ("limit", "", ("length", None))],
)
def test_a_stream_of_llama_cpp(stop_type: str, word: str, finish: tuple[str, Any]) -> None:
    end = {**part([], "", 2), "stop": True, "stop_type": stop_type, "stopping_word": word}
    request = {"prompt": [5, 6], "stream": True, "return_tokens": True}
    stream = read(LLAMA, request, part([11], "a", 1), part([12], "b", 2), end)
    (choice,) = stream.choices
    assert (choice.output_ids, choice.text, choice.counter("completion_tokens")) == ([11, 12], "ab", 2)
    assert choice.finish is not None
    assert (choice.finish.type, choice.finish.matched) == finish
    assert stream.delivery is Delivery.INCREMENTAL
    assert not [event.schema_errors for event in stream.events if event.schema_errors]


def test_a_batch_of_llama_cpp_is_a_list() -> None:
    whole = {**part([11], "a", 1), "stop": True, "stop_type": "limit", "stopping_word": ""}
    stream = read(LLAMA, {"prompt": [[5], [6]]}, [whole, {**whole, "index": 1}])
    assert [choice.index for choice in stream.choices] == [0, 1]
    assert stream.events[0].schema_errors == ()


def test_which_dialects_talk_in_messages() -> None:
    assert {name for name, dialect in DIALECTS.items() if dialect.chat} == {
        *("sglang-chat", "vllm-chat", "openai-chat"),
        *("openai-responses", "anthropic-messages"),
    }
    stream = read(SGLANG, {"prompt": [5]}, completion())
    assert not is_chat(stream)
    assert policy_of(stream).zero_budget == "refused"


def test_every_form_of_a_request_is_told_in_words() -> None:
    """The page on dialects names each form that a table has."""
    page = (spec_root() / "dialects" / "README.md").read_text("utf-8")
    tables = [yaml.safe_load(path.read_text("utf-8")) for path in (spec_root() / "dialects").glob("*.yaml")]
    forms = {form for table in tables for form in table["request"]}
    assert {form for form in forms if f"`{form}`" not in page} == set()
