"""Control endpoints: what is sent to them, and what is read from them, live and in a capture."""

from __future__ import annotations

import json
from typing import Any

import pytest
from control_calls import abort
from stream_builder import incremental

from tokenwire.dialects.control import Action, Load, is_begin, load_controls, read_call
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import capabilities
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read


def exchange(method: str, path: str, body: Any = None, *, answer: bytes = b"", status: int = 200) -> Exchange:
    reads = (Read(0.1, answer),) if answer else ()
    return Exchange("x", HttpRequest(method, path, body), "s", status, (), reads, Ending.COMPLETE)


def test_an_abort_says_whom_it_means() -> None:
    sglang, vllm = load_controls()["sglang"], load_controls()["vllm"]
    request = sglang.abort_request("a", "/generate")
    assert request == HttpRequest("POST", "/abort_request", {"rid": "a"})
    other = vllm.abort_request("a", "/inference/v1/generate")
    assert other == HttpRequest("POST", "/inference/v1/abort_requests", {"request_ids": ["a"]})
    assert vllm.abort_request("a", "/v1/completions") is None
    for sent in (request, other):
        assert sent is not None
        call = read_call(exchange(sent.method, sent.path, sent.body))
        assert call is not None
        assert (call.action, call.ids, call.everything, call.done) == (Action.ABORT, {"a"}, False, True)


@pytest.mark.parametrize(
    ("path", "body", "lacks"),
    [
        ("/inference/v1/abort_requests", {}, True),
        ("/inference/v1/abort_requests", {"request_ids": None}, True),
        ("/inference/v1/abort_requests", None, True),
        ("/inference/v1/abort_requests", {"request_ids": []}, False),
        ("/abort_request", {}, False),
    ],
)
def test_an_abort_may_lack_the_ids_that_its_family_requires(path: str, body: Any, lacks: bool) -> None:
    call = read_call(exchange("POST", path, body))
    assert call is not None
    assert (call.action, call.ids, call.lacks_ids) == (Action.ABORT, frozenset(), lacks)


def test_an_abort_without_ids_is_sent_to_a_family_that_requires_them() -> None:
    sent = {name: control.abort_without_ids for name, control in load_controls().items()}
    assert sent.pop("vllm") == HttpRequest("POST", "/inference/v1/abort_requests", {})
    assert set(sent.values()) == {None}


def test_an_abort_of_everything() -> None:
    call = read_call(exchange("POST", "/abort_request", {"abort_all": True}))
    assert call is not None
    assert (call.ids, call.everything) == (frozenset(), True)
    named = read_call(exchange("POST", "/abort_request", {"rid": "a", "abort_all": False}, status=500))
    assert named is not None
    assert (named.everything, named.done) == (False, False)


SGLANG = {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1, "num_used_tokens": 70}] * 2}
PROMETHEUS = b"""# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="a b"} 2.0
vllm:num_requests_waiting{engine="0"} 1.0
other 7
"""


@pytest.mark.parametrize(
    ("path", "answer", "load"),
    [
        ("/v1/loads", json.dumps(SGLANG).encode(), Load(6, 140)),
        ("/get_load", b'[{"num_reqs":3,"num_tokens":5}]', Load(3, 5)),
        ("/v1/loads", b"{}", None),
        ("/v1/loads", b'{"loads":[{"num_running_reqs":"2","num_waiting_reqs":0}]}', None),
        ("/v1/loads", b"not JSON", None),
    ],
)
def test_loads(path: str, answer: bytes, load: Load | None) -> None:
    call = load_controls()["sglang"].read(exchange("GET", path, answer=answer))
    assert call is not None
    assert (call.action, call.load) == (Action.LOAD, load)


def test_a_load_in_prometheus_text() -> None:
    call = load_controls()["vllm"].read(exchange("GET", "/metrics", answer=PROMETHEUS))
    assert call is not None
    assert call.load == Load(3, None)


