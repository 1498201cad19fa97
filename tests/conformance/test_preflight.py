"""First words with servers that want to be asked otherwise, or later, or that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from canned import CannedSender
from recorded import IDS, document

import tokenwire.asking.preflight as preflight_module
import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import Ask
from tokenwire.asking.preflight import Preflight, diagnosis, preflight
from tokenwire.asking.recorder import Recorder
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.requirement import load_requirements
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

CHAT = "/v1/chat/completions"
ANSWER = {
    "id": "a",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"},
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}
Answer = tuple[int, Any]


class Choosy(CannedSender):
    """Answers each request as it likes; what it does not know is not found."""

    def __init__(self, answers: Callable[[HttpRequest], Answer | None]) -> None:
        super().__init__()
        self.answers = answers
        self.requests: list[HttpRequest] = []

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        self.requests.append(request)
        self.status, answer = self.answers(request) or (404, {"detail": "Not Found"})
        self.body = json.dumps(answer).encode()
        return await super().send(name, scenario, request)


def first_words(answers: Callable[[HttpRequest], Answer | None], **how: Any) -> Preflight:
    return asyncio.run(preflight("http://target", Choosy(answers), list(load_dialects().values()), **how))


def openai_error(message: str) -> Answer:
    return 400, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def newest(request: HttpRequest) -> Answer | None:
    """As OpenAI's newest models refuse."""
    if request.path != CHAT or request.method != "POST":
        return None
    if "max_tokens" in request.body:
        return openai_error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead."
        )
    if request.body.get("temperature", 1) != 1:
        return openai_error(
            "Unsupported value: 'temperature' does not support 0 with this model. "
            "Only the default (1) value is supported."
        )
    return 200, ANSWER


def test_a_model_that_wants_other_names_and_no_temperature_is_asked_as_it_says() -> None:
    found = first_words(newest)
    (dialect,) = found.speaks
    assert dialect.name == "openai-chat"
    assert "max_completion_tokens instead of max_tokens, and no temperature" in found.taken["openai-chat"]
    request = dialect.render(
        Ask(messages=({"role": "user", "content": "Hi"},), max_new_tokens=9, stop=("x",))
    )
    assert isinstance(request, HttpRequest)
    assert request.body["max_completion_tokens"] == 9
    assert request.body.keys().isdisjoint({"max_tokens", "temperature"})
    assert not dialect.read_asked(request).key, "what is not greedy is compared with nothing"
    assert load_dialects()["openai-chat"] is not dialect, "another server may want it otherwise"


def test_a_gateway_that_wants_a_model_gets_one() -> None:
    def gateway(request: HttpRequest) -> Answer | None:
        if request.path != "/generate":
            return None
        if request.body.get("model") != "tiny":
            return 404, {"error": {"message": "no worker available for model 'unknown'"}}
        return 200, document(IDS, finished=True)

    found = first_words(gateway, model="tiny")
    assert [dialect.name for dialect in found.speaks] == ["sglang-generate"]
    assert found.answered["sglang-generate"].body["model"] == "tiny"
    request = found.speaks[0].render(Ask(input_ids=((1, 2),), max_new_tokens=4), "tiny")
    assert isinstance(request, HttpRequest)
    asked = load_dialects()["sglang-generate"].read_asked(request)
    assert asked.key
    assert not asked.other_sampling


def test_a_refusal_that_speaks_of_the_model_is_told_with_the_way_out() -> None:
    """As transformers serve refuses; it lists no model."""
    refusal = openai_error("Server is pinned to 'm'; requested 'default'.")
    refusal[1]["error"]["message"] += " Unknown model."
    diagnosis_found = first_words(lambda request: refusal if request.path == CHAT else None).diagnosis
    assert f"{CHAT} mentions the model: try --model NAME." in diagnosis_found


def test_a_list_of_models_that_fails_leads() -> None:
    """As transformers serve answers on a machine without a cache of Hugging Face."""

    def no_cache(request: HttpRequest) -> Answer | None:
        if request.path == "/v1/models":
            return 500, {"detail": "CacheNotFound"}
        refusal = openai_error("Server is pinned to './parrot'; requested 'default'.")
        return refusal if request.path == CHAT else (404, {"detail": "Not Found"})

    diagnosis_found = first_words(no_cache).diagnosis
    assert (
        diagnosis_found
        == "http://target: GET /v1/models answered 500, so no model is known. Name the model: --model NAME."
    )


