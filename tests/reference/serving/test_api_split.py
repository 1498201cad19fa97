"""The split pipeline of chat, and batches of conversations: three steps give the answer of chat."""

from __future__ import annotations

import pytest

from tokenwire_reference.core.request import FinishReason

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
TEXT = (
    "<think>\nLet me see: 1 < 2.\n</think>\n\nHere it is, 語.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
)
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ASKED = {
    "messages": HELLO,
    "tools": [WEATHER],
    "return_token_ids": True,
    "logprobs": True,
    "top_logprobs": 2,
    "max_tokens": 200,
}
END = FinishReason("stop", matched=2)


@pytest.fixture
def post(answer, scripted_engine, tiny_tokenizer):
    ids = [*tiny_tokenizer.encode(TEXT, add_special_tokens=False), 2]
    flags = {"api_dialect": "vllm", "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}

    def send(path, body, *, step=5, finish=END):
        steps = [ids[start : start + step] for start in range(0, len(ids), step)]
        return answer(scripted_engine(steps, finish=finish), path, body, **flags)

    return send


def plain(choice):
    """A choice without the ids of its calls, which are new in each answer."""
    message = dict(choice["message"])
    message["tool_calls"] = [call["function"] for call in message.get("tool_calls") or ()]
    return {**choice, "message": message}


def test_three_steps_give_the_answer_of_chat(post):
    chat = post(CHAT, ASKED).json()
    rendered = post(f"{CHAT}/render", ASKED).json()
    assert rendered["token_ids"] == chat["prompt_token_ids"]
    generated = post("/inference/v1/generate", rendered).json()
    body = {"chat_request": ASKED, "generate_response": generated, "prompt_token_ids": rendered["token_ids"]}
    derendered = post(f"{CHAT}/derender", body).json()
    assert derendered["usage"] == chat["usage"]
    assert [*map(plain, derendered["choices"])] == [*map(plain, chat["choices"])]
    (choice,) = chat["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning"] == "Let me see: 1 < 2."


def test_the_message_comes_with_the_ids_where_the_mode_says_so(post):
    rendered = post(f"{CHAT}/render", ASKED).json()
    (choice,) = post("/inference/v1/generate", {**rendered, "output_mode": "derender"}).json()["choices"]
    (of_chat,) = post(CHAT, ASKED).json()["choices"]
    assert plain({name: choice[name] for name in of_chat}) == plain(of_chat)


@pytest.mark.parametrize("step", [1, 3, 50])
def test_derendered_events_are_the_chunks_of_chat(post, read_events, step):
    streamed = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    chunks = read_events(post(CHAT, streamed, step=step))
    rendered = post(f"{CHAT}/render", streamed).json()
    made, state = [], None
    for event in read_events(post("/inference/v1/generate", rendered, step=step)):
        body = {"stream": True, "chat_request": streamed, "generate_chunk": event, "stream_state": state}
        answered = post(f"{CHAT}/derender", body).json()
        made.append(answered["chunk"])
        state = answered["stream_state"]
    assert joined(made) == joined(chunks)
    assert made[-1]["usage"] == chunks[-1]["usage"]


def joined(chunks):
    """The joined deltas, logprobs and ids of a stream of one choice, and its end."""
    texts, entries, ids = {"reasoning": "", "content": "", "arguments": ""}, [], []
    finish = None
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        for name in ("reasoning", "content"):
            texts[name] += delta.get(name) or ""
        for call in delta.get("tool_calls") or ():
            texts["arguments"] += call["function"]["arguments"]
        entries += (choice["logprobs"] or {}).get("content") or []
        ids += choice.get("token_ids") or []
        finish = choice["finish_reason"] or finish
    return texts, entries, ids, finish


CHOICE = {"index": 0, "token_ids": [40, 41], "finish_reason": "stop"}
CUT_STATE = {"output_token_ids": [40, 41], "output_chunk_lens": [1]}
BAD = {
    "no answer": {},
    "no request": {"chat_request": None, "generate_response": {"choices": [CHOICE]}},
    "a negative id": {"generate_response": {"choices": [{**CHOICE, "token_ids": [-1]}]}},
    "an unknown id": {"generate_response": {"choices": [{**CHOICE, "token_ids": [10**6]}]}},
    "an id that is no integer": {"generate_response": {"choices": [{**CHOICE, "token_ids": [6.0]}]}},
    "a choice too many": {"generate_response": {"choices": [CHOICE, {**CHOICE, "index": 1}]}},
    "a choice too few": {"generate_response": {"choices": []}},
    "no end": {"generate_response": {"choices": [{**CHOICE, "finish_reason": None}]}},
    "an unknown end": {"generate_response": {"choices": [{**CHOICE, "finish_reason": "odd"}]}},
    "logprobs of other ids": {
        "generate_response": {
            "choices": [{**CHOICE, "logprobs": {"content": [{"token_id": 40, "logprob": -1.0}]}}]
        }
    },
    "another count": {"generate_response": {"choices": [CHOICE]}, "prompt_tokens": 1},
    "more than the context": {"generate_response": {"choices": [{**CHOICE, "token_ids": [40] * 100_000}]}},
    "two choices in one event": {
        "stream": True,
        "chat_request": {**ASKED, "n": 2},
        "generate_chunk": {"choices": [CHOICE, {**CHOICE, "index": 1}]},
    },
    "a stop string in a stream": {
        "stream": True,
        "chat_request": {**ASKED, "stop": "x"},
        "generate_chunk": {"choices": [CHOICE]},
    },
    "lengths that do not fit": {
        "stream": True,
        "generate_chunk": {"choices": [CHOICE]},
        "stream_state": CUT_STATE,
    },
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_what_no_server_generated_is_refused(post, body):
    assert post(f"{CHAT}/derender", {"chat_request": ASKED, **body}).status_code == 400


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": {"type": "json_object"}},
        {"thinking_token_budget": 3},
        {"tool_choice": "required"},
    ],
    ids=str,
)
def test_what_a_rendered_request_cannot_carry_is_refused(post, field):
    refused = post(f"{CHAT}/render", {**ASKED, **field})
    assert refused.status_code == 400
    assert next(iter(field)) in refused.json()["error"]["message"]


