"""What a server says of itself, and how it is controlled."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_has_every_flag(answers, call, scripted_engine, path):
    flags = {"stream_interval": 4, "incremental_streaming_output": True, "sampling_backend": "mirror"}
    (response,) = answers(scripted_engine([[5]]), call(path, method="GET"), **flags)
    info = response.json()
    assert {name: info[name] for name in flags} == flags
    assert (info["model_path"], info["context_length"], info["skip_tokenizer_init"]) == (
        "scripted",
        512,
        False,
    )
    assert info["version"] == info["tokenwire_reference"]["version"]


def test_the_model_is_named(answers, call, scripted_engine):
    calls = [call("/v1/models", method="GET"), call("/model_info", method="GET")]
    models, info = answers(scripted_engine([[5]]), *calls, served_model_name="me")
    assert models.json()["data"][0]["id"] == info.json()["served_model_name"] == "me"
    assert models.json()["data"][0]["max_model_len"] == 512


def test_an_unknown_model_is_not_found(answers, call, scripted_engine):
    calls = [call("/v1/models/a/b", method="GET"), call("/v1/models/scripted", method="GET")]
    unknown, known = answers(scripted_engine([[5]]), *calls)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert known.json()["id"] == "scripted"


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_health_generates_a_token(answers, call, scripted_engine, path):
    (well,) = answers(scripted_engine([[5]]), call(path, method="GET"))
    (ill,) = answers(scripted_engine([[]]), call(path, method="GET"))
    assert (well.status_code, well.content, ill.status_code) == (200, b"", 503)


def test_flush_cache_runs_on_the_engine(answers, call, scripted_engine):
    engine = scripted_engine([[5]])
    # Not by GET: a page with an image of that address could do it.
    responses = answers(engine, call("/flush_cache"), call("/flush_cache", method="GET"))
    assert [response.status_code for response in responses] == [200, 405]
    assert engine.flushed == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [({"rid": "nobody"}, 200), ({}, 200), ({"abort_all": True}, 200), ({"rid": 5}, 400), (None, 400)],
)
def test_abort_answers_for_ids_that_nobody_has(answers, call, scripted_engine, body, status):
    engine = scripted_engine([[5]])
    (response,) = answers(engine, call("/abort_request", body))
    assert (response.status_code, engine.aborted) == (status, [])
    if status == 200:
        assert response.content == b""


def test_unknown_paths_and_methods(answers, call, scripted_engine):
    calls = [call("/nope", method="GET"), call("/generate", method="GET")]
    nowhere, wrong = answers(scripted_engine([[5]]), *calls)
    assert (nowhere.status_code, nowhere.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, set(wrong.headers["allow"].split(", "))) == (405, {"POST", "PUT"})