def without_tokenizer(request: HttpRequest) -> Answer | None:
    """As SGLang answers that was started without a tokenizer."""
    if request.path == "/generate":
        return 200, document(IDS, finished=True)
    if request.path == "/v1/completions":
        return 500, {"object": "error", "message": "Internal server error: 'text'", "code": 500}
    if request.path == CHAT and "input_ids" not in request.body:
        words = "Internal server error: 'NoneType' object has no attribute 'apply_chat_template'"
        return 500, {"object": "error", "message": words, "code": 500}
    if request.path == CHAT:
        return 200, {
            **ANSWER,
            "choices": [{**ANSWER["choices"][0], "matched_stop": None}],
            "metadata": {"weight_version": "default"},
        }
    return None


def test_an_endpoint_that_fails_is_there_and_its_failure_is_judged() -> None:
    found = first_words(without_tokenizer)
    spoken = [dialect.name for dialect in found.speaks]
    assert "sglang-generate" in spoken
    assert any(dialect.chat for dialect in found.speaks), "it is asked what it can still answer"
    assert "sglang-completions" not in spoken
    assert sorted(failure.exchange.request.path for failure in found.failures) == [CHAT, "/v1/completions"]
    good = found.speaks[0].read(
        asyncio.run(Choosy(without_tokenizer).send("x/y", "y", found.answered[spoken[0]]))
    )
    run = Run((*found.failures, good))
    broken = judge([run], [load_requirements()["requests-do-not-break-the-server"]])
    assert {judgement.scenario for judgement in broken if judgement.verdict is Verdict.FAIL} == {"preflight"}


def test_a_server_that_has_no_room_yet_is_asked_again_until_patience_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight_module, "_BUSY_PAUSE_S", 0.0)
    times = 0

    def loading(request: HttpRequest) -> Answer | None:
        nonlocal times
        if request.path != "/generate":
            return None
        times += 1
        full = {"error": {"message": "all circuits open or unhealthy"}}
        return (200, document(IDS, finished=True)) if times > 9 else (503, full)

    assert [dialect.name for dialect in first_words(loading, patience_s=60.0).speaks] == ["sglang-generate"]
    times = -(10**9)
    diagnosis_found = first_words(lambda request: loading(request) or (503, {}), patience_s=0.0).diagnosis
    assert "no room for a request (status 503)" in diagnosis_found
    assert "--timeout" in diagnosis_found


