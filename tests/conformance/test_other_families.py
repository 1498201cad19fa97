"""Servers of other families: each is correct in its own way, and the suite says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from openai_server import Habits, OpenAIServer

from tokenwire.ask import Ask
from tokenwire.asking.flags import flagged
from tokenwire.asking.preflight import preflight
from tokenwire.asking.scenario import Conversation, Transcript, load_scenarios
from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.dialect import Dialect, load_dialects
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

CHAT, COMPLETIONS = load_dialects()["openai-chat"], load_dialects()["openai-completions"]


def answered(dialect: Dialect, request: dict[str, Any], body: Any, status: int = 200) -> Stream:
    sent = HttpRequest("POST", dialect.endpoint.path, request)
    read = (Read(0.1, json.dumps(body).encode()),)
    headers = (("content-type", "application/json"),)
    return dialect.read(Exchange("x", sent, "s", status, headers, read, Ending.COMPLETE))


def faults(requirement: str, *streams: Stream) -> list[str]:
    check = CHECKS[requirement].on_stream
    assert check is not None
    return [seen.message for stream in streams for seen in check(stream, Target()) if not seen.holds]


def wrong(run: Run) -> dict[str, str]:
    """What is violated, or broken in the suite, with the reason."""
    bad = (Verdict.FAIL, Verdict.WARN, Verdict.HARNESS_ERROR)
    return {judgement.name: judgement.message for judgement in judge([run]) if judgement.verdict in bad}


def test_a_correct_server_is_asked_for_chat_and_completions() -> None:
    found = OpenAIServer().first_words()
    assert [dialect.name for dialect in found.speaks] == ["openai-chat", "openai-completions"]


def test_a_correct_server_violates_nothing_and_much_is_judged() -> None:
    run = OpenAIServer().run()
    assert wrong(run) == {}
    asked = {stream.dialect for stream in run.streams}
    assert asked == {"openai-chat", "openai-completions"}


def test_an_endpoint_that_takes_texts_only_is_asked_in_words() -> None:
    run = OpenAIServer().run("budget-sweep", "batch-of-prompts", "context-border")
    bodies = {stream.exchange.name.partition("/")[2]: stream.exchange.request.body for stream in run.streams}
    assert bodies["budget-sweep/2-whole"]["prompt"].startswith("hand sea sea ")
    assert "ignore_eos" not in bodies["budget-sweep/2-whole"]
    assert [len(prompt.split()) for prompt in bodies["batch-of-prompts/whole"]["prompt"]] == [12, 3, 7]


def test_a_flag_without_words_is_no_second_request() -> None:
    ask = Ask(text=("Hello",), max_new_tokens=4)
    assert list(flagged(COMPLETIONS, ask)) == ["prompt-ids", "logprobs", "top-logprobs", "echo"]


def completed(tokens: int, text: str = "", finish: str = "length") -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish, "message": {"content": text}}
    usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
    return {"id": "c", "choices": [choice], "usage": usage}


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS])
def test_a_budget_of_zero_is_judged_without_ids(dialect: Dialect) -> None:
    nothing = answered(dialect, {"max_tokens": 0}, completed(0))
    stream = answered(dialect, {"max_tokens": 0}, completed(1, "a"))
    no_end = answered(dialect, {"max_tokens": 0}, completed(0, finish="stop"))
    assert faults("zero-budget-has-no-ids", nothing) == []
    assert faults("zero-budget-has-no-ids", stream) == [
        "text is not empty for a budget of zero tokens",
        "usage.completion_tokens is 1 for a budget of zero tokens",
    ]
    assert len(faults("zero-budget-has-no-ids", no_end)) == 1
    assert faults("budget-is-kept", nothing) == []
    assert faults("budget-is-kept", stream) == ["usage.completion_tokens is 1 for max_tokens 0"]


def test_an_echo_is_no_text_beyond_a_budget_of_zero() -> None:
    asked = {"prompt": "ab", "max_tokens": 0, "echo": True}
    assert faults("zero-budget-has-no-ids", answered(COMPLETIONS, asked, completed(0, "ab"))) == []


def test_nothing_is_asked_of_tokens_where_none_are_made() -> None:
    asked = {"prompt": "ab", "logprobs": 1}
    assert faults("asked-or-refused", answered(COMPLETIONS, {**asked, "max_tokens": 0}, completed(0))) == []
    assert faults("asked-or-refused", answered(COMPLETIONS, {**asked, "max_tokens": 1}, completed(1, "a")))


def test_zero_is_asked_of_chat_where_it_is_a_budget() -> None:
    run = OpenAIServer().run("chat-budget")
    budgets = [stream.asked.max_new_tokens for stream in run.streams]
    assert budgets == [0, 0, 1, 1, 5, 5]
    assert not wrong(run)


CHAT_SCENARIOS = (
    "chat-messages",
    "chat-samples",
    "chat-stop-string",
    "chat-logprobs",
    "stop-string-around-the-budget",
    "usage",
)


@pytest.mark.parametrize(
    "habits",
    [
        Habits(filters=True),
        Habits(thoughts=4),
        Habits(thoughts=4, thought_logprobs=False),
        Habits(finish="eos_token"),
        Habits(usage_always=True),
        Habits(token_bytes=False),
    ],
    ids=str,
)
def test_the_habit_of_a_family_is_no_fault(habits: Habits) -> None:
    run = OpenAIServer(habits).run(*CHAT_SCENARIOS)
    assert wrong(run) == {}
    assert len(run.streams) > 30


def informed(run: Run) -> set[str]:
    return {judgement.requirement.id for judgement in judge([run]) if judgement.verdict is Verdict.INFO}


def test_what_families_do_differently_is_told_as_information() -> None:
    assert "finish-type-is-known" in informed(OpenAIServer(Habits(finish="eos_token")).run(*CHAT_SCENARIOS))
    assert "usage-only-on-request" in informed(OpenAIServer(Habits(usage_always=True)).run("chat-messages"))
    assert informed(OpenAIServer().run("chat-messages")) == set()


ENTRY = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}


def thinking(content: int, thoughts: int, tokens: int, reasoning: int | None, **asked: Any) -> Stream:
    """A chat answer with so many logprobs of its content and thoughts, and what its usage counts."""
    answer = completed(tokens, "a" * content, asked.pop("finish", "length"))
    logprobs = {"content": [ENTRY] * content, "reasoning_content": [ENTRY] * thoughts}
    answer["choices"][0] |= {"logprobs": logprobs}
    answer["choices"][0]["message"]["reasoning_content"] = "bbbb" if reasoning != 0 else None
    if reasoning is not None:
        answer["usage"]["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return answered(CHAT, {"logprobs": True, "messages": [], **asked}, answer)


@pytest.mark.parametrize(
    ("stream", "legal"),
    [
        (thinking(20, 4, 24, 4), True),  # DeepSeek: entries of thoughts apart
        (thinking(20, 0, 24, 4), True),  # none of them
        (thinking(24, 0, 24, 4), True),  # all in the content
        (thinking(20, 0, 24, None), True),  # nobody counts them
        (thinking(19, 0, 24, 4), False),
        (thinking(18, 0, 24, 0), False),
        (thinking(25, 0, 24, 4), False),
        (thinking(20, 5, 24, 4), False),
        (thinking(20, 0, 24, 0, stop=["sea"]), False),
        (thinking(21, 0, 24, 0, stop=["sea"], finish="stop"), True),
        (thinking(20, 0, 24, 0, stop=["sea"], finish="stop"), False),
    ],
)
def test_logprobs_of_thoughts_and_stops_may_be_missing_and_no_others(stream: Stream, legal: bool) -> None:
    assert (faults("chat-logprobs-count-the-tokens", stream) == []) is legal


def test_a_stop_that_ends_the_thoughts_is_told_as_that() -> None:
    habits = Habits(thoughts=30, stops_in_thoughts=True)
    server = OpenAIServer(habits)
    ask = Ask(messages=({"role": "user", "content": "Hi"},), max_new_tokens=40)
    unstopped = text_asked(server, ask)
    stop = (unstopped.choices[0].reasoning or "").split()[2]
    again = text_asked(server, ask, "unstopped-again")
    run = Run((unstopped, again, text_asked(server, replace(ask, stop=(stop,)), "stopped")))
    found = [
        judgement for judgement in judge([run]) if judgement.requirement.id == "stop-string-ends-generation"
    ]
    assert [judgement.verdict for judgement in found] == [Verdict.WARN], found[0].message
    assert (
        found[0].message == f"the stop string {stop!r} ended the reasoning of the choice, before its content"
    )


def text_asked(server: OpenAIServer, ask: Ask, name: str = "unstopped") -> Stream:
    request = CHAT.render(ask, "tiny")
    assert isinstance(request, HttpRequest)
    return CHAT.read(asyncio.run(server.send(f"openai-chat/one/{name}", "one", request)))


def test_n_that_was_ignored_is_called_so() -> None:
    stream = answered(CHAT, {"messages": [], "n": 2}, completed(3, "abc"))
    assert faults("choices-complete", stream)[0].startswith("n was ignored: the answer has the choices [0]")


def schema_faults(event: Mapping[str, Any], dialect: Dialect = CHAT) -> tuple[str, ...]:
    data = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
    sent = HttpRequest("POST", dialect.endpoint.path, {"stream": True})
    headers = (("content-type", "text/event-stream"),)
    return (
        dialect.read(Exchange("x", sent, "s", 200, headers, (Read(0.1, data),), Ending.COMPLETE))
        .events[0]
        .schema_errors
    )


CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


@pytest.mark.parametrize(
    ("event", "faults_"),
    [
        (
            {**CHUNK, "id": "", "object": "", "choices": [], "filtered": []},
            ("/object: '' instead of 'chat.completion.chunk'",),
        ),
        (
            {**CHUNK, "choices": [{"index": 0, "delta": {"content": 5}}]},
            ('/choices/0/delta/content: 5 is not of types "null", "string"',),
        ),
        ({"error": "no"}, ('/error: "no" is not of type "object"',)),
        (
            {
                **CHUNK,
                "choices": [],
                "usage": {"prompt_tokens": -1, "completion_tokens": 1, "total_tokens": 0},
            },
            ("/usage/prompt_tokens: -1 is less than the minimum of 0",),
        ),
        (
            {"choices": []},
            ('(document): "id" is a required property', '(document): "object" is a required property'),
        ),
        (
            {name: value for name, value in CHUNK.items() if name != "created"},
            ('(document): "created" is a required property',),
        ),
    ],
)
def test_a_fault_is_told_of_the_shape_that_is_meant(
    event: Mapping[str, Any], faults_: tuple[str, ...]
) -> None:
    assert schema_faults(event)[: len(faults_)] == faults_


class LMDeployServer:
    """LMDeploy's `/generate`, as its source describes it: flat fields, ids without the id of a stop."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def send(self, name: str, scenario: str, request: HttpRequest, **_: Any) -> Exchange:
        status, media_type, data = 404, "application/json", b'{"detail": "Not Found"}'
        if request.path == "/generate" and request.raw_body is None:
            self.bodies.append(request.body)
            status, media_type, data = self._generate(request.body)
        headers = (("content-type", media_type),)
        started = f"{len(self.bodies):06}"
        reads = (Read(0.1, data),)
        return Exchange(name, request, scenario, status, headers, reads, Ending.COMPLETE, started=started)

    def _generate(self, body: dict[str, Any]) -> tuple[int, str, bytes]:
        budget, prompt = body.get("max_tokens", 128), body.get("input_ids") or list(body["prompt"].encode())
        if budget <= 0:
            refusal = {
                "object": "error",
                "message": f"The max_tokens {budget} must be positive.",
                "code": 400,
            }
            return 400, "application/json", json.dumps(refusal).encode()
        ids: list[int] = []
        for _ in range(budget):
            ids.append(30 + (sum(prompt) + sum(ids)) * 7 % 60)
        stops = [place for place, token in enumerate(ids) if token in body.get("stop_token_ids", ())]
        finish = "stop" if stops else "length"
        ids = ids[: stops[0]] if stops else ids

        def found(start: int, end: int, finish: str | None) -> dict[str, Any]:
            part = ids[start:end]
            logprobs = [[-1.0 - token / 100, token] for token in part] if body.get("return_logprob") else None
            meta = {
                "prompt_tokens": len(prompt),
                "completion_tokens": end,
                "finish_reason": finish and {"type": finish},
                "output_token_logprobs": logprobs or None,
                "routed_experts": None,
            }
            return {"text": "".join(map(chr, part)), "output_ids": part, "meta_info": meta}

        if not body.get("stream"):
            return 200, "application/json", json.dumps(found(0, len(ids), finish)).encode()
        events = [found(place, place + 1, None) for place in range(len(ids))] + [
            found(len(ids), len(ids), finish)
        ]
        data = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
        return 200, "text/event-stream", data + b"data: [DONE]\n\n"


