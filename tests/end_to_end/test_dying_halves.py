"""Prefill and decode apart: one of the two dies or the link between them is cut, in each phase of a request.

A client gets one honest error or a whole answer, and who is left has nothing of the request any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from typing import Any

import httpx
import pytest
from forked_program import served_forked

PROMPT = [7 + position % 90 for position in range(50)]
PHASES = {"before the transfer": 0, "in the transfer": 0, "after the first token": 1, "while it decodes": 5}
"""And how many events the client has read by then."""
ROOMS = count(1)
SMALL = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
"""So that a client that stops reading stops the answer before its end."""


class Link:
    """Lies between the two servers; stops where it is told to, and breaks when it is told to."""

    def __init__(self, port: int, phase: str) -> None:
        self._port = port
        self._phase = phase
        self._broken = asyncio.Event()
        self.stopped = asyncio.Event()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readline()
        behind, before = await asyncio.open_connection("127.0.0.1", self._port)
        before.write(asked)
        if self._phase != "before the transfer":
            given = await behind.read() if self._phase != "in the transfer" else await behind.readexactly(40)
            writer.write(given)
        if not PHASES[self._phase]:
            self.stopped.set()
            await self._broken.wait()
        for end in (before, writer):
            end.close()

    def break_off(self) -> None:
        self._broken.set()


class Halves:
    """Two servers, of which the test asks for the same as a router would, with a link between them."""

    def __init__(self, urls: Mapping[str, str], tokens: int, link: Link, port: int) -> None:
        self.urls = urls
        self.tokens = tokens
        self.link = link
        self._shared = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": next(ROOMS)}

    def body(self) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": self.tokens, "ignore_eos": True}
        fields = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, "stream": True}
        return {**fields, **self._shared}

    async def load(self, half: str) -> dict[str, Any]:
        """What one of them has to do, without what describes it."""
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.get(f"{self.urls[half]}/v1/loads")
        (load,) = answer.json()["loads"]
        waiting = {name: count for name, count in load["disaggregation"].items() if name != "mode"}
        return {**waiting, "running": load["num_running_reqs"], "tokens": load["num_used_tokens"]}


IDLE = {"running": 0, "tokens": 0}
FREE = {
    "prefill": {**IDLE, "prefill_inflight_queue_reqs": 0},
    "decode": {**IDLE, "decode_transfer_queue_reqs": 0},
}


async def until_free(halves: Halves, half: str) -> None:
    """Ask until a server has nothing of the request: its end may be told before its pages are counted."""
    for _ in range(200):
        if (load := await halves.load(half)) == FREE[half]:
            return
    pytest.fail(f"{half} still has {load}")


def flags(half: str) -> tuple[str, ...]:
    return (
        "--disaggregation-mode",
        half,
        "--disaggregation-bootstrap-port",
        "0",
        "--send-buffer-bytes",
        "4096",
    )


@pytest.fixture(scope="module")
def lasting() -> Iterator[Callable[[str], tuple[str, Any]]]:
    """Servers that outlive a test, one for each half."""
    with ExitStack() as stack:
        started: dict[str, tuple[str, Any]] = {}

        def start(half: str) -> tuple[str, Any]:
            if half not in started:
                started[half] = stack.enter_context(served_forked(*flags(half)))
            return started[half]

        yield start


@contextlib.asynccontextmanager
async def linked(urls: Mapping[str, str], tokens: int, phase: str) -> AsyncIterator[Halves]:
    async with httpx.AsyncClient() as client:
        info = (await client.get(f"{urls['prefill']}/server_info")).json()["tokenwire_reference"]
    link = Link(info["disaggregation_bootstrap_port"], phase)
    async with await asyncio.start_server(link.pass_on, "127.0.0.1", 0) as listening:
        yield Halves(urls, tokens, link, listening.sockets[0].getsockname()[1])


Outcome = tuple[int, list[Any]]


async def read(halves: Halves, phase: str, end: Callable[[], None]) -> Outcome:
    """Ask both, and bring about the end in a phase: status and events of what was read."""
    transport = httpx.AsyncHTTPTransport(socket_options=SMALL)
    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        prefilling = client.post(f"{halves.urls['prefill']}/generate", json=halves.body())
        decoding = asyncio.create_task(_decode(client, halves, phase, end))
        if phase == "before the transfer":
            await halves.link.stopped.wait()
            end()
            halves.link.break_off()
        with contextlib.suppress(httpx.TransportError):
            await prefilling
        if phase == "in the transfer":
            await halves.link.stopped.wait()
            end()
            halves.link.break_off()
        return await decoding


async def _decode(client: httpx.AsyncClient, halves: Halves, phase: str, end: Callable[[], None]) -> Outcome:
    events: list[Any] = []
    status = 0
    with contextlib.suppress(httpx.TransportError):
        async with client.stream("POST", f"{halves.urls['decode']}/generate", json=halves.body()) as answer:
            status = answer.status_code
            if status != 200:
                return status, [(await answer.aread()).decode()]
            async for line in answer.aiter_lines():
                if line:
                    events.append(line.removeprefix("data: "))
                    if len(events) == PHASES[phase]:
                        end()
    return status, events


def killed(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["prefill", "decode", "the link"])
def test_one_honest_end_and_nothing_is_left(lasting: Callable[[str], Any], victim: str, phase: str) -> None:
    tokens = 400 if victim == "decode" else 30  # more than a client can leave unread
    with ExitStack() as stack:
        servers = {
            half: stack.enter_context(served_forked(*flags(half))) if half == victim else lasting(half)
            for half in ("prefill", "decode")
        }

        def end() -> None:
            if victim in servers:
                killed(servers[victim][1])

        async def story() -> None:
            urls = {half: url for half, (url, _) in servers.items()}
            async with linked(urls, tokens, phase) as halves:
                status, events = await read(halves, phase, end)
                for half in set(servers) - {victim}:
                    await until_free(halves, half)
            if victim == "decode":
                assert "[DONE]" not in events
                assert (status, len(events) >= PHASES[phase]) == (200 if PHASES[phase] else 0, True)
            elif PHASES[phase]:
                assert (status, events[-1]) == (200, "[DONE]")
                assert json.loads(events[-2])["meta_info"]["completion_tokens"] == tokens
            else:
                (error,) = events
                assert status == 500
                assert "did not hand over room" in error

        asyncio.run(story())