@pytest.mark.parametrize(
    ("path", "answer", "load"),
    [
        ("/metrics", b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n", Load(3)),
        ("/slots", b'[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]', Load(1)),
        ("/slots", b'{"error":{"message":"no slots here"}}', None),
    ],
)
def test_loads_of_llama_cpp(path: str, answer: bytes, load: Load | None) -> None:
    call = read_call(exchange("GET", path, answer=answer))
    assert call is not None
    assert (call.action, call.load) == (Action.LOAD, load)
    assert path in [request.path for request in load_controls()["llama.cpp"].load_requests]


def test_other_exchanges_are_no_calls() -> None:
    assert read_call(exchange("POST", "/generate", {"rid": "a"})) is None
    assert read_call(exchange("GET", "/abort_request")) is None


def test_calls_show_what_a_target_can_do_by_their_effect() -> None:
    stream = incremental(request_id="a")

    def can(call: Any) -> bool:
        return capabilities([stream], Advertised(), calls=[call])["abort"].present

    assert can(abort(0.0, "a"))
    assert not can(abort(0.0, "b"))
    assert not can(abort(0.0, "a", status=404))
    for live, found in ((0, False), (1, True)):
        answer = b'[{"num_reqs":%d,"num_tokens":5}]' % live
        load = load_controls()["sglang"].read(exchange("GET", "/get_load", answer=answer))
        assert load is not None
        assert capabilities([stream], Advertised(), calls=[load])["load-report"].present is found


def test_a_load_is_read_by_the_family_that_wrote_it() -> None:
    call = read_call(exchange("GET", "/metrics", answer=PROMETHEUS))
    assert call is not None
    assert call.load == Load(3)


@pytest.mark.parametrize(
    ("path", "body", "effect"),
    [
        ("/pause_generation", {}, "ends"),
        ("/pause_generation", {"mode": "abort"}, "ends"),
        ("/pause_generation", {"mode": "retract"}, "retracts"),
        ("/pause_generation", {"mode": "in_place"}, "keeps"),
        ("/pause_generation", {"mode": "nonsense"}, ""),
        ("/pause_generation", {"mode": ["abort"]}, ""),
        ("/pause?mode=nonsense", None, ""),
        ("/pause", None, "ends"),
        ("/pause?mode=keep", None, "keeps"),
        ("/pause?mode=wait&clear_cache=false", None, "keeps"),
    ],
)
def test_a_pause_does_what_its_mode_says(path: str, body: Any, effect: str) -> None:
    call = read_call(exchange("POST", path, body))
    assert call is not None
    assert (call.action, call.effect, call.everything) == (Action.PAUSE, effect, effect == "ends")


@pytest.mark.parametrize(
    ("family", "effects"), [("sglang", ("ends", "retracts", "keeps")), ("vllm", ("ends", "keeps"))]
)
def test_a_pause_is_asked_by_what_it_does(family: str, effects: tuple[str, ...]) -> None:
    for effect in effects:
        request = load_controls()[family].pause_request(effect)
        assert request is not None
        call = read_call(exchange(request.method, request.path, request.body))
        assert call is not None
        assert call.effect == effect
    assert load_controls()["vllm"].pause_request("retracts") is None


def test_an_update_may_abort_everything() -> None:
    body = {"model_path": "x", "abort_all_requests": True}
    call = read_call(exchange("POST", "/update_weights_from_disk", body))
    assert call is not None
    assert (call.action, call.everything, call.aborts) == (Action.UPDATE, True, True)


def test_a_version_that_is_renamed_is_no_update_of_the_weights() -> None:
    named = {
        path: exchange("POST", path, {"weight_version": "v2"})
        for path in ("/update_weight_version", "/update_weights_from_disk")
    }
    assert [call.action for call in map(read_call, named.values()) if call] == [Action.RENAME, Action.UPDATE]


@pytest.mark.parametrize("family", ["sglang", "vllm"])
def test_a_renaming_of_the_suite_ends_nothing(family: str) -> None:
    request = load_controls()[family].rename_request("v2")
    assert request is not None
    call = read_call(exchange(request.method, request.path, request.body))
    assert call is not None
    assert (call.action, call.version, call.aborts) == (Action.RENAME, "v2", False)


def test_a_renaming_ends_what_runs_if_its_body_says_so() -> None:
    sglang = load_controls()["sglang"]
    for body, ends in (
        ({}, False),
        ({"abort_all_requests": True}, True),
        ({"abort_all_requests": False}, False),
    ):
        call = sglang.read(exchange("POST", "/update_weight_version", {"new_version": "v2", **body}))
        assert call is not None
        assert call.everything is ends


def test_endpoints_of_a_development_mode_are_for_servers_that_declare_them() -> None:
    sglang, vllm = load_controls()["sglang"], load_controls()["vllm"]
    assert sglang.is_asked(Action.PAUSE, ())
    assert not vllm.is_asked(Action.PAUSE, {"weight-versions"})
    assert vllm.is_asked(Action.PAUSE, {"pause"})
    assert not load_controls()["openai"].is_asked(Action.RENAME, {"weight-versions"})


def test_requests_for_a_stored_response() -> None:
    openai = load_controls()["openai"]
    for action, due in (
        (Action.RETRIEVE, HttpRequest("GET", "/v1/responses/resp_1%2F2")),
        (Action.CANCEL, HttpRequest("POST", "/v1/responses/resp_1%2F2/cancel")),
        (Action.DELETE, HttpRequest("DELETE", "/v1/responses/resp_1%2F2")),
    ):
        request = openai.response_request(action, "resp_1/2")
        assert request == due
        call = read_call(exchange(request.method, request.path, answer=b'{"id":"resp_1/2"}'))
        assert call is not None
        assert (call.action, call.ids, call.aborts) == (action, {"resp_1/2"}, False)
        assert call.document == {"id": "resp_1/2"}
    assert load_controls()["sglang"].response_request(Action.RETRIEVE, "resp_1") is None
    assert read_call(exchange("GET", "/v1/responses/")) is None


@pytest.mark.parametrize(
    ("body", "begins"),
    [
        ({"background": True}, True),
        ({"background": True, "stream": True}, False),
        ({"background": False}, False),
        ({}, False),
        (None, False),
    ],
)
def test_only_a_response_in_the_background_is_a_call(body: Any, begins: bool) -> None:
    assert is_begin(exchange("POST", "/v1/responses", body, answer=b"not JSON")) is begins


def test_an_answer_that_is_no_json_object_has_no_document() -> None:
    for answer in (b"", b"not JSON", b"[1]"):
        call = read_call(exchange("GET", "/v1/responses/resp_1", answer=answer))
        assert call is not None
        assert call.document == {}
