"""Typed items: what `/v1/responses` and `/v1/messages` say is what chat says, whole and streamed."""

from __future__ import annotations

import asyncio
import json

import httpx
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenwire.spec_files import load_schema
from tokenwire_reference.core.request import FinishReason
from tokenwire_reference.doors.items.conversation import of_input, of_messages
from tokenwire_reference.doors.json_answer import to_json
from tokenwire_reference.doors.sessions import Latest
from tokenwire_reference.server_args import ServerArgs

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = {"role": "user", "content": "Hello there"}
STOP, SPENT = FinishReason("stop", matched=2), FinishReason("length")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
NAMED = {"name": "get_weather", "description": None}
BODIES = {
    CHAT: {"messages": [HELLO], "tools": [{"type": "function", "function": {**NAMED, "parameters": SCHEMA}}]},
    RESPONSES: {"input": [HELLO], "tools": [{"type": "function", **NAMED, "parameters": SCHEMA}]},
    MESSAGES: {"messages": [HELLO], "tools": [{**NAMED, "input_schema": SCHEMA}], "max_tokens": 400},
}
PIECES = ["Hi é 😀. ", "<think>\nHm.\n</think>\n\n", f"{CALL}\n", "a < b ", "<tool_cal"]


def named_events(response):
    """The data of the events of a stream, each held to have its type for a name."""
    found = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def fits(schema, *values):
    for value in values:
        jsonschema_rs.validator_for(load_schema(schema)).validate(value)


def of_chat(answer):
    message = answer["choices"][0]["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return message["reasoning_content"] or "", message["content"], calls


def of_items(items):
    """Reasoning, content and arguments of the items of a response."""
    texts = {"reasoning": "", "message": ""}
    calls = []
    for item in items:
        if item["type"] == "function_call":
            calls.append(item["arguments"])
        else:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
    return texts["reasoning"], texts["message"], calls


def of_deltas(events):
    """The same, joined from the deltas of either stream."""
    texts, calls = {"reasoning": "", "content": ""}, {}
    for event in events:
        kind, delta = event["type"], event.get("delta")
        place = event.get("output_index", event.get("index"))
        opened = event.get("item") or event.get("content_block") or {}
        if opened.get("type") in ("function_call", "tool_use") and not kind.endswith(("done", "stop")):
            calls[place] = ""
        if isinstance(delta, dict) and "type" in delta:
            texts["content"] += delta.get("text", "")
            texts["reasoning"] += delta.get("thinking", "")
            calls[place] = (
                calls.get(place, "") + delta["partial_json"] if "partial_json" in delta else calls.get(place)
            )
        elif isinstance(delta, str) and "arguments" in kind:
            calls[place] += delta
        elif isinstance(delta, str):
            texts["reasoning" if "reasoning" in kind else "content"] += delta
    return texts["reasoning"], texts["content"], [text for text in calls.values() if text is not None]


@pytest.fixture
def speak(answers, call, scripted_engine, tiny_tokenizer):
    """What an endpoint answers with where the model says a text, so many ids in a step."""

    def answer_of(text, path, *, step=1, finish=STOP, parsers=PARSERS, **fields):
        ids = [*tiny_tokenizer.encode(text, add_special_tokens=False), *([2] if finish.matched == 2 else [])]
        steps = [ids[start : start + step] for start in range(0, len(ids), step)]
        return answers(
            scripted_engine(steps, finish=finish), call(path, {**BODIES[path], **fields}), **parsers
        )[0]

    return answer_of


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(
    text=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join),
    step=st.sampled_from([1, 3, 90]),
)
def test_both_endpoints_say_what_chat_says(speak, text, step):
    due = of_chat(speak(text, CHAT).json())
    response, message = speak(text, RESPONSES).json(), speak(text, MESSAGES).json()
    fits("responses-response", response)
    fits("messages-response", message)
    assert of_items(response["output"]) == due
    calls = [block["input"] for block in message["content"] if block["type"] == "tool_use"]
    assert calls == [json.loads(arguments) for arguments in due[2]]
    events = named_events(speak(text, RESPONSES, step=step, stream=True))
    fits("responses-event", *events)
    assert of_deltas(events) == due
    assert of_items(events[-1]["response"]["output"]) == due
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    blocks = named_events(speak(text, MESSAGES, step=step, stream=True))
    fits("messages-event", *blocks)
    assert of_deltas(blocks) == due


