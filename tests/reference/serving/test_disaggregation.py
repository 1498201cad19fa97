"""Prefill and decode apart: answers of two servers that share each request, and of one without the other.

Tests share servers of equal flags. Some compare what is cached, so the others have servers of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any

import httpx
import pytest

from tokenwire_reference.doors.app import build_app
from tokenwire_reference.doors.disaggregation import Prefill
from tokenwire_reference.loading import load_model
from tokenwire_reference.serve import assemble
from tokenwire_reference.server_args import ServerArgs

PROMPT = [7 + position % 90 for position in range(50)]
"""Three full pages of 16 ids, and what is left of it."""
GREEDY = {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}
HALVES = {
    "whole": {},
    "prefill": {"disaggregation_mode": "prefill"},
    "decode": {"disaggregation_mode": "decode", "enable_hierarchical_cache": False},
}
LONG = 60.0
APART = {"disaggregation_timeout_seconds": LONG, "enable_faults": True}
SHORT = {"disaggregation_timeout_seconds": 3}
Run = Callable[..., None]


@cache
def model(half: str) -> Any:
    """A model for all servers that are this half: to look at it costs most of what a server costs."""
    del half
    return load_model("builtin:tiny")


class Pair:
    """A server that does all by itself, and two that share each request, as a router would ask them."""

    def __init__(self, clients: dict[str, httpx.AsyncClient], engines: dict[str, Any], port: int) -> None:
        self.clients = clients
        self.engines = engines
        self.port = port
        self.rooms = iter(range(1, 1000))

    def shared(self, body: dict[str, Any], prompts: int = 0) -> dict[str, Any]:
        """A body as a router sends it to both; lists for a batch."""
        added = {
            "bootstrap_host": ["127.0.0.1"] * prompts or "127.0.0.1",
            "bootstrap_port": [self.port] * prompts or self.port,
            "bootstrap_room": [next(self.rooms) for _ in range(prompts)] or next(self.rooms),
        }
        return {**body, **added}

    async def ask(
        self, path: str, body: dict[str, Any], prompts: int = 0
    ) -> tuple[httpx.Response, httpx.Response]:
        """The answer of the one, and that of the server that decodes."""
        shared = self.shared(body, prompts)
        alone = await self.clients["whole"].post(path, json=body)
        halves = [self.clients[half].post(path, json=shared) for half in ("prefill", "decode")]
        _, decoded = await asyncio.gather(*halves)
        return alone, decoded


@contextlib.asynccontextmanager
async def pair(**flags: Any) -> AsyncIterator[Pair]:
    clients, engines, port = {}, {}, 0
    async with contextlib.AsyncExitStack() as stack:
        for name, half in HALVES.items():
            args = ServerArgs(**{**flags, **half})
            served = assemble(args, model(name), asyncio.get_running_loop())
            if isinstance(served.disaggregation, Prefill):
                port = await served.disaggregation.start("127.0.0.1", 0)
                stack.callback(served.disaggregation.server.close)
            served.runner.start()
            stack.push_async_callback(asyncio.to_thread, served.runner.stop)
            transport = httpx.ASGITransport(build_app(served), raise_app_exceptions=False)
            client = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=LONG)
            clients[name] = await stack.enter_async_context(client)
            engines[name] = served
        yield Pair(clients, engines, port)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Give `run(story, **flags)`: it awaits the story of servers with these flags, and no page is lost."""
    started: dict[str, Pair] = {}
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()

        async def await_story(story: Callable[[Pair], Any], flags: dict[str, Any]) -> None:
            if str(flags) not in started:
                started[str(flags)] = await stack.enter_async_context(pair(**flags))
            servers = started[str(flags)]
            await story(servers)
            for served in servers.engines.values():
                await asyncio.wrap_future(served.runner.call(served.engine.check_integrity))

        def run(story: Callable[[Pair], Any], **flags: Any) -> None:
            runner.run(await_story(story, flags))

        yield run
        runner.run(stack.aclose())


@contextlib.contextmanager
def replaced_forward(servers: Pair, half: str, make: Callable[[Any], Any]) -> Iterator[None]:
    model = servers.engines[half].engine.model
    true = model.forward
    model.forward = make(true)
    try:
        yield
    finally:
        model.forward = true


CHANGING = {"id", "created", "e2e_latency", "response_sent_to_client_ts"}


