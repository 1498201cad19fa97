"""The inspector without a browser: who may ask its server, what a page is told, and what stays inert."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from recorded import streamed, whole

from tokenwire.asking.run import Plan, reach
from tokenwire.demo_server import demo_server
from tokenwire.dialects.dialect import load_dialects
from tokenwire.inspecting.bench import Answer, Bench, Question
from tokenwire.inspecting.exchanges import TARGET
from tokenwire.inspecting.form import form
from tokenwire.inspecting.inspector import Inspected, Inspector
from tokenwire.inspecting.keeping import keep
from tokenwire.settings import Settings
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e\u2028&amp;"
DIALECT = "sglang-generate"
BODY = {"input_ids": [65], "sampling_params": {"max_new_tokens": 20}, "stream": True}


@contextlib.asynccontextmanager
async def inspecting(url: str, folder: Path) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    plan = Plan(Settings(target=url, dialect=(DIALECT,)))
    async with (
        Inspector(Inspected(plan, {TARGET: await reach(plan)}, folder)) as address,
        httpx.AsyncClient(verify=False, trust_env=False, timeout=120) as client,
    ):
        yield address, client


def inspected(folder: Path, talk: Callable[[str, httpx.AsyncClient], Awaitable[None]], *faults: str) -> None:
    async def run() -> None:
        async with inspecting(url, folder) as (address, client):
            await talk(address, client)

    with demo_server(faults) as url:
        asyncio.run(run())


def origin(address: str) -> dict[str, str]:
    return {"origin": str(httpx.URL(address).copy_with(path="/")).rstrip("/")}


async def news(address: str, client: httpx.AsyncClient, wanted: str = "") -> AsyncIterator[dict[str, Any]]:
    async with client.stream("GET", f"{address}events{wanted}") as answer:
        async for line in answer.aiter_lines():
            if line:
                yield json.loads(line.removeprefix("data: "))


def test_nobody_is_answered_without_the_token_the_host_and_the_origin(tmp_path: Path) -> None:
    async def talk(address: str, client: httpx.AsyncClient) -> None:
        async def status(method: str, url: str, **headers: str) -> int:
            return (await client.request(method, url, headers=headers, content=b'{"number": 1}')).status_code

        root = str(httpx.URL(address).copy_with(path="/"))
        assert await status("GET", address) == 200
        assert await status("GET", address, **origin(address)) == 200
        assert await status("GET", root) == 404
        assert await status("GET", f"{root}{'x' * 32}/") == 404
        assert await status("GET", address, host="evil.example") == 403
        assert await status("GET", f"{address}events", origin="http://evil.example") == 403
        assert await status("POST", f"{address}stop", origin="http://evil.example") == 403
        assert await status("POST", f"{address}stop", origin="null") == 403
        assert await status("POST", f"{address}stop") == 403
        assert await status("POST", f"{address}stop", **origin(address)) == 400  # there is no such request
        assert await status("GET", f"{address}nothing") == 404
        page = await client.get(address)
        assert "script-src 'sha256-" in page.text.replace("&#39;", "'")
        assert re.findall(r"""(?:src|href)=["']?([^"' >]+)""", page.text) == []
        assert "url(" not in page.text

    inspected(tmp_path, talk)


def test_an_answer_is_told_while_it_grows_and_what_it_violates_at_its_event(tmp_path: Path) -> None:
    async def talk(address: str, client: httpx.AsyncClient) -> None:
        long = {**BODY, "sampling_params": {"max_new_tokens": 4000}}
        wanted = {"requests": [{"dialect": DIALECT, "body": json.dumps(long)}]}
        sent = await client.post(f"{address}send", json=wanted, headers=origin(address))
        assert sent.json() == [1]
        async for told in news(address, client, "?show=1"):
            if "incremental-ids-are-new" in told.get("view", {}).get("html", ""):
                break
        view = told["view"]
        assert told["rows"][0]["open"]
        assert "under way" in view["html"]
        step = next(step for step in view["playback"]["steps"] if step["illegal"])
        assert step["event"] == 5
        await client.post(f"{address}stop", json={"number": 1}, headers=origin(address))
        async for told in news(address, client, "?show=1"):
            if not told["rows"][0]["open"]:
                break
        assert told["rows"][0]["state"] == "hung-up"

    inspected(tmp_path, talk, "token-lost")


def test_one_that_waits_is_told_what_changed_and_memory_is_bounded(tmp_path: Path) -> None:
    async def talk(address: str, client: httpx.AsyncClient) -> None:
        one = {"dialect": DIALECT, "body": json.dumps({**BODY, "stream": False})}
        posted = {"requests": [one] * 300}
        numbers = (await client.post(f"{address}send", json=posted, headers=origin(address))).json()
        assert numbers == list(range(1, 301))
        again = await client.post(f"{address}send", json={"requests": [one] * 900}, headers=origin(address))
        assert again.status_code == 400
        assert "1000 requests wait" in again.json()["error"]
        rows: dict[int, dict[str, Any]] = {}
        async for told in news(address, client):
            rows |= {row["number"]: row for row in told["rows"]}
            for number in told["gone"]:
                del rows[number]
            if not any(row["open"] for row in rows.values()):
                break
        last = {"requests": [one]}
        await client.post(f"{address}send", json=last, headers=origin(address))
        async for told in news(address, client):
            assert len(told["rows"]) <= 200
            break

    inspected(tmp_path, talk)


def test_presets_are_what_scenarios_would_ask(tmp_path: Path) -> None:
    async def talk(address: str, client: httpx.AsyncClient) -> None:
        names = (await client.get(f"{address}presets")).json()
        assert f"{DIALECT}/greedy-stream/stream" in names
        preset = (await client.get(f"{address}preset/{DIALECT}/greedy-stream/stream")).json()
        assert preset["path"] == "/generate"
        assert preset["body"]["stream"] is True
        assert (await client.get(f"{address}preset/nothing")).status_code == 400
        page = await client.get(f"{address}requirement/incremental-ids-are-new")
        assert "MUST carry the output ids" in page.text

    inspected(tmp_path, talk)


@pytest.mark.parametrize("dialect", load_dialects().values(), ids=lambda dialect: dialect.name)
def test_each_form_has_every_field_of_its_dialect_with_its_sentence(dialect: Any) -> None:
    made = form(dialect, "a-model")
    fields = {field["name"]: field for field in made["fields"]}
    assert (
        dialect.table["request"]["fields"].keys() | dialect.table["request"]["prompt"].keys() <= fields.keys()
    )
    assert all(field["says"] and field["at"] for field in fields.values())
    assert made["body"]
    request = HttpRequest(made["method"], made["path"], made["body"])
    assert dialect.read_asked(request).stream


def hostile() -> Exchange:
    event = {"text": EVIL, "output_ids": [EVIL], "meta_info": {"id": EVIL, EVIL: [EVIL]}}
    data = f"data: {json.dumps(event)}\n\n".encode() * 3
    headers = (("content-type", "text/event-stream"),)
    request = HttpRequest("POST", "/generate", BODY)
    return Exchange(
        f"by-hand/{EVIL}", request, "by-hand", 200, headers, (Read(0.1, data),), Ending.COMPLETE, EVIL
    )


def test_what_a_server_wrote_stays_inert() -> None:
    bench = Bench(load_dialects())
    view = bench(Question(Answer(hostile(), DIALECT), 1, Answer(hostile(), DIALECT)))
    assert view["violated"]
    assert "<script" not in view["html"]
    assert "<img" not in view["html"]
    assert "onerror=alert(1)&gt;" in view["html"]
    assert "\x1b" not in view["html"] + json.dumps(view["playback"], ensure_ascii=False)
    assert "\u202e" not in view["html"] + json.dumps(view["playback"], ensure_ascii=False)


def test_two_answers_are_aligned_and_the_first_difference_is_named() -> None:
    bench = Bench(load_dialects())
    one, lost, other = (
        Answer(made, DIALECT) for made in (whole("w"), streamed("s", forgets_an_id=True), streamed("t"))
    )
    beside = bench(Question(lost, 1, one))
    assert "token 3 is 111, and 108 in w" in beside["html"]
    assert beside["playback"]["ribbons"][0]["rows"][1]["faults"].startswith("1 missing (position")
    same = bench(Question(other, 1, one))
    assert "their tokens and texts are the same" in same["html"]


def test_half_a_document_violates_nothing_and_half_a_stream_only_what_it_shows() -> None:
    bench = Bench(load_dialects())
    document = whole("w")
    (read,) = document.reads
    half = Exchange(
        "w",
        document.request,
        "by-hand",
        200,
        document.headers,
        (Read(0.1, read.data[:40]),),
        Ending.CANCELLED,
    )
    assert bench(Question(Answer(half, DIALECT, under_way=True)))["violated"] == []
    stream = streamed("s")
    for count in range(len(stream.reads)):
        so_far = replace(stream, reads=stream.reads[:count], ending=Ending.CANCELLED)
        assert bench(Question(Answer(so_far, DIALECT, under_way=True)))["violated"] == []


def test_what_is_kept_has_a_name_of_its_own(tmp_path: Path) -> None:
    found = streamed("by-hand/1", forgets_an_id=True)
    for name in ("Lost id!", "lost-id", "../lost id"):
        lines = keep(tmp_path, name, [found], "http://127.0.0.1:1", ("--model", "m"))
        assert lines[-1].startswith("tokenwire check --target http://127.0.0.1:1 --model m --scenario-file")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"lost-id.yaml", "lost-id-2.yaml", "lost-id-3.expected.yaml"} <= names
    assert "cumulative-ids-extend" in (tmp_path / "lost-id.expected.yaml").read_text("utf-8")