def test_a_message_needs_the_context_of_its_parsers_and_a_whole_answer(post):
    rendered = post(f"{CHAT}/render", ASKED).json() | {"output_mode": "derender"}
    for wrong in ({"parse_context": None}, {"stream": True}):
        assert post("/inference/v1/generate", rendered | wrong).status_code == 400


def test_each_conversation_of_a_batch_is_answered_at_its_index(post):
    asked = {name: value for name, value in ASKED.items() if name != "tools"}
    (alone,) = post(CHAT, asked).json()["choices"]
    together = post(f"{CHAT}/batch", {**asked, "messages": [HELLO, HELLO]}).json()
    assert [*map(plain, together["choices"])] == [{**plain(alone), "index": index} for index in range(2)]


@pytest.mark.parametrize(
    "field",
    [{"messages": HELLO[0]}, {"messages": []}, {"messages": [HELLO, []]}, {"stream": True}, {"n": 2}],
    ids=str,
)
def test_what_no_batch_is_is_refused(post, field):
    asked = {name: value for name, value in ASKED.items() if name != "tools"}
    assert post(f"{CHAT}/batch", {**asked, "messages": [HELLO], **field}).status_code == 400
    assert post(f"{CHAT}/batch", {**ASKED, "messages": [HELLO]}).status_code == 400


COMPLETIONS = "/v1/completions"


def test_three_steps_give_the_answer_of_completions(post):
    asked = {"prompt": "Hello there", "return_token_ids": True, "logprobs": 2, "max_tokens": 200}
    whole = post(COMPLETIONS, asked).json()
    (rendered,) = post(f"{COMPLETIONS}/render", asked).json()
    assert rendered["token_ids"] == whole["choices"][0]["prompt_token_ids"]
    generated = post("/inference/v1/generate", rendered).json()
    body = {"completion_request": asked, "generate_responses": [generated]}
    derendered = post(f"{COMPLETIONS}/derender", body).json()
    assert derendered["choices"] == whole["choices"]
    assert derendered["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"completion_request": None}, "completion_request"),
        ({"generate_responses": []}, "generate_responses"),
        (
            {"generate_responses": [{"choices": [{"index": 0, "token_ids": [-1], "finish_reason": "stop"}]}]},
            "-1",
        ),
        ({"generate_responses": [{"choices": []}]}, "0 of 1 choices"),
        ({"generate_responses": [{"choices": [{"index": 0, "token_ids": [5]}]}]}, "finish_reason"),
    ],
)
def test_impossible_answers_to_completions_are_refused(changed, words, post):
    choice = {"index": 0, "token_ids": [5], "finish_reason": "stop"}
    body = {"completion_request": {"prompt": "Hi"}, "generate_responses": [{"choices": [choice]}], **changed}
    refused = post(f"{COMPLETIONS}/derender", body)
    assert (refused.status_code, words in refused.text) == (400, True)


def test_an_echo_cannot_be_rendered(post):
    assert post(f"{COMPLETIONS}/render", {"prompt": "Hi", "echo": True}).status_code == 400
