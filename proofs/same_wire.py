"""The same wire: compare the answers of the reference server in this checkout with those in another checkout.

A rewrite of the reference must not change any byte that a client sees. This proof sends a fixed set of
requests to both checkouts: all endpoints of both families, whole answers and streams, several samples, stops,
logprobs, channels, refusals. It compares the status, the content type and the body, event by event and field
by field. Random values and times (generated ids, timestamps, durations) are first replaced by names. If two
answers differ in any other value, the path of the field is printed.

    python -m proofs.same_wire CHECKOUT       compare this checkout with another one, such as a `git worktree`
    python -m proofs.same_wire CHECKOUT vllm  only servers whose names contain this text
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[1]
SHOWN = 40
"""The maximum number of differing answers that are printed."""

IDS = [72, 101, 108, 108, 111, 32, 300, 12]
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
DRAWN = {"temperature": 1.0, "sampling_seed": 7, "max_new_tokens": 20}
THINKS = ["<think>", "so", " be", " it", "</think>", "The ", "answer"]
CALLS = ['<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": ', "2}}\n</tool_call>", " done"]
MANY_BYTES = ["né", "日本", "🎉", "語", " end"]
MESSAGES = [{"role": "user", "content": "How many roads?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

_GENERATED = re.compile(r"(?<![0-9a-f])[0-9a-f]{16,32}(?![0-9a-f])")
_TIMES = {"created", "e2e_latency", "started", "uptime", "timestamp", "last_receive_tstamp"}


@dataclass(frozen=True)
class SentRequest:
    """One request of the fixed set."""

    path: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"


@dataclass(frozen=True)
class Setup:
    """The options of a reference server, and the requests to it."""

    flags: Sequence[str]
    asked: Sequence[SentRequest]


def _both_ways(path: str, bodies: Sequence[Mapping[str, Any]], **stream: Any) -> list[SentRequest]:
    """Return requests for each body, for a whole answer and for a stream."""
    more = {"stream": True, **stream}
    return [SentRequest(path, {**body, **extra}) for body in bodies for extra in ({}, more)]


def _generate() -> list[dict[str, Any]]:
    """Return bodies for SGLang's `/generate`."""
    sampling: list[dict[str, Any]] = [
        GREEDY,
        DRAWN,
        {**DRAWN, "ignore_eos": True, "min_new_tokens": 3, "max_new_tokens": 70},
        {**DRAWN, "top_p": 0.7, "top_k": 40, "min_p": 0.01},
        {**GREEDY, "frequency_penalty": 0.5, "presence_penalty": 0.25, "repetition_penalty": 1.2},
        {**GREEDY, "logit_bias": {"65": 30.0, "66": 31.0}},
        {**GREEDY, "stop_token_ids": list(range(0, 384, 3)), "ignore_eos": False},
        {**DRAWN, "stop": ["e", "on"], "max_new_tokens": 60},
        {**DRAWN, "stop": ["e", "on"], "max_new_tokens": 60, "no_stop_trim": True},
        {**DRAWN, "stop_regex": "[a-m][a-z]", "max_new_tokens": 60},
        {**DRAWN, "skip_special_tokens": False, "spaces_between_special_tokens": False},
        {**GREEDY, "stream_interval": 5},
        {**GREEDY, "max_new_tokens": 0},
        {**GREEDY, "max_new_tokens": 1},
    ]
    wanted: list[dict[str, Any]] = [
        {},
        {"return_logprob": True},
        {"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0},
        {"return_logprob": True, "token_ids_logprob": [5, 6], "return_text_in_logprobs": True},
        {"return_sampling_mask": True},
        {"return_hidden_states": True},
        {"return_prompt_token_ids": True},
    ]
    bodies: list[dict[str, Any]] = [{"input_ids": IDS, "sampling_params": params} for params in sampling]
    bodies += [{"input_ids": IDS, "sampling_params": DRAWN, **fields} for fields in wanted]
    bodies += [{"text": "Once upon", "sampling_params": GREEDY, **fields} for fields in wanted]
    some: dict[str, Any] = {
        "sampling_params": {**DRAWN, "n": 3},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    bodies += [
        {"input_ids": IDS, **some},
        {"text": ["One", "Two two"], **some},
        {"text": ["One", "Two two"], "sampling_params": [GREEDY, DRAWN], "return_logprob": [True, False]},
        {"input_ids": list(range(100)), "sampling_params": GREEDY, "return_logprob": True},
        {"input_ids": list(range(100)), "sampling_params": GREEDY, "return_logprob": True},
        {"input_ids": IDS, "rid": "mine", "sampling_params": DRAWN, "extra_key": "k"},
    ]
    return bodies


def _scripts(key: str) -> list[dict[str, Any]]:
    """Return parameters of scripted answers: several tokens in a step, parts of characters, stops, errors."""
    scripts: list[Any] = [
        ["Hello", " world"],
        MANY_BYTES,
        [[72, 101], [108, 108, 111], {"ids": [300, 12]}],
        ["one ", {"error": "the model broke"}],
        [[0xE6], [0x97], "x"],
        ["ab", "ST", "OP", "cd"],
        ["ab", "ST", "AY", "cd"],
    ]
    stops: list[dict[str, Any]] = [{}, {"stop": ["STOP"]}, {"stop": ["STOP"], "skip_special_tokens": False}]
    return [
        {key: 40, "temperature": 0, "custom_params": {"script": script}, **stop}
        for script in scripts
        for stop in stops
    ]


def _refused_generate() -> list[SentRequest]:
    bodies: list[Any] = [
        {},
        {"text": ""},
        {"input_ids": []},
        {"input_ids": [-1]},
        {"input_ids": [10**6]},
        {"input_ids": ["a"]},
        {"input_ids": [1.0]},
        {"input_ids": IDS, "sampling_params": {"max_new_tokens": -1}},
        {"input_ids": IDS, "sampling_params": {"max_new_tokens": 10**6}},
        {"input_ids": IDS, "sampling_params": {"temperature": -1}},
        {"input_ids": IDS, "sampling_params": {"top_p": 0}},
        {"input_ids": IDS, "sampling_params": {"top_k": 0}},
        {"input_ids": IDS, "sampling_params": {"stop": ""}},
        {"input_ids": IDS, "sampling_params": {"stop_regex": "("}},
        {"input_ids": IDS, "sampling_params": {"regex": "a"}},
        {"input_ids": IDS, "sampling_params": {"n": 10**4}},
        {"input_ids": IDS, "sampling_params": {"logit_bias": {"99999": 1}}},
        {"input_ids": IDS, "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}},
        {"input_ids": IDS, "top_logprobs_num": 3},
        {"input_ids": IDS, "return_logprob": True, "logprob_start_len": 99},
        {"input_ids": IDS, "return_logprob": True, "top_logprobs_num": 10**5},
        {"input_ids": IDS, "return_logprob": True, "token_ids_logprob": [10**5]},
        {"input_ids": IDS, "lora_path": "x"},
        {"input_ids": IDS, "image_data": "aaaa"},
        {"input_ids": IDS, "return_routed_experts": True},
        {"text": ["a", "b"], "sampling_params": [{}]},
        {"input_ids": IDS, "rid": ""},
        {"input_ids": IDS, "stream": "yes"},
        [1],
    ]
    return [SentRequest("/generate", body) for body in bodies]


def _completions() -> list[dict[str, Any]]:
    shared: dict[str, Any] = {"prompt": "Once upon", "max_tokens": 12, "seed": 5}
    return [
        shared,
        {**shared, "prompt": IDS, "logprobs": 2},
        {**shared, "prompt": ["One", "Two"], "n": 2, "logprobs": 1},
        {**shared, "echo": True, "logprobs": 2},
        {**shared, "echo": True, "return_token_ids": True},
        {**shared, "stop": ["e", "o"], "max_tokens": 60},
        {**shared, "temperature": 0, "ignore_eos": True, "frequency_penalty": 0.5},
        {**shared, "max_tokens": 0, "echo": True},
        {**shared, "prompt": [IDS, [9]], "return_token_ids": True},
        {**shared, "stop_token_ids": list(range(0, 384, 3))},
        {**shared, "temperature": -2},
        {**shared, "n": 10**4},
        {**shared, "max_tokens": 10**6},
        {**shared, "logprobs": 10**4},
        {**shared, "prompt": ""},
        {**shared, "suffix": "x"},
        {**shared, "model": "another"},
    ]


def _chats() -> list[dict[str, Any]]:
    shared: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 12, "seed": 5}
    return [
        shared,
        {**shared, "logprobs": True, "top_logprobs": 2},
        {**shared, "n": 3, "logprobs": True},
        {**shared, "stop": ["e", "o"], "max_completion_tokens": 60},
        {**shared, "return_token_ids": True, "return_prompt_token_ids": True, "return_meta_info": True},
        {**shared, "temperature": 0, "ignore_eos": True, "min_tokens": 3},
        {"input_ids": IDS, **shared},
        {**shared, "logit_bias": {"65": 30.0}},
        {**shared, "messages": []},
        {**shared, "messages": [{"role": "nobody", "content": "x"}]},
        {**shared, "top_logprobs": 3},
        {**shared, "temperature": 9},
        {**shared, "tools": TOOLS},
        {**shared, "response_format": {"type": "json_object"}},
        {**shared, "max_tokens": 10**6},
        {**shared, "model": "another"},
        {**shared, "n": 0},
    ]


def _channels() -> list[dict[str, Any]]:
    """Return bodies of chats in which the model reasons and calls tools."""
    scripts = [THINKS, [*THINKS[:5], *CALLS], CALLS, THINKS[:3], MANY_BYTES]
    wanted: list[dict[str, Any]] = [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "none"},
        {"separate_reasoning": False},
        {"stream_reasoning": False},
        {"logprobs": True, "top_logprobs": 1},
        {"tools": TOOLS, "skip_special_tokens": False},
    ]
    shared = {"messages": MESSAGES, "max_tokens": 60, "temperature": 0}
    return [{**shared, "custom_params": {"script": s}, **fields} for s in scripts for fields in wanted]


def _vllm_generate() -> list[dict[str, Any]]:
    params: list[dict[str, Any]] = [
        {"max_tokens": 9, "temperature": 0},
        {"max_tokens": 9, "seed": 3, "logprobs": 2},
        {"max_tokens": 9, "seed": 3, "prompt_logprobs": 1},
        {"max_tokens": 9, "seed": 3, "n": 2, "logprobs": 0},
        {"max_tokens": 60, "seed": 3, "stop": ["e", "o"], "include_stop_str_in_output": True},
        {"max_tokens": 60, "seed": 3, "stop": ["e"], "min_tokens": 9, "ignore_eos": True},
        {"max_tokens": 9, "seed": 3, "stop_token_ids": list(range(0, 384, 3)), "ignore_eos": True},
        {"max_tokens": 20, "seed": 3, "stream_interval": 4},
        {"max_tokens": 10**6},
        {"max_tokens": 9, "logprobs": 10**4},
        {"max_tokens": 9, "guided_json": {}},
    ]
    bodies = [{"token_ids": IDS, "sampling_params": sampling, "request_id": "mine"} for sampling in params]
    return [
        *bodies,
        *({**body, "output_mode": "text"} for body in bodies[:8]),
        {"token_ids": IDS, "sampling_params": params[0], "return_token_ids": True},
        {"token_ids": [], "sampling_params": params[0]},
        {"token_ids": [10**6], "sampling_params": params[0]},
    ]


def _others() -> list[SentRequest]:
    """Return requests to endpoints that do not generate tokens."""
    return [
        SentRequest("/tokenize", {"prompt": "Once upon"}),
        SentRequest("/tokenize", {"prompt": ["Once", "upon"], "add_special_tokens": False}),
        SentRequest("/detokenize", {"tokens": IDS}),
        SentRequest("/detokenize", {"tokens": [[1], [10**6]]}),
        SentRequest("/v1/embeddings", {"model": "m", "input": ["one", "two"]}),
        SentRequest(
            "/v1/embeddings", {"model": "m", "input": IDS, "encoding_format": "base64", "dimensions": 4}
        ),
        SentRequest("/encode", {"text": "one"}),
        SentRequest("/abort_request", {"rid": "nobody"}),
        SentRequest("/inference/v1/abort_requests", {"request_ids": ["nobody"]}),
        SentRequest("/flush_cache", None),
        *(
            SentRequest(path, None, method="GET")
            for path in ("/health", "/v1/models", "/model_info", "/openapi.json", "/version", "/nowhere")
        ),
        SentRequest("/generate", None),
        SentRequest("/generate", None, {"content-type": "application/json"}),
    ]


def setups() -> dict[str, Setup]:
    """Return all servers with their requests, by name."""
    native = [*_both_ways("/generate", _generate()), *_refused_generate(), *_others()]
    usage: dict[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    completions, chats = "/v1/completions", "/v1/chat/completions"
    openai = [
        *_both_ways(completions, _completions(), **usage),
        *_both_ways(chats, _chats(), **usage),
    ]
    scripted = [{"input_ids": IDS, "sampling_params": params} for params in _scripts("max_new_tokens")]
    completing = [{"prompt": IDS, **params} for params in _scripts("max_tokens")]
    parsers = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes")
    script = ("--model", "builtin:scripted", *parsers)
    vllm = ("--api-dialect", "vllm")
    mirror = ("--sampling-backend", "mirror")
    return {
        "sglang": Setup((*mirror, "--enable-cache-report"), [*native, *openai]),
        "sglang, incremental": Setup(
            (*mirror, "--incremental-streaming-output", "--stream-interval", "3"),
            _both_ways("/generate", _generate()),
        ),
        "sglang, several tokens a step, tiers": Setup(
            (
                *("--speculative-algorithm", "NGRAM", "--enable-hierarchical-cache"),
                *("--max-total-tokens", "320", "--incremental-streaming-output"),
            ),
            _both_ways("/generate", _generate()),
        ),
        "sglang, no tokenizer": Setup(
            ("--skip-tokenizer-init",),
            _both_ways("/generate", [body for body in _generate() if "input_ids" in body]),
        ),
        "sglang, scripted": Setup(
            (*script, "--return-input-ids", "--return-output-ids"),
            [
                *_both_ways("/generate", scripted),
                *_both_ways(completions, completing, **usage),
                *_both_ways(chats, _channels(), **usage),
            ],
        ),
        "sglang, scripted, incremental": Setup(
            (*script, "--incremental-streaming-output"), _both_ways("/generate", scripted)
        ),
        "vllm": Setup(
            (*vllm, "--enable-cache-report"),
            [*openai, *_both_ways("/inference/v1/generate", _vllm_generate(), **usage), *_others()],
        ),
        "vllm, scripted": Setup(
            (*vllm, *script, "--stream-interval", "2"),
            [*_both_ways(completions, completing, **usage), *_both_ways(chats, _channels(), **usage)],
        ),
    }


def normal(value: Any, key: str = "") -> Any:
    """Return a value of an answer in which random values and times are replaced by names."""
    match value:
        case dict():
            return {name: normal(inner, name) for name, inner in value.items()}
        case list():
            return [normal(inner) for inner in value]
        case float() | int() if key in _TIMES or "latency" in key or key.endswith(("_ts", "_time")):
            return f"<{key}>"
        case str():
            return _GENERATED.sub("<generated>", value)
        case _:
            return value


def read(answer: httpx.Response) -> dict[str, Any]:
    """Return an answer in a form that can be compared. A stream is divided into its events."""
    kind, text = answer.headers.get("content-type", ""), answer.text
    body: Any = text
    if kind.startswith("text/event-stream"):
        body = [_json(event) for event in text.split("\n\n")]
    elif kind.startswith("application/json"):
        body = _json(text)
    return {"status": answer.status_code, "content-type": kind, "body": normal(body)}


def _json(text: str) -> Any:
    data = text.removeprefix("data: ")
    try:
        # The keys are listed in order too, so that another order of the same keys is a difference.
        return {"data:": json.loads(data), "keys": re.findall(r'"([a-z_]+)":', data)}
    except json.JSONDecodeError:
        return text


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Yield the places at which two answers differ, with both values."""
    match ours, theirs:
        case dict(), dict():
            for key in {**ours, **theirs}:
                yield from differences(
                    ours.get(key, "(absent)"), theirs.get(key, "(absent)"), f"{path}/{key}"
                )
        case list(), list() if len(ours) == len(theirs):
            for index, (our_entry, their_entry) in enumerate(zip(ours, theirs, strict=True)):
                yield from differences(our_entry, their_entry, f"{path}/{index}")
        case _ if type(ours) is not type(theirs) or ours != theirs:
            yield f"{path}: {ours!r:.200} here, {theirs!r:.200} there"


@contextlib.contextmanager
def _served(checkout: Path, flags: Sequence[str]) -> Iterator[str]:
    """Start the reference of a checkout, and yield its URL."""
    command = [sys.executable, "-m", "tokenwire_reference", "serve", "--port", "0", "--random-seed", "1"]
    path = os.pathsep.join(str(checkout / room) for room in ("conformance", "reference", ""))
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [*command, *flags],
            env={**os.environ, "PYTHONPATH": path},
            cwd=checkout,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as server,
    ):
        try:
            assert server.stdout is not None
            words = server.stdout.readline().split()
            if not words:
                log.seek(0)
                raise RuntimeError(f"the server of {checkout} did not start: {log.read().decode()}")
            yield words[-1]
        finally:
            server.terminate()


def answers(checkout: Path, setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield the answers of the reference of a checkout, in the order of the requests."""
    with _served(checkout, setup.flags) as url, httpx.Client(base_url=url, timeout=60) as client:
        for asked in setup.asked:
            body = {} if asked.body is None else {"json": asked.body}
            yield read(client.request(asked.method, asked.path, headers=dict(asked.headers), **body))


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the requests to both checkouts. Return 1 if answers differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*", help="parts of names of servers")
    given = parser.parse_args(arguments)
    total = differing = 0
    for name, setup in setups().items():
        if given.names and not any(part in name for part in given.names):
            continue
        both = zip(answers(ROOT, setup), answers(given.checkout.resolve(), setup), setup.asked, strict=True)
        for ours, theirs, asked in both:
            total += 1
            found = list(differences(ours, theirs))
            differing += bool(found)
            if found and differing <= SHOWN:
                print(f"{name}: {asked.method} {asked.path} {json.dumps(asked.body)[:200]}")
                print("\n".join(f"    {line}" for line in found[:3]), flush=True)
    print(f"{differing} of {total} answers differ")
    return 1 if differing or not total else 0


if __name__ == "__main__":
    sys.exit(main())