def lasting(value: Any) -> Any:
    """What two answers to one request have in common."""
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in CHANGING}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [lasting(httpx.Response(200, text=line).json()) for line in lines if line != "[DONE]"]


GENERATE = {"input_ids": PROMPT, "sampling_params": GREEDY}
SCORED = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}


@pytest.mark.parametrize(
    ("path", "body", "prompts"),
    [
        ("/generate", GENERATE, 0),
        ("/generate", {**GENERATE, "return_logprob": True}, 0),
        ("/generate", {**GENERATE, **SCORED}, 0),
        ("/generate", {**GENERATE, "input_ids": PROMPT[:5]}, 0),
        ("/generate", {**GENERATE, "input_ids": PROMPT[:48]}, 0),
        ("/generate", {**GENERATE, "input_ids": [PROMPT, PROMPT[::-1]]}, 2),
        (
            "/generate",
            {**GENERATE, "sampling_params": {**GREEDY, "n": 2, "temperature": 1.0, "sampling_seed": 3}},
            0,
        ),
        ("/generate", {**GENERATE, "sampling_params": {**GREEDY, "max_new_tokens": 0}}, 0),
        ("/v1/completions", {"model": "m", "prompt": PROMPT, "max_tokens": 6, "temperature": 0}, 0),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "tell me"}]}, 0),
    ],
)
def test_the_answer_is_that_of_one_server(run: Run, path: str, body: dict[str, Any], prompts: int) -> None:
    if path.endswith("chat/completions"):
        body = {**body, "max_tokens": 6, "temperature": 0, "logprobs": True, "return_prompt_token_ids": True}

    async def story(servers: Pair) -> None:
        for _ in range(2):  # the second time a prefix is cached, and both tell so
            alone, decoded = await servers.ask(path, body, prompts)
            assert decoded.status_code == alone.status_code == 200, decoded.text
            assert lasting(decoded.json()) == lasting(alone.json())

    run(story, sampling_backend="mirror")


def test_drafts_change_no_answer_of_two_servers(run: Run) -> None:
    repeated = {**GENERATE, "input_ids": [5, 6, 7, 8] * 10, **SCORED}

    async def story(servers: Pair) -> None:
        alone, decoded = await servers.ask("/generate", repeated)
        assert lasting(decoded.json()) == lasting(alone.json())

    run(story, speculative_algorithm="NGRAM")


def test_a_prompt_that_host_memory_holds_is_told_so_by_the_other_server(run: Run) -> None:
    async def story(servers: Pair) -> None:
        for prompt in (PROMPT, range(100, 150), range(150, 200), PROMPT):  # the first is evicted by then
            body = {**GENERATE, "input_ids": list(prompt)}
            alone, decoded = await servers.ask("/generate", body)
            assert lasting(decoded.json()) == lasting(alone.json())
        assert decoded.json()["meta_info"]["cached_tokens_details"]["host"] > 0

    run(story, enable_hierarchical_cache=True, max_total_tokens=128)


@pytest.mark.parametrize("incremental", [False, True])
def test_a_stream_is_that_of_one_server_and_its_first_token_comes_once(run: Run, incremental: bool) -> None:
    async def story(servers: Pair) -> None:
        body = {**GENERATE, **SCORED, "sampling_params": {**GREEDY, "stream_interval": 2}, "stream": True}
        alone, decoded = await servers.ask("/generate", body)
        assert events(decoded) == events(alone)
        assert [event["meta_info"]["completion_tokens"] for event in events(decoded)] == [1, 3, 5, 6]

    run(story, sampling_backend="mirror", **{"incremental_streaming_output": True} if incremental else {})


def test_full_pages_come_from_the_server_that_prefills(run: Run) -> None:
    computed: list[int] = []

    def counting(forward: Any) -> Any:
        def forward_and_count(batch: Any, cache: Any) -> Any:
            computed.extend(map(len, batch.spans))
            return forward(batch, cache)

        return forward_and_count

    async def story(servers: Pair) -> None:
        with replaced_forward(servers, "decode", counting):
            await servers.ask("/generate", GENERATE)

    run(story, **APART)
    assert computed[0] == 2, "of fifty ids, 48 lie in full pages"


def test_prefill_gives_one_token_and_its_own_answer(run: Run) -> None:
    async def story(servers: Pair) -> None:
        answer = await servers.clients["prefill"].post("/generate", json=servers.shared(GENERATE))
        assert answer.json()["meta_info"]["completion_tokens"] == 1

    run(story, **APART)


