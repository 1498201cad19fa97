"""The inspector without a browser: who may ask its server, what a page is told, and what stays inert."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from by_hand import BODY, DIALECT, Page, inspected
from recorded import streamed, whole

from tokenwire.demo_server import demo_server
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Delivery
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire_live.inspecting import exchanges, inspector
from tokenwire_live.inspecting.bench import TARGET, TWIN, WORKER, Answer, Bench, Question
from tokenwire_live.inspecting.form import form
from tokenwire_live.inspecting.keeping import keep

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e\u2028&amp;"


def test_nobody_is_answered_without_the_token_the_host_and_the_origin(tmp_path: Path) -> None:
    async def talk(page: Page) -> None:
        address, client, origin = page.address, page.client, page.origin

        async def status(method: str, url: str, **headers: str) -> int:
            return (await client.request(method, url, headers=headers, content=b'{"number": 1}')).status_code

        root = str(httpx.URL(address).copy_with(path="/"))
        assert await status("GET", address) == 200
        assert await status("GET", address, **origin) == 200
        assert await status("GET", root) == 404
        assert await status("GET", f"{root}{'x' * 32}/") == 404
        assert await status("GET", address, host="evil.example") == 403
        assert await status("GET", f"{address}events", origin="http://evil.example") == 403
        assert await status("POST", f"{address}stop", origin="http://evil.example") == 403
        assert await status("POST", f"{address}stop", origin="null") == 403
        assert await status("POST", f"{address}stop") == 403
        assert await status("POST", f"{address}stop", **origin) == 400  # there is no such request
        assert await status("GET", f"{address}nothing") == 404
        document = (await client.get(address)).text
        assert "script-src 'sha256-" in document.replace("&#39;", "'")
        assert re.findall(r"""(?:src|href)=["']?([^"' >]+)""", document) == []
        assert "url(" not in document

    with demo_server() as url:
        inspected(url, tmp_path, talk)


def test_an_answer_is_told_while_it_grows_and_what_it_violates_at_its_event(tmp_path: Path) -> None:
    async def talk(page: Page) -> None:
        assert await page.send({**BODY, "sampling_params": {"max_new_tokens": 4000}}) == [1]
        async for news in page.news("?show=1"):
            if "incremental-ids-are-new" in news.get("view", {}).get("html", ""):
                break
        view = news["view"]
        assert news["rows"][0]["open"]
        assert "under way" in view["html"]
        step = next(step for step in view["playback"]["steps"] if step["illegal"])
        assert step["event"] == 5
        async for news in page.news("?show=1"):
            row = next(iter(news["rows"]), {})
            if "incremental-ids-are-new" in row.get("violated", ()):
                break
        assert row["open"]
        assert row["tokens"] > 5
        await page.post("stop", {"number": 1})
        assert "hung-up" in await page.ended(1)

    with demo_server(("token-lost",)) as url:
        inspected(url, tmp_path, talk)


def test_requests_that_wait_and_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "_MOST_ROWS", 10)
    monkeypatch.setattr(exchanges, "_MOST_WAITING", 24)

    async def talk(page: Page) -> None:
        whole_answer = {**BODY, "stream": False}
        assert await page.send(*[whole_answer] * 20) == list(range(1, 21))
        assert "24 requests are already waiting" in (await page.send(*[whole_answer] * 30))["error"]
        rows: dict[int, dict[str, Any]] = {}
        async for news in page.news():
            rows |= {row["number"]: row for row in news["rows"]}
            for number in news["gone"]:
                del rows[number]
            if not any(row["open"] for row in rows.values()):
                break
        await page.send(whole_answer)
        async for news in page.news():
            assert len(news["rows"]) == 10
            break

    with demo_server() as url:
        inspected(url, tmp_path, talk)


def test_many_streams_cost_the_page_a_message_for_all_of_them_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulses: list[float] = []

    async def pulse(seconds: float) -> None:
        pulses.append(seconds)
        await asyncio.sleep(seconds)

    monkeypatch.setattr(inspector, "_pulse", pulse)

    async def talk(page: Page) -> None:
        streams = await page.send(*[BODY] * 30)
        rows: dict[int, dict[str, Any]] = {}
        messages = 0
        async for news in page.news("?show=1"):
            messages += 1
            rows |= {row["number"]: row for row in news["rows"]}
            assert len(news["rows"]) <= len(streams)
            assert messages <= len(pulses) + 1
            if not any(row["open"] for row in rows.values()):
                break
        assert {row["state"] for row in rows.values()} == {"complete"}
        assert set(pulses) == {0.1}

    with demo_server() as url:
        inspected(url, tmp_path, talk)


def test_intervals_are_held_beside_each_other_and_a_target_beside_its_worker(tmp_path: Path) -> None:
    async def talk(page: Page) -> None:
        bodies = ({**BODY, "sampling_params": {"max_new_tokens": 20, "stream_interval": n}} for n in (1, 8))
        by_one, by_eight = await page.send(*bodies)
        beside = await page.ended(by_one, by_eight)
        assert f"by-hand/{by_one}: status 200" in beside
        assert "Their tokens and texts are the same" in beside.replace("As far as both have come, t", "T")
        behind = await page.send(BODY, to=WORKER)
        assert "First difference: choice 0, token 5 is" in await page.ended(by_one, behind[0])
        no_id = await page.post("abort", {"number": by_one})
        assert no_id == "it has no id: give its request one in the form, and send it again"
        assert "does not support dialect" in (await page.send(BODY, to="nowhere"))["error"]

    with demo_server() as url, demo_server(("token-lost",)) as worker:
        inspected(url, tmp_path, talk, worker=worker)


