"""Tool calls and reasoning in chat answers: a stream joins to the whole answer, in both families' shapes."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from tokenwire.spec_files import load_schema
from tokenwire_reference.core.request import FinishReason

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
STOP = FinishReason("stop", matched=2)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
PARIS = '{"city": "Paris", "days": 2}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
THOUGHT = "<think>\nLet me see: 1 < 2.\n</think>\n\n"
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
SHAPES = {
    "sglang": ("chat-response", "chat-chunk", "reasoning_content"),
    "vllm": ("vllm-chat-response", "vllm-chat-chunk", "reasoning"),
}


def ask(**fields):
    return {"messages": HELLO, "tools": [WEATHER], **fields}


def fits(schema, value):
    jsonschema_rs.validator_for(load_schema(schema)).validate(value)


def partition(message, reasoning):
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()
    ]
    return message.get(reasoning) or "", message["content"] or "", calls


def joined(chunks, index, reasoning):
    """The partition that the chunks of a choice join to, and why it ended."""
    texts, calls, finish = {"content": "", reasoning: ""}, [], None
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        delta, finish = choice["delta"], choice["finish_reason"] or finish
        for channel in texts:
            texts[channel] += delta.get(channel) or ""
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(calls):
                assert call["id"]
                assert call["type"] == "function"
                calls.append([call["function"]["name"], ""])
            else:
                assert (call.get("id"), call["function"].get("name")) == (None, None)
            calls[call["index"]][1] += call["function"]["arguments"]
    return (texts[reasoning], texts["content"], [tuple(call) for call in calls]), finish


@pytest.fixture
def spoken(answers, call, scripted_engine, tiny_tokenizer, read_events):
    """The whole answer and the chunks of a stream that a text becomes, one step at a time."""

    def ask_both(text, *, dialect="sglang", finish=STOP, step=1, fields=None, fault=None, **flags):
        ids = [*tiny_tokenizer.encode(text, add_special_tokens=False), *([2] if finish.matched == 2 else [])]
        steps = [ids[start : start + step] for start in range(0, len(ids), step)]
        asked, flags = ask(**(fields or {})), {**PARSERS, "api_dialect": dialect, **flags}
        headers = {} if fault is None else {"x-tokenwire-fault": fault}
        streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
        whole, stream = (
            answers(
                scripted_engine(steps, finish=finish),
                call(PATH, body, headers=headers),
                enable_faults=True,
                **flags,
            )[0]
            for body in (asked, streamed)
        )
        return whole.json(), read_events(stream)

    return ask_both


@pytest.fixture
def speak(spoken):
    """The same, after both were found to agree."""

    def both(text, *, dialect="sglang", **options):
        whole, chunks = spoken(text, dialect=dialect, **options)
        schema, chunk_schema, reasoning = SHAPES[dialect]
        fits(schema, whole)
        for chunk in chunks:
            fits(chunk_schema, chunk)
        for choice in whole["choices"]:
            found = partition(choice["message"], reasoning), choice["finish_reason"]
            assert joined(chunks, choice["index"], reasoning) == found
        details = (
            whole["usage"]["completion_tokens_details"],
            chunks[-1]["usage"].get("completion_tokens_details"),
        )
        assert details[0] == details[1]
        return whole, chunks

    return both


@pytest.mark.parametrize("dialect", SHAPES)
@pytest.mark.parametrize("step", [1, 4, 100])
def test_reasoning_content_and_calls_are_the_same_whole_and_streamed(speak, dialect, step):
    whole, _ = speak(f"{THOUGHT}I will look.\n{CALL}\n{CALL}", dialect=dialect, step=step)
    (choice,) = whole["choices"]
    reasoning = SHAPES[dialect][2]
    calls = [("get_weather", PARIS)] * 2
    assert partition(choice["message"], reasoning) == ("Let me see: 1 < 2.", "I will look.", calls)
    assert choice["finish_reason"] == "tool_calls"
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 14


def test_the_shapes_are_those_of_the_families(speak):
    whole, chunks = speak(f"{THOUGHT}Looking.{CALL}", step=100)
    message = whole["choices"][0]["message"]
    call = message["tool_calls"][0]
    assert call == {
        "id": call["id"],
        "index": 0,
        "type": "function",
        "function": {"name": "get_weather", "arguments": PARIS},
    }
    assert call["id"].startswith("call_")
    assert whole["choices"][0]["matched_stop"] == 2
    assert whole["usage"]["reasoning_tokens"] == 14
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:4]][:2] == [
        {"reasoning_content": "Let me see: 1 < 2."},
        {"reasoning_content": None, "content": "Looking."},
    ]
    whole, chunks = speak(f"{THOUGHT}Looking.{CALL}", step=100, dialect="vllm")
    message = whole["choices"][0]["message"]
    call = message["tool_calls"][0]
    assert call == {
        "id": call["id"],
        "type": "function",
        "function": {"name": "get_weather", "arguments": PARIS},
    }
    assert call["id"].startswith("chatcmpl-tool-")
    delta = chunks[1]["choices"][0]["delta"]
    assert [*delta] == ["reasoning", "content", "tool_calls"]
    whole, _ = speak(CALL, dialect="vllm")
    assert whole["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize("dialect", SHAPES)
def test_no_id_and_no_logprob_waits_for_text_that_is_held_back(speak, dialect):
    fields = {"logprobs": True} | (
        {"return_token_ids": True} if dialect == "vllm" else {"return_output_ids_in_sglext": True}
    )
    whole, chunks = speak(f"{THOUGHT}{CALL}", dialect=dialect, fields=fields)
    entries = whole["choices"][0]["logprobs"]["content"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    streamed = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert streamed == entries
    assert len(entries) == whole["usage"]["completion_tokens"]
    counts = [len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"]]
    assert set(counts) == {1}, "each step shows its own"
    if dialect == "vllm":
        ids = [i for choice in choices for i in choice.get("token_ids") or ()]
        assert ids == whole["choices"][0]["token_ids"]


@pytest.mark.parametrize("dialect", SHAPES)
def test_a_cut_call_is_not_closed_and_length_is_not_hidden(speak, dialect):
    length = FinishReason("length", length=30)
    whole, _ = speak(CALL.partition("Paris")[0] + "Pa", finish=length, dialect=dialect)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Pa'
    whole, _ = speak(CALL, finish=length, dialect=dialect)
    assert whole["choices"][0]["finish_reason"] == "length"
    stopped = FinishReason("stop", matched="xx")
    whole, _ = speak(
        CALL.partition("Paris")[0] + "Paxx", finish=stopped, step=100, fields={"stop": "xx"}, dialect=dialect
    )
    assert whole["choices"][0]["finish_reason"] == "stop"


def test_calls_are_sought_only_where_tools_are_offered(speak):
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        whole, _ = speak(CALL, fields=fields)
        assert partition(whole["choices"][0]["message"], "reasoning_content") == ("", CALL, [])
    whole, _ = speak(f"{THOUGHT}4", fields={"separate_reasoning": False})
    assert whole["choices"][0]["message"]["content"] == f"{THOUGHT}4"
    whole, _ = speak(f"{THOUGHT}4", fields={"include_reasoning": False}, dialect="vllm")
    assert partition(whole["choices"][0]["message"], "reasoning") == ("", "4", [])
    whole, _ = speak(
        "So.</think>4",
        fields={"chat_template_kwargs": {"enable_thinking": True}},
        reasoning_parser="deepseek-r1",
    )
    assert partition(whole["choices"][0]["message"], "reasoning_content") == ("So.", "4", [])


@pytest.mark.parametrize("dialect", SHAPES)
def test_samples_share_no_state(speak, dialect):
    whole, _ = speak(f"{THOUGHT}{CALL}", fields={"n": 3}, dialect=dialect)
    assert len({json.dumps(partition(c["message"], SHAPES[dialect][2])) for c in whole["choices"]}) == 1
    ids = [call["id"] for choice in whole["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 3


def test_tools_reach_the_template_of_the_model(answer, scripted_engine, tiny_tokenizer):
    from tokenwire_reference.extras.builtin import byte_level_tokenizer

    called = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": PARIS}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "content": "21"},
    ]
    asked = ask(messages=turns, return_prompt_token_ids=True)
    tokenizer = byte_level_tokenizer()
    (response,) = (answer(scripted_engine([[2]], finish=STOP), PATH, asked, tokenizer=tokenizer, **PARSERS),)
    prompt = tokenizer.decode(response.json()["choices"][0]["prompt_token_ids"])
    assert json.dumps(WEATHER) in prompt
    assert f"assistant\n{CALL}<|im_end|>" in prompt


@pytest.mark.parametrize("dialect", SHAPES)
@pytest.mark.parametrize(
    ("fields", "flags", "reason"),
    [
        ({}, {"tool_call_parser": None}, "--tool-call-parser"),
        ({"tool_choice": "required", "tools": None}, {}, "tool_choice is 'required'"),
        ({"tool_choice": {"type": "function", "function": {"name": "ping"}}}, {}, "tool_choice"),
        ({"tool_choice": "required"}, {"tool_call_parser": "llama3"}, "in the form of hermes"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            {"tool_call_parser": "pythonic"},
            "in the form of hermes",
        ),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, {}, "cannot be combined"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 129}, {}, "more than 128 items"),
        ({"tools": [{"type": "function", "function": {"name": "f" * 257}}]}, {}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, {}, "tools[0]"),
        ({"messages": [{"role": "user", "content": "x" * 40_000}]}, {}, "32768 at most"),
        ({"chat_template_kwargs": {"chat_template": "{{ x }}"}}, {}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, {}, "chat_template_kwargs.enable_thinking"),
        ({"reasoning_effort": "enormous"}, {}, "send none, minimal, low"),
    ],
)
def test_what_cannot_be_kept_is_refused(answer, scripted_engine, dialect, fields, flags, reason):  # noqa: PLR0917
    response = answer(
        scripted_engine([[2]]), PATH, ask(**fields), **{**PARSERS, "api_dialect": dialect, **flags}
    )
    assert response.status_code == 400
    error = response.json()
    message = error.get("message") or error["error"]["message"]
    assert reason in message


@pytest.mark.parametrize(
    "tools", [{"type": 5}, {"properties": []}, {"properties": {"city": 5, "days": {"type": [1]}}}, None]
)
def test_a_schema_that_says_nothing_harms_nobody(speak, tools):
    odd = {"type": "function", "function": {"name": "get_weather", "parameters": tools}}
    whole, _ = speak(CALL, fields={"tools": [odd]}, tool_call_parser="qwen3_xml")
    assert whole["choices"][0]["finish_reason"] == "stop"


LENGTH = FinishReason("length", length=40)
TWO = f"{THOUGHT}I will look.\n{CALL}\n{CALL}"
SAID = ("Let me see: 1 < 2.", "I will look.", [("get_weather", PARIS)] * 2)


@pytest.mark.parametrize(
    ("fault", "text", "streamed", "options"),
    [
        ("text-before-a-call-is-lost", TWO, (SAID[0], "", SAID[2]), {"step": 100}),
        ("text-that-may-begin-a-marker-is-lost", "a <too", ("", "a ", []), {"step": 2}),
        ("marker-leaks-between-calls", TWO, (SAID[0], "I will look.\n</tool_call>\n", SAID[2]), {}),
        ("line-break-behind-a-call-is-content", TWO, (SAID[0], "I will look.\n\n", SAID[2]), {}),
        ("reasoning-never-ends", TWO, (f"{TWO[8:]}", "", []), {}),
        (
            "call-within-reasoning-is-made",
            f"<think>So {CALL} now</think>No",
            ("So", "now</think>No", SAID[2][:1]),
            {},
        ),
        (
            "unmatched-stop-moves-text",
            f"Look.{CALL}",
            ("", 'Look.{"city', [("get_weather", PARIS[6:])]),
            {"fields": {"stop": "1234567"}},
        ),
        ("content-comes-out-of-order", "Look.", ("", "ookL.", []), {}),
        ("arguments-lose-their-end", CALL, ("", "", [("get_weather", '{"city": "Paris", "days": 2')]), {}),
        (
            "arguments-lose-their-end",
            CALL,
            ("", "", [("get_weather", '{"city": "Paris", "days": ')]),
            {"step": 100},
        ),
        ("end-of-reasoning-is-lost", f"{THOUGHT}4", ("Let me see: 1 < 2", "4", []), {}),
        (
            "cut-call-is-closed",
            CALL.partition("ris")[0],
            ("", "", [("get_weather", '{"city": "Pa"}')]),
            {"finish": LENGTH},
        ),
        (
            "empty-arguments-are-no-json",
            f'<tool_call>{{"name": "ping", "arguments": {{}}}}</tool_call>{CALL}',
            ("", "", [("ping", ""), *SAID[2][:1]]),
            {},
        ),
        (
            "samples-share-a-parser",
            f"{THOUGHT}4",
            ("", "Let me see: 1 < 2.4", []),
            {"fields": {"n": 2}, "step": 100},
        ),
    ],
)
def test_what_faults_do_to_the_partition_of_a_stream(spoken, fault, text, streamed, options):
    _, chunks = spoken(text, fault=fault, **options)
    index = options.get("fields", {}).get("n", 1) - 1
    assert joined(chunks, index, "reasoning_content")[0] == streamed


def test_what_faults_do_to_the_rest(spoken):
    whole, chunks = spoken(CALL, fault="tool-calls-hide-length", finish=LENGTH)
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert joined(chunks, 0, "reasoning_content")[1] == "tool_calls"
    whole, _ = spoken(CALL, fault="text-vanishes-without-tools", fields={"tool_choice": "none"})
    assert partition(whole["choices"][0]["message"], "reasoning_content") == ("", "", [])
    _, chunks = spoken(
        CALL, fault="ids-of-markers-are-lost", dialect="vllm", fields={"return_token_ids": True}
    )
    ids = [i for chunk in chunks for choice in chunk["choices"] for i in choice.get("token_ids") or ()]
    assert 0 < len(ids) < chunks[-1]["usage"]["completion_tokens"]
    whole, chunks = spoken(f"{THOUGHT}4", fault="reasoning-tokens-are-zero")
    assert (whole["usage"]["reasoning_tokens"], chunks[-1]["usage"]["reasoning_tokens"]) == (0, 0)
    whole, chunks = spoken(f"{THOUGHT}4", fault="reasoning-tokens-lag-in-streams")
    assert (whole["usage"]["reasoning_tokens"], chunks[-1]["usage"]["reasoning_tokens"]) == (14, 13)


def test_what_faults_do_to_the_pieces_of_calls(spoken):
    def pieces(fault):
        _, chunks = spoken(f"{CALL}{CALL}", fault=fault, step=4)
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        found = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        return [(call["index"], call["id"], call["function"]["name"]) for call in found]

    ids = [id_ for _, id_, _ in pieces("call-ids-change")]
    assert ids == [f"call_{count}" for count in range(1, len(ids) + 1)]
    assert [id_ for _, id_, _ in pieces("call-ids-repeat") if id_] == ["call_0"] * 2
    assert [piece[2] for piece in pieces("call-opens-without-a-name")][:2] == [None, "get_weather"]
    assert {index for index, _, _ in pieces("calls-share-an-index")} == {0}
    assert {index for index, _, _ in pieces("call-indexes-skip")} == {0, 2}