def test_a_fault_of_a_request_is_done_by_both_servers(run: Run) -> None:
    async def story(servers: Pair) -> None:
        body = servers.shared(GENERATE)
        fault = {"x-tokenwire-fault": "prefill-token-comes-twice"}
        clients = [servers.clients[half] for half in ("prefill", "decode")]
        halves = [client.post("/generate", json=body, headers=fault) for client in clients]
        lengths = [len(answer.json()["output_ids"]) for answer in await asyncio.gather(*halves)]
        assert lengths == [2, 7]

    run(story, **APART)


def test_a_server_that_prefills_and_is_not_there_is_one_honest_error(run: Run) -> None:
    async def story(servers: Pair) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        body = {**servers.shared(GENERATE), "bootstrap_port": port}
        answer = await servers.clients["decode"].post("/generate", json=body)
        assert answer.status_code == 500
        room = body["bootstrap_room"]
        assert f"the prefill server at 127.0.0.1:{port} did not hand over room {room}" in answer.text

    run(story, **APART)


def test_a_room_that_nobody_fills_ends_in_time(run: Run) -> None:
    async def story(servers: Pair) -> None:
        body = servers.shared(GENERATE)
        answer = await servers.clients["decode"].post("/generate", json=body)
        assert answer.status_code == 500
        assert (
            f"did not hand over room {body['bootstrap_room']}: it closed the connection" in answer.text
            or "within 3 s" in answer.text
        )

    run(story, **SHORT)


@contextlib.asynccontextmanager
async def silent_prefill(servers: Pair) -> AsyncIterator[asyncio.Event]:
    """In place of the server that prefills: takes what is asked of it, tells so, and hands nothing over."""
    asked, ended = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        true, servers.port = servers.port, server.sockets[0].getsockname()[1]
        yield asked
        servers.port = true
        ended.set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("named", [{"rid": "r"}, {"abort_all": True}])
def test_an_abort_that_comes_while_pages_are_waited_for_ends_the_request(
    run: Run, stream: bool, named: dict[str, Any]
) -> None:
    async def story(servers: Pair) -> None:
        client = servers.clients["decode"]
        async with silent_prefill(servers) as asked:
            body = servers.shared({**GENERATE, "rid": "r", "stream": stream})
            answering = asyncio.create_task(client.post("/generate", json=body))
            await asked.wait()
            twice = await client.post("/generate", json=servers.shared({**GENERATE, "rid": "r"}))
            assert (await client.post("/abort_request", json=named)).status_code == 200
            answer = await answering
        assert twice.status_code == 400
        assert "rid 'r' is the id of a request that has not ended" in twice.text
        assert answer.status_code == 200, answer.text
        *_, last = events(answer) if stream else [answer.json()]
        finish = last["meta_info"]["finish_reason"]
        assert (finish["type"], finish["message"]) == ("abort", "Abort in waiting queue")
        assert (last["output_ids"], servers.engines["decode"].manager.live) == ([], 0)

    run(story, **APART)


def test_one_of_two_samples_is_aborted_while_pages_are_waited_for(run: Run) -> None:
    async def story(servers: Pair) -> None:
        client = servers.clients["decode"]
        body = {**GENERATE, "rid": "r", "sampling_params": {**GREEDY, "n": 2}}
        shared = servers.shared(body)
        answering = asyncio.create_task(client.post("/generate", json=shared))
        manager = servers.engines["decode"].manager
        while manager.live < 2:  # the loop turns until it is known
            await asyncio.sleep(0)
        manager.abort(next(iter(manager._live)))
        await servers.clients["prefill"].post("/generate", json=shared)
        found = [sample["meta_info"]["finish_reason"]["type"] for sample in (await answering).json()]
        assert found == ["abort", "length"]

    run(story, **APART)


@pytest.mark.parametrize("half", ["prefill", "decode"])
def test_an_abort_that_comes_while_one_server_computes_ends_the_request_at_both(run: Run, half: str) -> None:
    async def story(servers: Pair) -> None:
        loop, begun, let_go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def held(forward: Any) -> Any:
            def wait_and_run(batch: Any, cache: Any) -> Any:
                loop.call_soon_threadsafe(begun.set)
                assert let_go.wait(LONG)
                return forward(batch, cache)

            return wait_and_run

        long = {"rid": "r", "sampling_params": {**GREEDY, "max_new_tokens": 400}}
        body = servers.shared({**GENERATE, **long})
        clients = [servers.clients[name] for name in ("prefill", "decode")]
        with replaced_forward(servers, half, held):
            halves = [asyncio.create_task(client.post("/generate", json=body)) for client in clients]
            await begun.wait()
            for client in clients:
                await client.post("/abort_request", json={"rid": "r"})
            let_go.set()
            prefilled, decoded = await asyncio.gather(*halves)
        assert (prefilled.status_code, decoded.status_code) == (200, 200)
        assert decoded.json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(decoded.json()["output_ids"]) < 400
        assert [served.manager.live for served in servers.engines.values()] == [0, 0, 0]

    run(story, **APART)