def test_a_target_is_held_beside_its_twin_and_what_was_found_is_kept_for_both(tmp_path: Path) -> None:
    async def talk(page: Page) -> None:
        (ours,), (theirs,) = [await page.send(BODY, to=name) for name in (TARGET, TWIN)]
        assert "First difference: choice 0, token 5 is" in (beside := await page.ended(ours, theirs))
        assert "no sentence is violated" in beside
        lines = await page.post("keep", {"numbers": [ours, theirs], "name": "both"})
        for number, url in enumerate((target, twin)):
            assert f"{url}/generate" in lines[number]
            assert lines[number - 2].startswith(f"tokenwire check --target {url} ")

    with demo_server() as target, demo_server(("token-lost",)) as twin:
        inspected(target, tmp_path, talk, twin=twin)


def test_a_server_that_generates_is_asked_for_its_results_too(tmp_path: Path) -> None:
    dialect = load_dialects()["openai-embeddings"]

    async def talk(page: Page) -> None:
        assert f"<option>{dialect.name}</option>" in (await page.client.get(page.address)).text
        presets = (await page.client.get(f"{page.address}presets")).json()
        assert {name.split("/")[0] for name in presets} == {DIALECT, dialect.name}
        asked = {"dialect": dialect.name, "body": json.dumps({"model": "ours", "input": ["a"]})}
        sent = await page.post("send", {"requests": [asked, asked | {"to": TWIN}]})
        assert f"by-hand/{sent[0]}: status 404" in await page.ended(*sent)
        ours, theirs, *_ = await page.post("keep", {"numbers": sent, "name": "both"})
        assert '"model":"ours"' in ours
        assert '"model":"theirs"' in theirs

    found = {TARGET: {"results": (dialect,), "model": "ours"}, TWIN: {"model": "theirs"}}
    with demo_server() as url:
        inspected(url, tmp_path, talk, found=found, scenario=("greedy-stream", "results"), twin=url)


def test_presets_are_what_scenarios_would_ask(tmp_path: Path) -> None:
    async def talk(page: Page) -> None:
        async def got(path: str) -> httpx.Response:
            return await page.client.get(f"{page.address}{path}")

        assert f"{DIALECT}/greedy-stream/stream" in (await got("presets")).json()
        preset = (await got(f"preset/{DIALECT}/greedy-stream/stream")).json()
        assert preset["path"] == "/generate"
        assert preset["body"]["stream"] is True
        assert (await got("preset/nothing")).status_code == 400
        assert "MUST carry the output ids" in (await got("requirement/incremental-ids-are-new")).text

    with demo_server() as url:
        inspected(url, tmp_path, talk)


@pytest.mark.parametrize("dialect", load_dialects().values(), ids=lambda dialect: dialect.name)
def test_each_form_has_every_field_of_its_dialect_with_its_sentence(dialect: Any) -> None:
    made = form(dialect, "a-model")
    fields = {field["name"]: field for field in made["fields"]}
    assert (
        dialect.table["request"]["fields"].keys() | dialect.table["request"]["prompt"].keys() <= fields.keys()
    )
    assert all(field["says"] and field["at"] for field in fields.values())
    assert not any(mark in field["says"] for field in fields.values() for mark in ("*", "`"))
    assert made["body"]
    request = HttpRequest(made["method"], made["path"], made["body"])
    assert dialect.read_asked(request).stream is not dialect.gives_results


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
    answer, lost, other = (
        Answer(made, DIALECT) for made in (whole("w"), streamed("s", forgets_an_id=True), streamed("t"))
    )
    beside = bench(Question(lost, 1, answer))
    assert "token 3 is 111, and 108 in w" in beside["html"]
    assert beside["playback"]["ribbons"][0]["rows"][1]["faults"].startswith("1 missing (position")
    same = bench(Question(other, 1, answer))
    assert "their tokens and texts are the same" in same["html"]


@pytest.mark.parametrize("shown", [0, 1])
def test_a_gateway_is_judged_beside_its_worker_and_nobody_beside_a_twin(shown: int) -> None:
    """The gateway lost a field. Two servers that differ are no server that does not repeat itself."""
    bench = Bench(load_dialects())
    gateway, worker = whole("g"), whole("w")
    worker = replace(worker, reads=(Read(0.1, worker.body[:-1] + b', "beyond": 1}'),))

    def violated(other: str) -> list[str]:
        sides = [Answer(gateway, DIALECT), Answer(worker, DIALECT, to=other)]
        return bench(Question(sides[shown], 1, sides[1 - shown]))["violated"]

    assert violated(WORKER) == ["gateway-keeps-every-field"]
    assert violated(TWIN) == []


def test_each_server_is_read_as_it_says_that_it_delivers() -> None:
    announced = {
        TARGET: Advertised(delivery=Delivery.CUMULATIVE),
        TWIN: Advertised(delivery=Delivery.INCREMENTAL),
    }
    bench = Bench(load_dialects(), announced)
    stream = replace(streamed("s"), reads=(Read(0.1, b'data: {"output_ids": [7]}\n\n' * 2),))
    counted = {name: bench(Question(Answer(stream, DIALECT, to=name)))["tokens"] for name in announced}
    assert counted == {TARGET: 1, TWIN: 2}


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
        url = "http://127.0.0.1:1"
        lines = keep(tmp_path, name, [(found, url)], [url], ("--model", "m"))
        assert lines[-1].startswith("tokenwire check --target http://127.0.0.1:1 --model m --scenario-file")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"lost-id.yaml", "lost-id-2.yaml", "lost-id-3.expected.yaml"} <= names
    assert "cumulative-ids-extend" in (tmp_path / "lost-id.expected.yaml").read_text("utf-8")