@pytest.mark.parametrize("step", [1, 3, 90])
def test_a_stream_signs_its_thinking_as_the_whole_message_does(speak, step):
    text = "<think>\nHm.\n</think>\n\nYes."
    [thinking, _] = speak(text, MESSAGES).json()["content"]
    events = named_events(speak(text, MESSAGES, step=step, stream=True))
    of_block = [event for event in events if event.get("index") == 0]
    assert of_block[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert of_block[-2]["delta"] == {"type": "signature_delta", "signature": thinking["signature"]}
    assert of_block[-1]["type"] == "content_block_stop"
    assert thinking["signature"]


def test_a_message_counts_its_thinking_as_chat_does(speak):
    text = "<think>\nHm.\n</think>\n\nYes."
    due = speak(text, CHAT).json()["usage"]["completion_tokens_details"]["reasoning_tokens"]
    whole = speak(text, MESSAGES).json()["usage"]
    last = next(
        event
        for event in named_events(speak(text, MESSAGES, stream=True))
        if "delta" in event and "usage" in event
    )
    for usage in (whole, last["usage"]):
        assert usage["output_tokens_details"] == {"thinking_tokens": due}
        assert 0 < due < usage["output_tokens"]
    assert "output_tokens_details" not in speak("Yes.", MESSAGES, parsers={}, tools=None).json()["usage"]


SCORED = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": None}


@pytest.mark.parametrize("step", [1, 3, 90])
def test_a_text_has_the_logprobs_that_chat_has_of_it_wherever_they_stand(speak, step):
    text = "Hi é 😀."
    chat = speak(text, CHAT, logprobs=True, top_logprobs=2, tools=None, parsers={}).json()
    due = chat["choices"][0]["logprobs"]["content"]
    assert len(due) == chat["usage"]["completion_tokens"] > len("Hi .")
    [item] = speak(text, RESPONSES, **SCORED, parsers={}).json()["output"]
    assert item["content"][0]["logprobs"] == due
    events = named_events(speak(text, RESPONSES, step=step, stream=True, **SCORED, parsers={}))
    fits("responses-event", *events)
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for entries in deltas for entry in entries] == due
    done = {event["type"]: event for event in events}
    assert done["response.output_text.done"]["logprobs"] == due
    assert done["response.content_part.added"]["part"]["logprobs"] == []
    assert done["response.content_part.done"]["part"]["logprobs"] == due
    assert done["response.completed"]["response"]["output"][0]["content"][0]["logprobs"] == due


def test_a_budget_that_ends_an_answer_is_told_by_the_last_event_and_the_last_item(speak):
    for answer in (
        speak("Hello there", RESPONSES, finish=SPENT),
        speak("Hello there", RESPONSES, finish=SPENT, stream=True),
    ):
        streamed = answer.headers["content-type"].startswith("text/event-stream")
        last = (
            named_events(answer)[-1]
            if streamed
            else {"response": answer.json(), "type": "response.incomplete"}
        )
        response = last["response"]
        assert last["type"] == "response.incomplete"
        assert (response["status"], response["output"][-1]["status"]) == ("incomplete", "incomplete")
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_message_names_the_stop_sequence_that_ended_it(speak):
    matched = FinishReason("stop", matched="lo")
    body = {"stop_sequences": ["lo"]}
    whole = speak("Hel", MESSAGES, finish=matched, **body).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "lo")
    *_, delta, _ = named_events(speak("Hel", MESSAGES, finish=matched, stream=True, **body))
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "lo"}


def test_a_failure_on_the_way_ends_either_stream(speak):
    failed = FinishReason("abort", message="out of memory", status_code=500)
    *_, response = named_events(speak("Hello there", RESPONSES, step=1, finish=failed, stream=True))
    assert response["type"] == "response.failed"
    assert response["response"]["error"]["message"] == "out of memory"
    *_, message = named_events(speak("Hello there", MESSAGES, step=1, finish=failed, stream=True))
    assert message == {"type": "error", "error": {"type": "api_error", "message": "out of memory"}}


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"previous_response_id": "resp_of_nobody"}, "is not stored"),
        (RESPONSES, {"tool_choice": "required", "tools": []}, "tool_choice is 'required'"),
        (MESSAGES, {"tool_choice": {"type": "any"}, "tools": []}, "tool_choice is 'required'"),
        (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
        (RESPONSES, {"top_logprobs": 2}, "include asks for no logprobs"),
        (RESPONSES, SCORED, "a parser may remove tokens"),
        (MESSAGES, {"max_tokens": None}, "max_tokens"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0]"),
    ],
)
def test_what_cannot_be_read_is_refused_in_the_words_of_the_endpoint(speak, path, fields, words):
    refused = speak("Hello", path, **fields)
    assert refused.status_code in (400, 404)
    assert words in refused.json()["error"]["message"]
    fits("error", refused.json())


def test_items_become_the_messages_that_chat_has():
    items = [
        {"role": "developer", "content": "Be brief."},
        HELLO,
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Sun."},
    ]
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    due = [
        {"role": "system", "content": "Be brief."},
        HELLO,
        {"role": "assistant", "content": "I look.", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "Sun."},
    ]
    assert of_input(items) == due
    turns = [
        HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "Sun."}]},
    ]
    thought = [{**told, "reasoning_content": "Hm."} if "tool_calls" in told else told for told in due]
    assert of_messages(turns, "Be brief.") == thought


