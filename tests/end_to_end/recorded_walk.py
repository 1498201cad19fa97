"""Ask the reference everything that a recorded server was asked, one capture after the other."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
from answer_shape import Answer, ValueComparison, shape_differences
from deliberate_differences import Difference

from tokenwire.capture import read_capture
from tokenwire.exchange import Ending, Exchange, HttpRequest
from tokenwire.recorder import Recorder
from tokenwire.spec_files import load_schema

FIXTURES = Path(__file__).parents[2] / "fixtures"
VERSIONS = {"0.5.23", "0.32.0 (cpu)"}
CONTEXT_LENGTH = 512
RETRACT_EVERY = 3
LONG_BUDGET = 480
"""New tokens of a request that is aborted while it runs: so many that it cannot have ended."""
TOKENS_BEFORE_ABORT = 48

SCHEMAS = {
    "sglang": {
        "/generate": "generate-request",
        "/v1/chat/completions": "chat-request",
        "/v1/completions": "completion-request",
        "/tokenize": "tokenize-request",
        "/v1/tokenize": "tokenize-request",
        "/detokenize": "detokenize-request",
        "/v1/detokenize": "detokenize-request",
    },
    "vllm": {
        "/inference/v1/generate": "vllm-generate-request",
        "/v1/chat/completions": "vllm-chat-request",
        "/v1/completions": "vllm-completion-request",
        "/tokenize": "tokenize-request",
        "/detokenize": "detokenize-request",
    },
}
GENERATING = {"/generate", "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"}
ALONE = {
    "/flush_cache",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/get_load",
    "/v1/loads",
}
"""Paths that disturb other requests, or tell of them."""
SHARED_PREFIXES = ("i_prefix", "i_chat_cached", "d_lp_twice")
"""Exchanges before which the cache was not flushed."""

ENDING = re.compile(r"(finish_reason\.|matched_stop|stop_reason)")
"""How a choice ended; left to chance where tokens are sampled."""


@dataclass(frozen=True)
class Captured:
    """One capture file, and how its server was started."""

    name: str
    """`sglang/A_base`"""
    path: Path
    family: str
    flags: tuple[str, ...]

    @property
    def cumulative(self) -> bool:
        return "--incremental-streaming-output" not in self.flags

    def exchanges(self) -> list[Exchange]:
        return list(read_capture(self.path))


def captures() -> list[Captured]:
    """The captures of SGLang 0.5.23 and of vLLM, with the flags that give the reference the same settings."""
    manifest = json.loads((FIXTURES / "manifest.json").read_text("utf-8"))["files"]
    return [
        Captured(
            f"{file.split('/')[0]}/{Path(file).name.removesuffix('.jsonl.gz')}",
            FIXTURES / file,
            entry["server"],
            _flags(file, entry),
        )
        for file, entry in manifest.items()
        if entry["version"] in VERSIONS
    ]


def _flags(file: str, entry: dict[str, Any]) -> tuple[str, ...]:
    flags = [flag for flag in entry["flags"] if flag != "--enable-return-hidden-states"]
    if flags[-2:] == ["--stream-interval", "1"]:
        del flags[-2:]
    if entry["mirror_sampler"]:
        flags += ["--sampling-backend", "mirror"]
    if "retract" in file:
        flags += ["--test-retract-interval", str(RETRACT_EVERY)]
    if entry["server"] == "vllm":
        flags += ["--api-dialect", "vllm"]
    model = ("--model", str(FIXTURES / entry["model"]), "--served-model-name", "tiny")
    return (*model, "--context-length", str(CONTEXT_LENGTH), *flags)


@dataclass
class Walk:
    """What came of asking again."""

    asked: int = 0
    invalid: int = 0
    """Exchanges whose request is not valid by the specification; they are not asked."""
    values: ValueComparison = field(default_factory=ValueComparison)
    differences: set[Difference] = field(default_factory=set)

    def compare(self, captured: Captured, recorded: Exchange, ours: Exchange) -> None:
        self.asked += 1
        theirs, mine = Answer.of(recorded), Answer.of(ours)
        found = set(shape_differences(theirs, mine))
        if not _greedy(recorded.request):
            found = {what for what in found if not ENDING.search(what)}
        to_the_end = recorded.ending is Ending.COMPLETE and recorded.name not in ABORTED
        if theirs.status == mine.status == 200 and to_the_end and _greedy(recorded.request):
            cumulative = captured.cumulative and recorded.request.path == "/generate"
            found |= self.values.differences(theirs, mine, cumulative=cumulative)
        self.differences |= {Difference(f"{captured.name}/{recorded.name}", what) for what in found}


def _greedy(request: HttpRequest) -> bool:
    if request.path not in GENERATING or not isinstance(request.body, dict):
        return False
    given = request.body.get("sampling_params", request.body) or {}
    return all(
        params.get("temperature") == 0 or params.get("top_k") == 1
        for params in (given if isinstance(given, list) else [given])
    )


@cache
def _validator(schema: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(load_schema(schema))


def _valid(family: str, request: HttpRequest) -> bool:
    """Whether a request keeps to the specification; one without a schema does."""
    schema = SCHEMAS[family].get(request.path)
    if schema is None or request.method in {"OPTIONS", "GET"}:
        return request.raw_body is None
    return isinstance(request.body, dict) and _validator(schema).is_valid(request.body)


async def _walk(captured: Captured, url: str) -> Walk:
    """Ask the server at `url` everything that was asked when this was captured."""
    outcome = Walk()
    valid = []
    for exchange in captured.exchanges():
        if _valid(captured.family, exchange.request):
            valid.append(exchange)
        else:
            outcome.invalid += 1
    staged = [exchange for exchange in valid if exchange.name in STAGES]
    alone = [e for e in valid if e not in staged and e.request.path in ALONE]
    alone.sort(key=lambda exchange: exchange.request.path == "/continue_generation")
    together = [e for e in valid if e not in staged and e not in alone]
    lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
    async with Recorder(url) as recorder:

        async def ask(exchange: Exchange) -> None:
            async with lanes[_lane(exchange)]:
                request = _fresh(captured, exchange)
                outcome.compare(captured, exchange, await recorder.send(exchange.name, "", request))

        await asyncio.gather(*map(ask, together))
        for exchange in alone:
            await ask(exchange)
        stage = Stage(recorder)
        for exchange in staged:
            ours = await STAGES[exchange.name](stage, exchange)
            outcome.compare(captured, exchange, ours)
    return outcome


def _lane(exchange: Exchange) -> str:
    """Exchanges of one lane are asked one after the other: equal request ids, prefixes that build up."""
    body = exchange.request.body if isinstance(exchange.request.body, dict) else {}
    rid = body.get("rid")
    return _cache_of(exchange.name) if rid is None else f"rid {rid}"


def _cache_of(name: str) -> str:
    return next((prefix for prefix in SHARED_PREFIXES if name.startswith(prefix)), name)


def _fresh(captured: Captured, exchange: Exchange) -> HttpRequest:
    """The request, with cached prefixes of its own: the recorded servers' caches were flushed before each."""
    request = exchange.request
    if captured.family == "vllm":
        # These recordings say POST also of what was a GET: a request without a body.
        return replace(request, method="GET") if request.body is None else request
    if request.path not in GENERATING or not isinstance(request.body, dict):
        return request
    own = f"{captured.name} {_cache_of(exchange.name)} {request.body.get('extra_key', '')}"
    return replace(request, body={**request.body, "extra_key": own})


