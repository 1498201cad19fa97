"""Which dialect an endpoint speaks, where several share it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from recorded import write_file, write_folder

from tokenwire.asking.preflight import Preflight, preflight
from tokenwire.dialects.dialect import Mark, load_dialects
from tokenwire.dialects.recognition import DialectResolver, dialects_at, recognise
from tokenwire.replay import replay
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, Server
from tokenwire_live.watch.judging import ExchangeJudge

CHAT = "/v1/chat/completions"
SGLANG, OPENAI = load_dialects()["sglang-chat"], load_dialects()["openai-chat"]


def answer(**choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Hi"}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }


def chat(
    body: Any, name: str = "a-capture", *, status: int = 200, stream: bool = False, server: str = ""
) -> Exchange:
    data = json.dumps(body).encode()
    request = HttpRequest("POST", CHAT, {"messages": [{"role": "user", "content": "Hi"}], "stream": stream})
    return Exchange(
        name,
        request,
        "by-hand",
        status,
        (("content-type", "text/event-stream" if stream else "application/json"),),
        (Read(0.1, b"data: " + data + b"\n\ndata: [DONE]\n\n" if stream else data),),
        Ending.COMPLETE,
        server=Server(server),
    )


def test_dialects_are_found_by_method_and_path() -> None:
    def names(method: str, path: str) -> list[str]:
        return [dialect.name for dialect in dialects_at(HttpRequest(method, path))]

    assert names("POST", "/generate") == ["lmdeploy-generate", "sglang-generate"]
    assert names("PUT", "/generate?x=1") == ["sglang-generate"]
    assert {"sglang-chat", "openai-chat"} <= set(names("POST", CHAT))
    assert names("GET", "/generate") == []


@pytest.mark.parametrize("matched", [None, 2, "x"])
def test_a_mark_tells_though_it_be_null(matched: Any) -> None:
    seen = recognise([OPENAI, SGLANG], [chat(answer()), chat(answer(matched_stop=matched), "second")])
    assert seen.dialect is SGLANG
    assert seen.why == "second contains /choices/0/matched_stop"


def test_a_mark_in_a_chunk_tells() -> None:
    chunk = {"choices": [{"index": 0, "delta": {}, "matched_stop": None}]}
    assert recognise([OPENAI, SGLANG], [chat(chunk, stream=True)]).dialect is SGLANG


@pytest.mark.parametrize(
    ("line", "looked_at"), [(b"\n", {16}), (b"\r\n", {1000})], ids=["plain lines", "other line ends"]
)
def test_only_the_first_events_of_a_stream_are_looked_at(
    line: bytes, looked_at: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    event = b"data: " + json.dumps({"choices": [{"index": 0, "matched_stop": None}]}).encode() + 2 * line
    plain = event.replace(b"matched_stop", b"stop")
    bodies: list[bytes] = []
    monkeypatch.setattr(Mark, "may_stand_in", lambda _, body: bodies.append(body) or True)

    def found(body: bytes) -> str | None:
        stream = replace(chat({}, stream=True), reads=(Read(0.1, body),))
        recognised = recognise([SGLANG, OPENAI], [stream]).dialect
        return recognised and recognised.name

    assert found(15 * plain + 985 * event) == "sglang-chat"
    assert found(16 * plain + 984 * event) == "openai-chat"
    assert {body.count(b"data: ") for body in bodies} == looked_at


def test_a_mark_is_not_looked_for_where_its_key_is_but_a_part_of_another() -> None:
    mark = Mark.of("/choices/0/token_ids")
    assert mark.may_stand_in(b'{"choices":[{"token_ids":[]}]}')
    assert not mark.may_stand_in(b'{"choices":[{"prompt_token_ids":[]}]}')


def test_a_mark_whose_key_is_written_with_an_escape_tells() -> None:
    escaped = json.dumps(answer(matched_stop=None)).replace("matched", "m\\u0061tched")
    exchange = replace(chat({}), reads=(Read(0.1, escaped.encode()),))
    assert recognise([OPENAI, SGLANG], [exchange]).dialect is SGLANG


def test_a_mark_in_an_error_tells_nothing() -> None:
    body = answer(matched_stop=None)
    assert recognise([OPENAI, SGLANG], [chat(body, status=400)]).dialect is OPENAI


def test_the_name_of_the_server_tells_where_no_mark_does() -> None:
    refusal = chat({"object": "error", "message": "no", "code": 400}, status=400, server="sglang")
    assert recognise([OPENAI, SGLANG], [refusal]).dialect is SGLANG


def test_what_is_left_is_the_dialect_without_marks() -> None:
    seen = recognise([SGLANG, OPENAI], [chat(answer())])
    assert seen.dialect is OPENAI
    assert seen.why == "no answer contains /choices/0/matched_stop"


def test_where_all_have_marks_and_none_is_seen_nobody_knows() -> None:
    completions = [load_dialects()[name] for name in ("sglang-completions", "vllm-completions")]
    body = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "a"}]}
    unknown = replace(chat(body), request=HttpRequest("POST", "/v1/completions", {"prompt": "a"}))
    assert recognise(completions, [unknown]).dialect is None
    assert DialectResolver([unknown]).dialect_of(unknown) is load_dialects()["openai-completions"]
    marked = replace(unknown, server=Server("vllm"))
    assert recognise(completions, [marked]).dialect is load_dialects()["vllm-completions"]


@pytest.mark.parametrize(
    ("name", "extra", "choice"),
    [
        ("sglang-chat", {}, {"matched_stop": None}),
        ("vllm-chat", {"prompt_logprobs": None}, {}),
        ("vllm-chat", {"kv_transfer_params": None}, {}),
        ("vllm-chat", {}, {"token_ids": None, "stop_reason": None}),
        ("openai-chat", {}, {"token_ids": [5, 6]}),  # another server may know the field that was asked for
        ("openai-chat", {}, {}),
    ],
)
def test_each_family_has_its_own_marks(
    name: str, extra: Mapping[str, Any], choice: Mapping[str, Any]
) -> None:
    candidates = dialects_at(HttpRequest("POST", CHAT))
    assert recognise(candidates, [chat({**answer(**choice), **extra})]).dialect is load_dialects()[name]


def test_a_server_that_lost_its_meta_info_is_judged_and_not_left_out() -> None:
    candidates = dialects_at(HttpRequest("POST", "/generate"))
    lost = replace(chat({"text": "a", "output_ids": [5]}), request=HttpRequest("POST", "/generate", {}))
    assert recognise(candidates, [lost]).dialect is load_dialects()["sglang-generate"]


def test_where_no_answer_can_tell_it_is_the_likeliest() -> None:
    candidates = dialects_at(HttpRequest("POST", "/generate"))
    refused = replace(chat({"detail": "no"}, status=422), request=HttpRequest("POST", "/generate", {}))
    look_alike = replace(chat({"text": "a", "output_ids": [5], "meta_info": {}}), request=refused.request)
    assert recognise(candidates, [refused]).dialect is load_dialects()["sglang-generate"]
    assert recognise(candidates, [refused, look_alike]).dialect is None


def test_without_a_candidate_there_is_nothing_to_recognise() -> None:
    with pytest.raises(ValueError, match="no dialect has this endpoint"):
        recognise([], [chat(answer())])


def test_a_capture_is_read_by_what_its_server_writes(tmp_path: Path) -> None:
    plain = [chat(answer(), "one"), chat(answer(), "two", stream=True)]
    marked = [chat(answer(), "one"), chat(answer(matched_stop=None), "two")]
    folders = [write_folder(tmp_path / "plain", *plain), write_folder(tmp_path / "marked", *marked)]
    runs = replay(folders).runs
    assert [{stream.dialect for stream in run.streams} for run in runs] == [{"openai-chat"}, {"sglang-chat"}]


def test_a_server_that_others_recorded_goes_by_its_name(tmp_path: Path) -> None:
    refused = chat({"detail": "no"}, "one", status=422)
    run = replay([write_file(tmp_path / "sglang.jsonl", refused)]).runs[0]
    assert [stream.dialect for stream in run.streams] == ["sglang-chat"]


def test_an_exchange_of_our_own_is_read_by_the_dialect_that_asked() -> None:
    asked = replace(chat(answer(), "sglang-chat/probe/first"), scenario="probe")
    exchanges = [asked, chat(answer(), "preflight/sglang-chat")]
    resolver = DialectResolver(exchanges)
    assert [resolver.dialect_of(exchange) for exchange in exchanges] == [SGLANG, OPENAI]
    assert resolver.dialect_of(replace(exchanges[0], request=HttpRequest("GET", CHAT))) is None


@pytest.mark.parametrize(
    "name", ["sglang-chat", "sglang-chat/1", "sglang-chat/probe/first", "sglang-chat/by-hand"]
)
def test_a_name_that_begins_like_a_dialect_tells_nothing(name: str) -> None:
    """Other recorders may name an exchange after the server; their files hold no scenario."""
    foreign = chat(answer(), name)
    assert DialectResolver([foreign]).dialect_of(foreign) is OPENAI


@dataclass
class Target:
    """Answers by path and model, and remembers the bodies it was sent."""

    listed: tuple[str, ...] = ()
    knows: tuple[str, ...] = ("default",)
    choice: Mapping[str, Any] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, name: str, scenario: str, request: HttpRequest, **_: Any) -> Exchange:
        status, body = 404, {"detail": "Not Found"}
        if request.path == "/v1/models":
            status, body = 200, {"data": [{"id": model} for model in self.listed]}
        elif request.path == CHAT:
            self.bodies.append(request.body)
            known = request.body["model"] in self.knows
            status, body = (200, answer(**self.choice)) if known else (404, {"detail": "no such model"})
        read = Read(0.1, json.dumps(body).encode())
        return Exchange(name, request, scenario, status, (), (read,), Ending.COMPLETE)

    def first_words(self, *dialects: str, model: str = "") -> Preflight:
        chosen = [load_dialects()[name] for name in dialects or load_dialects()]
        return asyncio.run(preflight("http://target", self, chosen, model, named=bool(dialects)))


def test_an_openai_compatible_server_is_asked_as_one_and_the_report_says_why() -> None:
    found = Target().first_words()
    assert [dialect.name for dialect in found.speaks] == ["openai-chat"]
    reason = found.left_out["sglang-chat"]
    assert "uses openai-chat: no answer contains /choices/0/matched_stop" in reason
    assert found.taken["openai-chat"].startswith(f"{CHAT} uses it: no answer contains")
    assert "`--dialect sglang-chat` overrides this" in reason


def test_sglang_is_asked_as_sglang_and_the_report_says_why() -> None:
    found = Target(choice={"matched_stop": None}).first_words()
    assert [dialect.name for dialect in found.speaks] == ["sglang-chat"]
    assert "contains /choices/0/matched_stop" in found.left_out["openai-chat"]
    assert "contains /choices/0/matched_stop" in found.taken["sglang-chat"]


@pytest.mark.parametrize(("name", "choice"), [("sglang-chat", {}), ("openai-chat", {"matched_stop": None})])
def test_a_dialect_that_is_named_is_asked(name: str, choice: Mapping[str, Any]) -> None:
    found = Target(choice=choice).first_words(name)
    assert [dialect.name for dialect in found.speaks] == [name]
    assert found.left_out == {}
    assert found.taken == {name: "named by --dialect"}


@pytest.mark.parametrize(
    ("listed", "model", "asked"),
    [((), "", "default"), (("a", "b"), "", "a"), (("a", "b"), "b", "b"), ((), "c", "c")],
)
def test_the_model_is_the_one_that_is_named_or_the_first_that_is_listed(
    listed: tuple[str, ...], model: str, asked: str
) -> None:
    target = Target(listed=listed, knows=("default", "a", "b", "c"))
    found = target.first_words(model=model)
    assert {body["model"] for body in target.bodies} == {asked}
    assert found.model == ("" if asked == "default" else asked)


def test_a_server_that_knows_no_such_model_is_not_asked_in_earnest() -> None:
    found = Target(knows=("a",)).first_words()
    assert found.speaks == ()
    assert "no such model" in found.left_out["openai-chat"]


def test_a_watched_endpoint_keeps_the_family_whose_mark_was_seen() -> None:
    """Not every answer carries a mark: a refusal does not."""
    bench = ExchangeJudge()
    exchanges = [chat(answer()), chat(answer(matched_stop=None)), chat(answer())]
    assert [bench.judge(item).dialect for item in exchanges] == [
        "openai-chat",
        "sglang-chat",
        "sglang-chat",
    ]


def test_a_key_is_seen_however_a_server_writes_it() -> None:
    mark = Mark.of("/choices/0/matched_stop")
    for body in (b'{"choices": [{"matched_stop": null}]}', b'{"choices": [{"matched\\u005fstop": null}]}'):
        assert mark.may_stand_in(body)
        assert mark.seen_in(json.loads(body))
    assert not mark.may_stand_in(b'{"choices": [{"stop": null}]}'), "and needs not be parsed"
