"""Who may call: the keys of a server, what is open without one, and what takes that of its admin."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from starlette.routing import Route

from tokenwire_reference.doors import app
from tokenwire_reference.doors.keys import OPEN_PATHS
from tokenwire_reference.server_args import ServerArgs

KEY = {"authorization": "Bearer the-key"}
ADMIN = {"authorization": "bearer the-admin-key"}
BOTH = {"api_key": "the-key", "admin_api_key": "the-admin-key"}
BODIES = {
    "/generate": {"input_ids": [5]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": [5]},
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {}},
    "/tokenize": {"prompt": "x"},
}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer another"},
        {"authorization": "Bearer the-key-"},
        {"authorization": "Basic the-key"},
        {"authorization": b"Bearer \xff\xfe"},
        {"x-api-key": "the-key"},
    ],
)
@pytest.mark.parametrize("path", BODIES)
def test_without_the_key_nothing_is_asked(answers, call, scripted_engine, path, headers):
    engine = scripted_engine([[5]])
    calls = [call(path, BODIES[path], headers=headers), call(path, BODIES[path], headers=KEY)]
    refused, answered = answers(engine, *calls, api_key="the-key")
    assert (refused.status_code, answered.status_code) == (401, 200)
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "Authorization: Bearer" in refused.text
    assert "the-key" not in refused.text


@pytest.mark.parametrize(
    ("path", "dialect", "shape"),
    [
        ("/generate", "sglang", {"error"}),
        ("/v1/completions", "sglang", {"object", "message", "type", "param", "code"}),
        ("/v1/completions", "vllm", {"error"}),
        ("/inference/v1/generate", "sglang", {"error"}),
    ],
)
def test_the_refusal_has_the_shape_of_other_refusals(  # noqa: PLR0917
    answers, call, scripted_engine, path, dialect, shape
):
    calls = [call(path, BODIES[path]), call(path, {}, headers=KEY)]
    unauthorized, malformed = answers(scripted_engine([[5]]), *calls, api_key="the-key", api_dialect=dialect)
    assert (unauthorized.status_code, malformed.status_code) == (401, 400)
    assert set(unauthorized.json()) == set(malformed.json()) == shape


def test_only_what_supervisors_ask_is_open(answers, call, scripted_engine):
    routes = [route for route in (*app.ROUTES, *app.SGLANG_ROUTES) if isinstance(route, Route)]
    calls = [
        call(route.path, method=method)
        for route in routes
        for method in route.methods or ()
        if method != "HEAD"
    ]
    calls.append(call("/nowhere", method="GET"))
    responses = answers(scripted_engine([[5]]), *calls, api_key="the-key", enable_metrics=True)
    opened = {
        item.path for item, response in zip(calls, responses, strict=True) if response.status_code != 401
    }
    assert opened == OPEN_PATHS == {"/health", "/health_generate", "/ping", "/ready", "/metrics"}


def test_the_page_on_security_names_what_is_open_and_flags_that_are_there():
    page = (Path(__file__).parents[3] / "SECURITY.md").read_text("utf-8")
    _, _, rest = page.partition("every endpoint needs the key, except ")
    opened, _, _ = rest.partition(". With")
    assert set(re.findall(r"`([^`]+)`", opened)) == OPEN_PATHS
    flags = set(re.findall(r"`--([a-z-]+)`", page.partition("## The reference engine")[2]))
    assert {flag.replace("-", "_") for flag in flags} <= {field.name for field in fields(ServerArgs)}


CONTROL = {
    "/abort_request": {"abort_all": True},
    "/flush_cache": None,
    "/pause_generation": {},
    "/continue_generation": {},
    "/open_session": {},
    "/close_session": {},
}


@pytest.mark.parametrize("path", CONTROL)
def test_control_takes_the_key_of_the_admin(answers, call, scripted_engine, path):
    engine = scripted_engine([[5]])
    for keys, headers, status in (
        (BOTH, {}, 401),
        (BOTH, KEY, 403),
        (BOTH, ADMIN, 200),
        ({"api_key": "the-key"}, KEY, 200),
        ({"admin_api_key": "the-admin-key"}, {}, 401),
        ({"admin_api_key": "the-admin-key"}, ADMIN, 200),
        ({}, {}, 200),
    ):
        (response,) = answers(engine, call(path, CONTROL[path], headers=headers), **keys)
        assert response.status_code == status, (keys, headers)
        if status != 200:
            assert (engine.flushed, engine.paused) == (0, None)
            assert "key" in response.json()["message"]
        engine.flushed, engine.paused = 0, None


def test_the_admin_may_ask_and_who_may_ask_may_abort_one(answers, call, scripted_engine):
    calls = [
        call("/generate", BODIES["/generate"], headers=ADMIN),
        call("/abort_request", {"rid": "a"}, headers=KEY),
    ]
    responses = answers(scripted_engine([[5]]), *calls, **BOTH)
    assert [response.status_code for response in responses] == [200, 200]
    (unlocked,) = answers(scripted_engine([[5]]), call("/generate", BODIES["/generate"]), admin_api_key="k")
    assert unlocked.status_code == 200


@pytest.mark.parametrize("path", CONTROL)
def test_what_changes_the_server_is_posted(answers, call, scripted_engine, path):
    engine = scripted_engine([[5]])
    methods = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS")
    responses = answers(engine, *(call(path, CONTROL[path], method=method) for method in methods))
    assert {response.status_code for response in responses} == {405}
    assert (engine.flushed, engine.paused, engine.aborted) == (0, None, [])


@pytest.mark.parametrize("path", CONTROL)
def test_a_web_page_of_another_origin_controls_nothing(answers, call, scripted_engine, path):
    engine = scripted_engine([[5]])
    pages = [
        *(("https://evil.example", "127.0.0.1"), ("null", "127.0.0.1"), ("http://[", "127.0.0.1")),
        *(("http://127.0.0.1:81", "127.0.0.1"), ("http://rebound.example:80", "rebound.example:80")),
    ]
    ours = [(f"http://{name}:80", f"{name}:80") for name in ("127.0.0.1", "[::1]", "localhost")]
    calls = [
        call(path, CONTROL[path], headers={"origin": origin, "host": host})
        for origin, host in [*pages, *ours]
    ]
    responses = answers(engine, *calls)
    assert [response.status_code for response in responses] == [403] * len(pages) + [200] * len(ours)
    named = {"origin": "http://models.example", "host": "models.example"}
    for flags, headers in (({"host": "models.example"}, named), ({"api_key": "the-key"}, {**named, **KEY})):
        (response,) = answers(engine, call(path, CONTROL[path], headers=headers), **flags)
        assert response.status_code == 200


def test_nothing_tells_a_key(answers, call, scripted_engine, monkeypatch):
    words = ["serve", "--api-key", "the-key", "--admin-api-key=the-admin-key", "--port", "0"]
    monkeypatch.setattr(sys, "argv", ["tokenwire-reference", *words])
    (response,) = answers(scripted_engine([[5]]), call("/server_info", method="GET", headers=KEY), **BOTH)
    info = response.json()
    assert (info["api_key"], info["admin_api_key"]) == ("***", "***")
    assert info["launch_command"] == "serve --api-key *** --admin-api-key=*** --port 0"
    (response,) = answers(scripted_engine([[5]]), call("/server_info", method="GET"))
    assert (response.json()["api_key"], response.json()["admin_api_key"]) == (None, None)