def test_the_oldest_conversations_are_forgotten():
    stored = Latest[str, list](100, lambda conversation: len(to_json(conversation)))
    for number in range(3):
        stored.put(f"resp_{number}", [HELLO])
    assert stored.get("resp_0") is None
    assert stored.get("resp_2") == [HELLO]
    stored.put("resp_large", [{"role": "user", "content": "a" * 200}])
    assert stored.get("resp_large") is None
    assert stored.get("resp_2") == [HELLO]


@pytest.fixture
def live(scripted_engine, serving, tiny_tokenizer):
    """Run requests one after the other, on a server whose engine follows a script."""

    def run(talk):
        async def served():
            engine = scripted_engine([[token] for token in (30, 31, 32)], finish=SPENT)
            async with serving(engine, tiny_tokenizer, ServerArgs(model_path="scripted")) as app:
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://reference") as client:
                    return await talk(client, engine)

        return asyncio.run(served())

    return run


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_is_retrieved_as_it_was_answered_until_it_is_deleted(live, stream):
    async def talk(client, _engine):
        asked = {"input": [HELLO], "max_output_tokens": 3, "stream": stream}
        answer = await client.post(RESPONSES, json=asked)
        given = named_events(answer)[-1]["response"] if stream else answer.json()
        place = f"{RESPONSES}/{given['id']}"
        got = await client.get(place)
        cancelled = await client.post(f"{place}/cancel")
        deleted = await client.delete(place)
        after = await client.get(place)
        again = {**asked, "stream": False, "previous_response_id": given["id"]}
        continued = await client.post(RESPONSES, json=again)
        unkept = (await client.post(RESPONSES, json={**asked, "stream": False, "store": False})).json()
        unstored = await client.get(f"{RESPONSES}/{unkept['id']}")
        return given, got, cancelled, deleted, after, continued, unstored

    given, got, cancelled, deleted, after, continued, unstored = live(talk)
    assert given["status"] == "incomplete"
    assert got.json() == cancelled.json() == given
    assert deleted.json() == {"id": given["id"], "object": "response", "deleted": True}
    assert (after.status_code, continued.status_code, unstored.status_code) == (404, 404, 404)
    fits("error", after.json())


async def _last(client, place):
    """The response at a place, once it has ended."""
    while (found := (await client.get(place)).json())["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0)
    return found


def test_a_response_in_the_background_ends_as_in_the_foreground(live):
    async def talk(client, _engine):
        asked = {"input": [HELLO], "max_output_tokens": 3}
        begun = (await client.post(RESPONSES, json={**asked, "background": True})).json()
        ended = await _last(client, f"{RESPONSES}/{begun['id']}")
        more = {"input": [HELLO], "max_output_tokens": 3, "previous_response_id": begun["id"]}
        return (
            begun,
            ended,
            (await client.post(RESPONSES, json=asked)).json(),
            (await client.post(RESPONSES, json=more)).json(),
        )

    begun, ended, beside, continued = live(talk)
    fits("responses-response", begun, ended)
    assert (begun["status"], begun["output"], begun["usage"]) == ("queued", [], None)
    assert (begun["id"], ended["id"]) == (ended["id"], begun["id"])
    assert (ended["status"], of_items(ended["output"])) == ("incomplete", of_items(beside["output"]))
    assert ended["usage"] == beside["usage"]
    assert continued["usage"]["input_tokens"] > ended["usage"]["input_tokens"] + 3


def test_a_cancelled_response_ends_and_stays_so(live):
    async def talk(client, engine):
        engine.pause("keep")
        asked = {"input": [HELLO], "max_output_tokens": 3, "background": True}
        begun = (await client.post(RESPONSES, json=asked)).json()
        place = f"{RESPONSES}/{begun['id']}"
        while not engine.live:
            await asyncio.sleep(0)
        cancelled = (await client.post(f"{place}/cancel")).json()
        while not engine.aborted:
            await asyncio.sleep(0)
        engine.continue_generation()
        beside = await client.post(RESPONSES, json={"input": [HELLO], "max_output_tokens": 3})
        after, again = await client.get(place), await client.post(f"{place}/cancel")
        return begun, cancelled, beside, after.json(), again.json()

    begun, cancelled, beside, after, again = live(talk)
    assert cancelled == {**begun, "status": "cancelled"}
    assert beside.json()["status"] == "incomplete"
    assert after == again == cancelled


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"store": False}, "nobody could retrieve"), ({"stream": True}, "not supported for a stream")],
)
def test_a_background_that_nobody_can_retrieve_is_refused(speak, fields, words):
    refused = speak("Hello", RESPONSES, background=True, **fields)
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]


def test_instructions_of_a_previous_response_are_not_continued(live):
    async def talk(client, _engine):
        asked = {"input": [HELLO], "max_output_tokens": 3}
        first = [
            (await client.post(RESPONSES, json={**asked, **more})).json()
            for more in ({}, {"instructions": "Be brief, and name your sources."})
        ]
        return [
            (await client.post(RESPONSES, json={**asked, "previous_response_id": answer["id"]})).json()[
                "usage"
            ]
            for answer in first
        ]

    plain, instructed = live(talk)
    assert plain["input_tokens"] == instructed["input_tokens"]