class Stage:
    """Puts requests into the states that the recorded servers had them in."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def _post(self, path: str, body: Any) -> None:
        answer = await self._recorder.send(path, "", HttpRequest("POST", path, body))
        assert answer.status == 200, (path, answer.status, answer.body)

    async def _load(self) -> dict[str, Any]:
        answer = await self._recorder.send("load", "", HttpRequest("GET", "/v1/loads"))
        load: dict[str, Any] = json.loads(answer.body)["loads"][0]
        return load

    async def aborted(self, exchange: Exchange, rid: str | None) -> Exchange:
        """Abort (None: everything) once there is some output."""
        body = dict(exchange.request.body)
        body |= (
            {"sampling_params": {**body["sampling_params"], "max_new_tokens": LONG_BUDGET}}
            if "sampling_params" in body
            else {"max_tokens": LONG_BUDGET}
        )
        request = replace(exchange.request, body=body)
        asking = asyncio.create_task(self._recorder.send(exchange.name, "", request))
        while (await self._load())["num_used_tokens"] < TOKENS_BEFORE_ABORT:
            assert not asking.done(), asking.result()
        await self._post("/abort_request", {"abort_all": True} if rid is None else {"rid": rid})
        return await asking

    async def aborted_in_queue(self, exchange: Exchange) -> Exchange:
        """Abort a request that no step has seen."""
        await self._post("/pause_generation", {"mode": "in_place"})
        asking = asyncio.create_task(self._recorder.send(exchange.name, "", exchange.request))
        while (await self._load())["num_waiting_reqs"] < 1:
            assert not asking.done()
        await self._post("/abort_request", {"rid": exchange.request.body["rid"]})
        await self._post("/continue_generation", {})
        return await asking

    async def behind_others(self, exchange: Exchange, others: list[HttpRequest]) -> Exchange:
        """Ask while others wait for a paused engine."""
        await self._post("/pause_generation", {"mode": "in_place"})
        waiting = []
        for request in others:
            waiting.append(asyncio.create_task(self._recorder.send("other", "", request)))
            while (await self._load())["num_waiting_reqs"] < len(waiting):
                assert not waiting[-1].done()
        answer = await self._recorder.send(exchange.name, "", exchange.request)
        await self._post("/continue_generation", {})
        await asyncio.gather(*waiting)
        return answer


Staging = Callable[[Stage, Exchange], Awaitable[Exchange]]


def _abort(rid: str | None) -> Staging:
    return lambda stage, exchange: stage.aborted(exchange, rid)


def _in_queue(stage: Stage, exchange: Exchange) -> Awaitable[Exchange]:
    return stage.aborted_in_queue(exchange)


def _twice(stage: Stage, exchange: Exchange) -> Awaitable[Exchange]:
    return stage.behind_others(exchange, [exchange.request])


def _queue_full(stage: Stage, exchange: Exchange) -> Awaitable[Exchange]:
    body = exchange.request.body
    return stage.behind_others(
        exchange, [replace(exchange.request, body={**body, "rid": f"waiting-{i}"}) for i in range(2)]
    )


ABORTED: dict[str, Staging] = {
    "m_chat_nonstream_aborted": _abort("abort-7"),
    "m_chat_stream_abort": _abort("abort-c"),
    "m_nonstream_aborted": _abort("abort-5"),
    "m_nonstream_aborted_lp": _abort("abort-6"),
    "m_stream_abort_all": _abort(None),
    "m_stream_abort_n2": _abort("abort-n2"),
    "m_stream_abort_with_lp": _abort("abort-4"),
    "m_stream_aborted_by_rid": _abort("abort-1"),
    "m_stream_batch_abort_one": _abort("bb-1"),
    "m_stream_interval8_abort": _abort("abort-8"),
    "q_waiting_aborted": _in_queue,
    "q_waiting_aborted_chat": _in_queue,
    "q_waiting_aborted_chat_stream": _in_queue,
    "q_waiting_aborted_comp": _in_queue,
    "q_waiting_aborted_prompt_ids": _in_queue,
    "q_waiting_aborted_stream": _in_queue,
    "q_waiting_aborted_stream_lp": _in_queue,
}
STAGES: dict[str, Staging] = ABORTED | {
    "m_duplicate_rid_while_running": _twice,
    "m_duplicate_rid_stream_while_running": _twice,
    "q_queue_full_2": _queue_full,
    "q_queue_full_3": _queue_full,
}
"""Exchanges that need more than being sent, by name."""


def walk_all(serve: Callable[[tuple[str, ...]], AbstractContextManager[str]]) -> dict[str, Walk]:
    """Walk every capture, two servers at a time; equal flags share one. Gives the outcomes by capture."""
    by_flags: defaultdict[tuple[str, ...], list[Captured]] = defaultdict(list)
    for captured in captures():
        by_flags[captured.flags].append(captured)

    def walk_some(flags: tuple[str, ...]) -> dict[str, Walk]:
        with serve(flags) as url:
            return {captured.name: asyncio.run(_walk(captured, url)) for captured in by_flags[flags]}

    with ThreadPoolExecutor(2) as pool:
        return {name: one for some in pool.map(walk_some, by_flags) for name, one in some.items()}
