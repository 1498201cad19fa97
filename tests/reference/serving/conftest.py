"""What the tests of the reference's serving half share: an engine that follows a script, and tokenizers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from transformers import AutoTokenizer

from tokenwire_reference.core.hooks import Adapters
from tokenwire_reference.core.load import EngineLoad, QueueFullError
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import FinishReason, Request, Row
from tokenwire_reference.core.request_extras import EMBEDDING, WANTS_EMBEDDING
from tokenwire_reference.doors.app import build_app
from tokenwire_reference.doors.request_manager import RequestManager
from tokenwire_reference.doors.served import Served
from tokenwire_reference.running.engine_runner import EngineThread
from tokenwire_reference.server_args import ServerArgs

MODELS = Path(__file__).parents[3] / "fixtures" / "models"


class ScriptedEngine:
    """An engine that gives each request the ids of a script, some for each step, and then its end.

    Every id comes with a logprob entry where asked for, and with the customized_info that `info` makes of
    (position, id).
    """

    def __init__(
        self,
        script: Sequence[Sequence[int]],
        *,
        finish: FinishReason | None = None,
        info: Callable[[int, int], dict[str, Any]] = lambda position, token_id: {},
    ) -> None:
        self.script = [list(ids) for ids in script]
        self.finish = finish or FinishReason("length", length=sum(len(ids) for ids in script))
        self.info = info
        self.live: dict[str, tuple[Request, int]] = {}
        self.aborted: list[str] = []
        self.flushed = 0
        self.weight_version = "default"
        self.paused: str | None = None
        self.embedding = [0.6, 0.0, 0.8]
        self.too_many: str | None = None
        """The rid that a full queue refuses."""

    @property
    def idle(self) -> bool:
        return not self.live or self.paused is not None

    def add(self, request: Request) -> None:
        if not request.prompt_token_ids:
            raise ValueError("the prompt is empty")
        if request.rid == self.too_many:
            raise QueueFullError("The request queue is full.")
        if request.return_logprob and request.logprob_start_len == 0:
            first, *rest = ([-0.25, i, None] for i in request.prompt_token_ids)
            request.prompt_series["input_token_logprobs"] = [[None, first[1], None], *rest]
            request.prompt_series["input_token_ranks"] = [None, *(3 for _ in rest)]
            if request.top_logprobs_num:
                tops = [[entry] * request.top_logprobs_num for entry in rest]
                request.prompt_series["input_top_logprobs"] = [None, *tops]
        self.live[request.rid] = (request, 0)

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)
        if rid in self.live:
            self.live[rid][0].finish = FinishReason("abort", message="Aborted")

    def step(self) -> list[Request]:
        touched = []
        if self.paused:
            return []
        for rid, (request, at) in list(self.live.items()):
            if WANTS_EMBEDDING.of(request) and request.finish is None:
                EMBEDDING.put(request, self.embedding)
                request.finish = FinishReason("length", length=0)
            if request.finish is None:
                for token_id in self.script[at]:
                    self._append(request, token_id)
                if at + 1 == len(self.script):
                    request.finish = self.finish
            self.live[rid] = (request, at + 1)
            if request.finish is not None:
                del self.live[rid]
            touched.append(request)
        return touched

    def _append(self, request: Request, token_id: int) -> None:
        entry = [-0.5, token_id, None]
        entries: dict[str, Any] = {"output_token_logprobs": entry} if request.return_logprob else {}
        if request.return_logprob and request.top_logprobs_num:
            entries["output_top_logprobs"] = [entry] * request.top_logprobs_num
        if request.return_logprob and request.token_ids_logprob:
            entries["output_token_ids_logprobs"] = [[-0.5, i, None] for i in request.token_ids_logprob]
        if request.return_logprob and request.return_ranks:
            entries["output_token_ranks"] = 1
        request.append(token_id, entries, self.info(len(request.output_ids), token_id))

    def pause(self, mode: str) -> None:
        self.paused = mode

    def continue_generation(self) -> None:
        self.paused = None

    def rename_weights(self, version: str) -> None:
        self.weight_version = version

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self.live), waiting=0, used_tokens=32, total_tokens=128)

    def flush_cache(self) -> bool:
        self.flushed += 1
        return self.idle


@pytest.fixture
def scripted_engine() -> type[ScriptedEngine]:
    return ScriptedEngine


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """The byte-level tokenizer of the tiny-qwen2 fixture: some of its ids are single bytes."""
    return AutoTokenizer.from_pretrained(MODELS / "tiny-qwen2")


@pytest.fixture(scope="session")
def llama_tokenizer() -> Any:
    """The tokenizer of the tiny-llama fixture."""
    return AutoTokenizer.from_pretrained(MODELS / "tiny-llama")


@dataclass(frozen=True)
class ScriptedModel:
    vocab_size: int = 2000
    context_length: int = 512
    eos_token_ids: frozenset[int] = frozenset({2})
    adapters: Adapters = Adapters()  # noqa: RUF009 - it has no state

    def other_weights(self, path: str) -> Any:
        raise ValueError(f"a script has no weights for {path} to replace")


@dataclass(frozen=True)
class Call:
    """One request to the app."""

    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None


@pytest.fixture
def answers(tiny_tokenizer) -> Callable[..., list[httpx.Response]]:
    """Send calls, all at once, to the routes in front of an engine, and give the answers."""

    def send(engine: ScriptedEngine, *calls: Call, tokenizer: Any = tiny_tokenizer, **flags: Any):
        return asyncio.run(_send(engine, calls, tokenizer, ServerArgs(model_path="scripted", **flags)))

    return send


@pytest.fixture
def answer(answers) -> Callable[..., httpx.Response]:
    """Post one body to a path in front of an engine, and give the answer."""

    def post(engine: ScriptedEngine, path: str, body: Any, **flags: Any) -> httpx.Response:
        (response,) = answers(engine, Call(path, body), **flags)
        return response

    return post


async def _send(engine, calls, tokenizer, args) -> list[httpx.Response]:
    async with serving(engine, tokenizer, args) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://reference") as client:
            return await asyncio.gather(
                *(
                    client.request(call.method, call.path, json=call.body, headers=call.headers)
                    if call.content is None
                    else client.request(call.method, call.path, content=call.content, headers=call.headers)
                    for call in calls
                )
            )


@contextlib.asynccontextmanager
async def serving(engine: ScriptedEngine, tokenizer: Any, args: ServerArgs) -> AsyncIterator[Starlette]:
    """The routes in front of an engine that runs as long as this is open."""
    loop = asyncio.get_running_loop()
    streamer = OutputStreamer(stream_interval=args.stream_interval)

    async def deliver_and_let_them_read(rows: Sequence[Row]) -> None:
        """Let every consumer take a step's rows before the next step: no stream is coalesced by chance."""
        manager.deliver(rows)
        for _ in range(100):
            await asyncio.sleep(0)

    def deliver(rows: Sequence[Row]) -> None:
        asyncio.run_coroutine_threadsafe(deliver_and_let_them_read(rows), loop).result()

    thread = EngineThread(engine, streamer, deliver)
    manager = RequestManager(thread, tokenizer)
    served = Served(args, ScriptedModel(), tokenizer, engine, thread, manager)
    thread.start()
    try:
        yield build_app(served)
    finally:
        # Not on the loop: the thread may wait for it to deliver its last rows.
        await asyncio.to_thread(thread.stop)
        await asyncio.to_thread(served.constraining.close)


def events(response: httpx.Response) -> list[Any]:
    """The values of a stream. Its framing must be exact: data lines, blank lines, `[DONE]` at the end."""
    *parts, done, rest = response.content.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(part.startswith(b"data: {") and b"\n" not in part for part in parts)
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


@pytest.fixture
def read_events() -> Callable[[httpx.Response], list[Any]]:
    return events


@pytest.fixture(name="serving")
def _serving() -> Callable[..., contextlib.AbstractAsyncContextManager[Starlette]]:
    return serving


@pytest.fixture
def call() -> type[Call]:
    return Call