def test_lmdeploy_is_not_taken_for_sglang() -> None:
    server = LMDeployServer()
    found = asyncio.run(preflight("http://target", server, list(load_dialects().values())))
    assert [dialect.name for dialect in found.speaks] == ["lmdeploy-generate"]
    assert "/meta_info/output_token_logprobs without /meta_info/id" in found.left_out["sglang-generate"]


LMDEPLOY_SCENARIOS = (
    "greedy-stream",
    "small-budget",
    "long-output",
    "logprob-families",
    "stop-ids",
    "natural-end",
    "budget-sweep",
    "continuation",
)


def test_lmdeploy_is_judged_by_its_own_contract() -> None:
    server, transcript = LMDeployServer(), Transcript()
    dialect = load_dialects()["lmdeploy-generate"]

    async def talk() -> None:
        for name in LMDEPLOY_SCENARIOS:
            await load_scenarios()[name].run(Conversation(name, dialect, server, Advertised(), transcript))

    asyncio.run(talk())
    run = Run(tuple(transcript.streams))
    assert wrong(run) == {}
    passed = {judgement.requirement.id for judgement in judge([run]) if judgement.verdict is Verdict.PASS}
    assert passed >= {
        "ids-are-counted",
        "logprobs-name-their-ids",
        "stream-ids-equal-whole",
        "budget-is-kept",
    }
    assert all("sampling_params" not in body for body in server.bodies)


