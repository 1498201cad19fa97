"""Ask the reference everything that a recorded server was asked, one capture after the other."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
from answer_shape import Answer, ValueComparison, shape_differences
from deliberate_differences import Difference
from recorded_stages import ABORTED, STAGES, Stage

from tokenwire.asking.recorder import Recorder
from tokenwire.spec_files import load_schema
from tokenwire.wire.capture import read_capture
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

FIXTURES = Path(__file__).parents[2] / "fixtures"
VERSIONS = {"0.5.23", "0.32.0-cpu"}
CONTEXT_LENGTH = 512
RETRACT_EVERY = 3

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
    """The captures of SGLang 0.5.23 and of vLLM, with the flags that give the reference the same settings.

    Whole runs of the suite are left out: their requests are the suite's own, and the reference is asked them
    elsewhere.
    """
    manifest = json.loads((FIXTURES / "manifest.json").read_text("utf-8"))["files"]
    return [
        Captured(
            f"{file.split('/')[0]}/{Path(file).name.removesuffix('.jsonl.gz')}",
            FIXTURES / file,
            entry["server"],
            _flags(file, entry),
        )
        for file, entry in manifest.items()
        if entry["version"] in VERSIONS and not entry.get("live")
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
    recorder = Recorder(url)

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
        # A body that is not JSON was not recorded; what was sent instead is unknown.
        return replace(request, method="GET") if request.body is None else request
    if request.path not in GENERATING or not isinstance(request.body, dict):
        return request
    key = f"{captured.name} {_cache_of(exchange.name)} {request.body.get('extra_key', '')}"
    return replace(request, body={**request.body, "extra_key": key})


def walk_alike(
    serve: Callable[[tuple[str, ...]], AbstractContextManager[str]], flags: tuple[str, ...]
) -> dict[str, Walk]:
    """Walk every capture of a server with these flags, one server for all. Gives the outcomes by capture."""
    with serve(flags) as url:
        return {
            captured.name: asyncio.run(_walk(captured, url))
            for captured in captures()
            if captured.flags == flags
        }