def test_pages_that_nobody_comes_for_are_dropped(run: Run) -> None:
    async def story(servers: Pair) -> None:
        client = servers.clients["prefill"]
        await client.post("/generate", json=servers.shared(GENERATE))
        seen = []
        while not seen or seen[-1]:
            (load,) = (await client.get("/v1/loads")).json()["loads"]
            seen.append(load["disaggregation"].pop("prefill_inflight_queue_reqs"))
            assert load["disaggregation"] == {"mode": "prefill"}
        assert set(seen) == {0, 1}

    run(story, **SHORT)


def test_a_prefill_that_fails_is_told_at_the_other_server(run: Run) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the pass failed")

    async def story(servers: Pair) -> None:
        shared = servers.shared(GENERATE)
        halves = [servers.clients[half].post("/generate", json=shared) for half in ("prefill", "decode")]
        with replaced_forward(servers, "prefill", lambda _: broken):
            prefilled, decoded = await asyncio.gather(*halves)
        assert (prefilled.status_code, decoded.status_code) == (500, 500)
        assert f"room {shared['bootstrap_room']}: RuntimeError: the pass failed" in decoded.text

    run(story, **APART)


def test_a_request_without_a_room_is_refused(run: Run) -> None:
    async def story(servers: Pair) -> None:
        for half in ("prefill", "decode"):
            answer = await servers.clients[half].post("/generate", json=GENERATE)
            assert answer.status_code == 400
            assert "bootstrap_room is [None]" in answer.text
            misfit = servers.shared(GENERATE, 3)
            assert (await servers.clients[half].post("/generate", json=misfit)).status_code == 400

    run(story, **APART)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bootstrap_host": "10.0.0.1"}, "bootstrap_host is '10.0.0.1', which this server may not ask"),
        ({"bootstrap_host": "metadata.internal"}, "permit it with --disaggregation-prefill-host"),
        ({"bootstrap_port": 99999}, "bootstrap_port: 99999 is greater than the maximum of 65535"),
        ({"bootstrap_port": -1}, "bootstrap_port: -1 is less than the minimum of 0"),
        ({"bootstrap_room": 2**63}, "bootstrap_room"),
        ({"bootstrap_room": -1}, "bootstrap_room: -1 is less than the minimum of 0"),
    ],
)
def test_a_host_that_nobody_named_is_not_contacted(
    run: Run, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("tokenwire_reference.doors.disaggregation.fetch_pages", None)

    async def story(servers: Pair) -> None:
        answer = await servers.clients["decode"].post("/generate", json=servers.shared(GENERATE) | fields)
        assert answer.status_code == 400
        assert words in answer.text
        while servers.engines["decode"].manager.live:
            await asyncio.sleep(0)

    run(story, **APART)


def test_a_host_that_the_operator_named_is_contacted_and_this_machine_is_not(run: Run) -> None:
    async def story(servers: Pair) -> None:
        body = {**servers.shared(GENERATE), "bootstrap_host": "nowhere.invalid"}
        answer = await servers.clients["decode"].post("/generate", json=body)
        assert answer.status_code == 500
        assert "did not hand over room" in answer.text
        answer = await servers.clients["decode"].post("/generate", json=servers.shared(GENERATE))
        assert answer.status_code == 400

    run(story, **SHORT, disaggregation_prefill_hosts=["nowhere.invalid"])


def test_two_servers_with_a_key_answer_as_one(run: Run) -> None:
    async def story(servers: Pair) -> None:
        for client in servers.clients.values():
            client.headers["authorization"] = "Bearer secret"
        alone, decoded = await servers.ask("/generate", GENERATE)
        assert decoded.status_code == alone.status_code == 200, decoded.text
        assert lasting(decoded.json()) == lasting(alone.json())

    run(story, api_key="secret")