def test_ids_where_a_dialect_knows_texts_only_are_one_prompt() -> None:
    """The preflight asks for completions with ids; llama.cpp answers them, with one choice for one prompt."""
    request = HttpRequest("POST", "/v1/completions", {"prompt": [73, 39, 78, 220], "max_tokens": 4})
    asked = COMPLETIONS.read_asked(request)
    assert (asked.prompts, asked.batch) == (1, False)
    texts = COMPLETIONS.read_asked(HttpRequest("POST", "/v1/completions", {"prompt": ["a", "b"]}))
    assert (texts.prompts, texts.batch) == (2, True)


VLLM = load_dialects()["vllm-completions"]
RANKED = [None, {"6": {"logprob": -1.0, "rank": 1}}, {"9": {"logprob": -0.5}, "7": {"logprob": -1.0}}]


def of_vllm(prompt_logprobs: Any = None, ids: int = 2, details: Any = None, tokens: int = 2) -> Stream:
    answer = completed(tokens, "ab")
    answer["usage"]["prompt_tokens_details"] = details
    answer["choices"][0] |= {"token_ids": [11] * ids, "prompt_logprobs": prompt_logprobs}
    return answered(VLLM, {"prompt": [5, 6, 7], "prompt_logprobs": 1, "max_tokens": 99}, answer)


