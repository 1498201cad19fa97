from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tokenwire.record import Delivery
from tokenwire.target import advertised
from tokenwire.target.advertised import Advertised, advertised_by, information_path, information_paths
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, Server


def answer(path: str, body: Any, *, status: int = 200, server: Server | None = None) -> Exchange:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = HttpRequest("GET", path)
    reads = (Read(0.1, data),)
    return Exchange(path, request, "s", status, (), reads, Ending.COMPLETE, server=server or Server())


def test_the_information_endpoints_are_put_together() -> None:
    claims = advertised_by(
        [
            answer(
                "/server_info",
                {
                    "version": "1.2",
                    "stream_interval": 4,
                    "incremental_streaming_output": True,
                    "sampling_backend": "mirror",
                    "context_length": 512,
                },
            ),
            answer("/model_info", {"model_path": "/m"}),
            answer("/v1/models", {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 1024}]}),
        ]
    )
    assert claims == Advertised(
        name="sglang",
        version="1.2",
        model="m",
        models=frozenset({"m", "/m"}),
        context_length=1024,
        delivery=Delivery.INCREMENTAL,
        stream_interval=4,
        sampling_backend="mirror",
        weights="/m",
        sources=("GET /server_info", "GET /model_info", "GET /v1/models"),
    )
    assert claims.mirrors


def test_older_names_of_the_endpoints_are_known() -> None:
    claims = advertised_by([answer("/get_server_info", {"incremental_streaming_output": False})])
    assert claims.delivery is Delivery.CUMULATIVE
    assert information_path(HttpRequest("GET", "/get_model_info")) == "/model_info"
    assert information_path(HttpRequest("POST", "/server_info")) is None


def test_the_information_endpoints_are_those_of_the_tables():
    paths = ("/v1/models", "/server_info", "/model_info", "/version", "/get_server_info", "/get_model_info")
    assert information_paths() == paths


def test_a_table_tells_what_can_be_advertised_and_means_what_can_be():
    families = advertised.load_families()
    fields = {field.name for field in dataclasses.fields(Advertised)}
    found = {fact for family in families for document in family.documents for fact in document.tells}
    assert found | {flag.tells for family in families for flag in family.flags.values()} == fields - {
        "sources"
    }
    documents = [document.means for family in families for document in family.documents]
    meant = [
        (fact, meaning) for means in documents for fact, mean in means.items() for meaning in mean.values()
    ]
    for flag in (flag for family in families for flag in family.flags.values()):
        values = [flag.given, flag.absent, *(flag.means or {}).values()]
        meant += [(flag.tells, value) for value in values if value is not None]
    assert [(fact, value) for fact, value in meant if advertised._believed(fact, value) is None] == []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"documents": [{"path": "/i", "tells": {"versoin": ["/v"]}}]},
            "tells: 'versoin' is not a fact; known are name, version,",
        ),
        ({"documents": [{"path": "/i", "tells": {"version": "/v"}}]}, "tells: version: '/v' is not a list"),
        (
            {"flags": {"--x": {"tells": "delivery", "given": 7}}},
            "--x: given: 7 is not a text or true or false",
        ),
        ({"flag": {}}, "there is no 'flag'; did you mean 'flags'"),
    ],
)
def test_a_table_that_says_what_no_server_can_tell_is_refused(
    table: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(advertised, "spec_root", lambda: tmp_path)
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "other.yaml").write_text(json.dumps({"family": "other", **table}))
    with pytest.raises(ValueError, match=rf"other\.yaml: .*{words}"):
        advertised.load_families.__wrapped__()


def test_a_rule_of_the_logprobs_is_one_that_is_known():
    def found(*flags: str) -> str:
        return advertised_by([answer("/generate", {}, server=Server("vllm", "0", flags))]).logprob_rule

    assert found("--logprobs-mode", "processed_logprobs") == "logprobs-as-sampled"
    assert found("--logprobs-mode=raw_logprobs") == "logprobs-of-the-model"
    assert found("--logprobs-mode", "raw_logits") == found("--logprobs-mode") == ""
    assert advertised_by([answer("/server_info", {"logprob_rule": "as I like"})]).logprob_rule == ""