def test_a_server_that_loads_its_model_gets_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every endpoint answers 503. One of them is asked again, and the others when it has room."""
    monkeypatch.setattr(preflight_module, "_BUSY_PAUSE_S", 0.0)
    again: list[str] = []
    seen: set[str] = set()

    def loading(request: HttpRequest) -> Answer:
        key = f"{request.path} {json.dumps(request.body, sort_keys=True)}"
        if request.method == "POST" and key in seen:
            again.append(request.path)
        seen.add(key)
        if len(again) > 200:
            return (200, document(IDS, finished=True)) if request.path == "/generate" else (404, {})
        return 503, {"error": {"message": "loading"}}

    spoken = first_words(loading, patience_s=600.0).speaks
    assert [dialect.name for dialect in spoken] == ["sglang-generate"]
    # Two dialects of one endpoint may send the same first request.
    assert len(set(again[50:200])) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://h/openai?api-version=2024-02-01", "has a query"),
        ("http://h/#top", "has a query"),
        ("http://me:secret@h", "--header 'Authorization"),
        ("http://h:99999", "the port 99999, but a port is from 1 to 65535"),
        ("http://h:0", "the port 0, but"),
    ],
)
def test_a_base_url_that_cannot_be_used_is_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as found:
        Recorder(url)
    assert "secret" not in str(found.value)


def test_one_endpoint_that_is_silent_among_others_that_are_not_there_is_told_with_the_way_out() -> None:
    missing = CannedSender(b"{}", 404)
    silent = CannedSender(b"", None, ending=Ending.TIMEOUT, duration=60.0)

    async def both() -> list[Exchange]:
        return [
            await missing.send("a", "b", HttpRequest("POST", "/generate")),
            await silent.send("a", "b", HttpRequest("POST", CHAT)),
        ]

    diagnosis_found = diagnosis("http://target", asyncio.run(both()))
    assert f"{CHAT} may still be loading its model: try again, or raise --timeout." in diagnosis_found


@pytest.mark.parametrize(("refused", "wants"), [(False, ""), (True, "; it wants prompts as text")])
def test_a_server_that_refuses_ids_is_asked_in_words(refused: bool, wants: str) -> None:
    """OpenAI documents prompts of ids; most servers that imitate it take texts alone."""
    choice = {"index": 0, "text": " blue", "logprobs": None, "finish_reason": "length"}
    document = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}

    def imitator(request: HttpRequest) -> Answer | None:
        if request.path != "/v1/completions" or "return_token_ids" in request.body:
            return None if request.path != "/v1/completions" else openai_error("unknown field")
        in_ids = not isinstance(request.body["prompt"], str)
        return (
            openai_error("prompt: Input should be a valid string") if refused and in_ids else (200, document)
        )

    found = first_words(imitator)
    (spoken,) = [dialect for dialect in found.speaks if dialect.name == "openai-completions"]
    assert spoken.takes_ids is not refused
    assert found.taken["openai-completions"].endswith(wants)


@pytest.mark.parametrize("status", [422, 500])
def test_a_door_of_a_family_that_refuses_ids_is_asked_in_text_and_judged_for_one_refusal(status: int) -> None:
    """As a router before SGLang: 262 requests in ids were refused, and no text was asked for."""
    choice = {"index": 0, "text": " blue", "logprobs": None, "finish_reason": "length", "matched_stop": None}
    document = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}

    def router(request: HttpRequest) -> Answer | None:
        if request.path != "/v1/completions":
            return None
        in_text = isinstance(request.body["prompt"], str)
        return (200, document) if in_text else (status, {"error": {"message": "invalid type: sequence"}})

    found = first_words(router)
    (spoken,) = [dialect for dialect in found.speaks if dialect.name == "sglang-completions"]
    assert not spoken.takes_ids
    assert found.taken["sglang-completions"].endswith("; it wants prompts as text")
    (refusal,) = found.failures
    assert refusal.exchange.status == status
    assert refusal.dialect == "sglang-completions"


def test_a_refusal_of_every_endpoint_is_quoted_with_the_way_out() -> None:
    refusal = openai_error("x-tokenwire-fault: no fault is called nonsense")
    assert first_words(lambda request: refusal if request.method == "POST" else None).diagnosis == (
        "http://target refuses the request at every endpoint (status 400): x-tokenwire-fault: no fault is "
        "called nonsense. Check --header, and what else goes into each request."
    )


@pytest.mark.parametrize("speaks", ["http", "https"])
def test_a_server_that_speaks_the_other_protocol_is_named_so(speaks: str) -> None:
    """The server answers each connection with the bytes that such a server sends first."""
    greeting = {"http": b"HTTP/1.1 400 Bad Request\r\n\r\n", "https": bytes([0x15, 3, 1, 0, 2, 2, 0x46])}

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting[speaks])
        await writer.drain()
        writer.close()

    async def found() -> tuple[str, str]:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        url = f"{'https' if speaks == 'http' else 'http'}://{address}"
        async with server:
            exchange = await Recorder(url, timeout_s=30).send("a", "preflight", HttpRequest("POST", CHAT, {}))
        return address, diagnosis(url, [exchange])

    address, words = asyncio.run(found())
    assert f"the server seems to speak {speaks}. Use {speaks}://{address}." in words


def test_requests_without_an_answer_are_named_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenwire.asking.preflight.WAITED_S", 0)
    said: list[str] = []
    heard = asyncio.Event()

    class Silent(Choosy):
        async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
            await heard.wait()
            return await super().send(name, scenario, request, **how)

    def hear(words: str) -> None:
        said.append(words)
        heard.set()

    dialects = list(load_dialects().values())
    asyncio.run(preflight("http://target", Silent(newest), dialects, on_wait=hear))
    (words,) = said
    assert words.startswith("no answer after 0 s from http://target to GET /")
    first_words(newest, on_wait=said.append)


def test_a_diagnosis_holds_nothing_that_a_terminal_acts_on() -> None:
    sender = CannedSender(b"\x1b]0;owned\x07", 418)
    exchange = asyncio.run(sender.send("first", "preflight", HttpRequest("POST", CHAT, {})))
    words = diagnosis("http://target", [exchange])
    assert words.isprintable()
    assert "\\x1b]0;owned" in words


@pytest.mark.parametrize("location", ["https://me:secret@login.example/path", ""])
def test_a_server_that_redirects_everything_is_explained(location: str) -> None:
    headers = (("content-type", "text/html"), *((("location", location),) if location else ()))
    exchange = Exchange("x", HttpRequest("POST", CHAT, {}), "s", 302, headers, (), Ending.COMPLETE)
    words = diagnosis("http://target", [exchange])
    to = ", the first one to https://[redacted]@login.example/path" if location else ""
    assert words.startswith(f"http://target redirects every request (status 302){to}. ")
    assert "without a redirect" in words
