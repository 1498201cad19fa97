"""The guards of the reference's listeners: the table in SECURITY.md, and where their exceptions end."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest
from starlette.routing import Route

from tokenwire_reference.doors import app

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "reference" / "tokenwire_reference"
KEY = {"authorization": "Bearer the-key"}
ADMIN = {"authorization": "Bearer the-admin-key"}
FOREIGN = {"origin": "http://evil.example", "host": "evil.example"}
ROUTES = {"sglang": [*app.ROUTES, *app.SGLANG_ROUTES], "vllm": [*app.ROUTES, *app.VLLM_ROUTES]}
CHANGES = {
    "/abort_request",
    "/flush_cache",
    "/pause_generation",
    "/continue_generation",
    *("/pause", "/resume", "/update_weight_version"),
    "/open_session",
    "/close_session",
    "/update_weights_from_disk",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
}
"""Calls that change the server; `/abort_request` aborts everything here."""
BODIES = {"/abort_request": {"abort_all": True}}
NETWORK = {
    "create_server": {"serve.py"},
    "start_server": {"extras/page_transfer.py"},
    "open_connection": {"extras/page_transfer.py"},
}
"""What opens a port or a connection, and the modules that may call it."""
OTHER_NETWORK = {
    *("connect", "connect_ex", "create_connection", "create_datagram_endpoint", "getaddrinfo", "sendto"),
    *(
        "start_unix_server",
        "open_unix_connection",
        "urlopen",
        "urlretrieve",
        "create_unix_server",
        "sock_connect",
    ),
}
CLIENTS = {"aiohttp", "ftplib", "http.client", "httpx", "requests", "smtplib", "telnetlib", "urllib.request"}


def table():
    """The rows of the table in SECURITY.md: the cells of each."""
    text = (ROOT / "SECURITY.md").read_text("utf-8").partition("### The guards of its doors\n")[2]
    lines = [line for line in text.partition("\n**")[0].splitlines() if line.startswith("|")]
    return {
        row[0]: row[1:]
        for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:])
    }


def calls_of(dialect, headers):
    """Each call of a dialect, by path and method."""
    return {
        (route.path, method): (route.path, BODIES.get(route.path), method, headers)
        for route in ROUTES[dialect]
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }


def statuses(answers, call, engine, dialect, headers, **flags):
    """The status of each call of a dialect."""
    asked = calls_of(dialect, headers)
    flags |= {"api_dialect": dialect, "enable_metrics": True}
    found = answers(engine, *(call(*given) for given in asked.values()), **flags)
    return {name: response.status_code for name, response in zip(asked, found, strict=True)}


@pytest.mark.parametrize("dialect", ROUTES)
def test_what_is_open_without_a_key_is_in_the_table(answers, call, scripted_engine, dialect):
    found = statuses(answers, call, scripted_engine([[5]]), dialect, {}, api_key="the-key")
    opened = {path for (path, _), status in found.items() if status != 401}
    row = next(cells for name, cells in table().items() if "calls that do not change the server" in name)
    assert opened == set(re.findall(r"`(/\w+)`", row[2]))


@pytest.mark.parametrize("dialect", ROUTES)
def test_a_call_that_changes_the_server_takes_the_key_of_the_admin(answers, call, scripted_engine, dialect):
    engine = scripted_engine([[5]])
    keys = {"api_key": "the-key", "admin_api_key": "the-admin-key"}
    found = statuses(answers, call, engine, dialect, KEY, **keys)
    assert {path for (path, _), status in found.items() if status == 403} == {
        path for path, _ in found if path in CHANGES
    }
    assert (engine.flushed, engine.paused) == (0, None)


@pytest.mark.parametrize("headers", [{}, KEY, ADMIN])
@pytest.mark.parametrize("dialect", ROUTES)
def test_a_web_page_of_another_origin_changes_nothing(answers, call, scripted_engine, dialect, headers):
    engine = scripted_engine([[5]])
    keys = {"api_key": "the-key", "admin_api_key": "the-admin-key"} if headers else {}
    sent = {**headers, "origin": "http://evil.example"}
    found = statuses(answers, call, engine, dialect, sent, **keys)
    assert {status for (path, _), status in found.items() if path in CHANGES} == {403}
    if not headers:
        found = statuses(answers, call, engine, dialect, FOREIGN)
        assert {status for (path, _), status in found.items() if path in CHANGES} == {403}
    assert (engine.flushed, engine.paused) == (0, None)


def test_no_module_listens_or_connects_but_those_of_the_table():
    """A new listener, or another way to a network, fails here until it is guarded and in the table."""
    found: dict[str, set[str]] = {}
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in NETWORK or name in OTHER_NETWORK:
                    found.setdefault(name, set()).add(path.relative_to(PACKAGE).as_posix())
            elif isinstance(node, ast.ImportFrom):
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    assert found == NETWORK
    assert not imported & CLIENTS
    assert len(table()) == 4


ERRORS = [
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    OverflowError("cannot convert float infinity to integer"),
    KeyError("missing"),
    OSError(5, "Input/output error"),
    type("ErrorOfALibrary", (Exception,), {})("two\nlines"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_exception_of_a_door_is_one_answer_and_one_line_of_the_log(
    answer, scripted_engine, monkeypatch, caplog, error
):
    def fail(*_, **__):
        raise error

    doors = {"sglang": ("/generate", "sglang.generate"), "vllm": ("/v1/completions", "vllm.completions")}
    for dialect, (path, module) in doors.items():
        monkeypatch.setattr(f"tokenwire_reference.doors.{module}.read_prompts", fail)
        caplog.clear()
        response = answer(scripted_engine([[5]]), path, {"text": "x", "prompt": "x"}, api_dialect=dialect)
        assert response.status_code == 500
        assert type(error).__name__ in response.text
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert record.getMessage().startswith(f"POST {path} failed: {type(error).__name__}")
        assert record.exc_info is None


def test_an_exception_in_the_middle_of_an_answer_ends_it(caplog):
    """Nothing is added to what was sent."""
    import asyncio

    async def half(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RecursionError

    sent = []

    async def send(message):
        sent.append(message["type"])

    scope = {"type": "http", "method": "GET", "path": "/x"}
    asyncio.run(app.OneBoundary(half, "sglang")(scope, None, send))
    assert sent == ["http.response.start"]
    assert [record.getMessage() for record in caplog.records] == ["GET /x failed: RecursionError: "]