def test_every_model_that_is_listed_gives_its_names_and_the_first_everything_else():
    listed = [{"id": "a", "max_model_len": 64}, 7, {"id": "b", "root": "/b", "owned_by": "x"}]
    claims = advertised_by([answer("/v1/models", {"data": listed})])
    assert (claims.name, claims.model, claims.models) == ("", "a", {"a", "b", "/b"})
    assert claims.context_length == 64


def test_the_flags_of_a_capture_speak_where_the_endpoints_are_silent() -> None:
    flags = ("--incremental-streaming-output", "--stream-interval=8", "--sampling-backend", "mirror")
    server = Server("sglang", "0.5.23", flags)
    claims = advertised_by([answer("/generate", {}, server=server)])
    assert (claims.name, claims.version, claims.stream_interval) == ("sglang", "0.5.23", 8)
    assert claims.delivery is Delivery.INCREMENTAL
    assert claims.mirrors
    without = advertised_by(
        [answer("/generate", {}, server=Server("sglang", "0.5.23", ("--stream-interval", "2")))]
    )
    assert (without.delivery, without.stream_interval) == (Delivery.CUMULATIVE, 2)


def test_flags_mean_what_they_mean_in_the_family_that_the_capture_names() -> None:
    def found(name: str, *flags: str) -> Advertised:
        return advertised_by([answer("/generate", {}, server=Server(name, "0", flags))])

    assert found("vllm", "--max-num-seqs", "4").delivery is None
    assert found("a gateway", "--stream-interval", "4").delivery is Delivery.CUMULATIVE
    assert found("vllm", "--stream-interval", "4").stream_interval == 4


def test_a_capture_without_flags_advertises_no_mode() -> None:
    assert advertised_by([answer("/generate", {}, server=Server("sglang", "0.5.23"))]).delivery is None


@pytest.mark.parametrize(
    "body",
    [
        {"stream_interval": "4", "incremental_streaming_output": "yes", "version": 3, "context_length": True},
        {"stream_interval": 0, "context_length": -1},
        [],
        b"<html>",
        b"\xff",
        None,
        {"data": "x"},
        {"data": [1]},
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", ["/server_info", "/model_info", "/v1/models"])
def test_nonsense_advertises_nothing(path: str, body: Any) -> None:
    claims = advertised_by([answer(path, body)])
    assert (claims.delivery, claims.stream_interval, claims.version, claims.context_length) == (
        None,
        None,
        "",
        None,
    )


def test_an_endpoint_that_is_not_there_advertises_nothing() -> None:
    assert advertised_by([answer("/server_info", {"stream_interval": 4}, status=404)]) == Advertised()


def test_the_vocabulary_and_what_a_server_has_are_told_by_its_settings() -> None:
    settings = {"skip_tokenizer_init": True, "stream_response_default_include_usage": True}
    claims = advertised_by([answer("/server_info", settings), answer("/model_info", {"vocab_size": 2000})])
    assert (claims.vocab_size, claims.tokenizer, claims.usage_in_streams) == (2000, False, True)
    assert advertised_by([answer("/server_info", {"skip_tokenizer_init": False})]).tokenizer is True
    assert advertised_by([answer("/server_info", {})]).tokenizer is None
    flagged = Server("sglang", "0", ("--skip-tokenizer-init",))
    assert advertised_by([answer("/generate", {}, server=flagged)]).tokenizer is False


def test_determinism_is_declared_by_the_settings_or_by_a_flag() -> None:
    flagged = Server("sglang", "0", ("--enable-deterministic-inference",))
    assert advertised_by([answer("/server_info", {"enable_deterministic_inference": True})]).deterministic
    assert advertised_by([answer("/generate", {}, server=flagged)]).deterministic
    denied = answer("/server_info", {"enable_deterministic_inference": False}, server=flagged)
    assert not advertised_by([denied]).deterministic
    assert not advertised_by([answer("/server_info", {})]).deterministic


def test_a_server_that_tells_its_version_elsewhere() -> None:
    claims = advertised_by([answer("/version", {"version": "0.32.0"})])
    assert (claims.version, claims.sources) == ("0.32.0", ("GET /version",))