@pytest.mark.parametrize(
    ("ranked", "legal"),
    [
        (RANKED, True),
        (RANKED[:2], False),
        ([*RANKED, {"8": {"logprob": -1.0}}], False),
        ([None, RANKED[2], RANKED[1]], False),
        ([None, None, RANKED[2]], False),
    ],
)
def test_ranked_prompt_logprobs_cover_the_prompt(ranked: Any, legal: bool) -> None:
    assert (faults("prompt-logprobs-cover-the-prompt", of_vllm(ranked)) == []) is legal


def test_usage_counts_what_came_from_the_cache_and_the_ids_of_a_whole_answer() -> None:
    (emission,) = of_vllm(details={"cached_tokens": 2}).choices[0].emissions
    assert emission.counters == {"cached_tokens": 2}
    assert of_vllm().choices[0].emissions[0].counters == {}
    short, long = of_vllm(ids=59, tokens=60), of_vllm(ids=60, tokens=60)
    check = CHECKS["whole-accumulates"].on_stream
    assert check is not None
    assert faults("whole-accumulates", short) == ["output_ids holds 59 entries of an answer of 60 tokens"]
    assert [seen.holds for seen in check(long, Target())] == [True]


def test_the_request_after_a_bad_one_is_judged_without_ids() -> None:
    run = OpenAIServer().run("wrong-types", "probe")
    assert wrong(run) == {}
    passed = {judgement.requirement.id for judgement in judge([run]) if judgement.verdict is Verdict.PASS}
    assert "refused-request-harms-nobody" in passed


def test_an_echo_may_show_a_stop_string_of_the_prompt() -> None:
    asked = {"prompt": "a sea", "stop": ["sea"], "echo": True}
    check = CHECKS["stop-string-not-shown"].on_run
    assert check is not None
    assert list(check((answered(COMPLETIONS, asked, completed(2, "a sea b", "stop")),), Target())) == []
