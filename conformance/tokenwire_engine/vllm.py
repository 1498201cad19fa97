"""The engine's side of the protocol between vLLM's front ends and their engine process.

The front end binds the sockets, and the engine connects. A handshake is followed by inputs and outputs for
each API server. All payloads are msgpack. Requests and outputs are arrays, to which new releases append
fields.
"""

from __future__ import annotations

import math
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import zmq

from tokenwire.parrot.law import GROUP, Parrot
from tokenwire_engine.engine import (
    Emitted,
    Engine,
    EngineDiedError,
    Outcome,
    Running,
    Sampling,
    answer,
    rank,
)
from tokenwire_engine.front_end import Releases, Trace, UncomputedError, newest, refusal, waiting
from tokenwire_engine.grammar import Grammar
from tokenwire_engine.schedule import KEY, Schedule, schedule_of

ADD, ABORT, WAVE, UTILITY = (bytes([kind]) for kind in range(4))
DEAD = b"ENGINE_CORE_DEAD"
FINISHES = {"stop": 0, "length": 1, "abort": 2, "error": 3, "repeat": 4}
REQUEST = (
    *("request_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "arrival_time"),
    *("lora_request", "cache_salt", "data_parallel_rank", "prompt_embeds", "prompt_is_token_ids"),
    *("client_index", "current_wave", "priority", "trace_headers", "resumable", "external_req_id"),
    *("reasoning_ended", "reasoning_parser_kwargs", "abort_immediately", "session_id", "kv_hints"),
)
_OUTPUT_0_32 = (
    *("request_id", "new_token_ids", "new_logprobs", "new_prompt_logprobs_tensors", "pooling_output"),
    *("finish_reason", "stop_reason", "events", "kv_transfer_params", "ec_transfer_params", "trace_headers"),
    *("prefill_stats", "routed_experts", "num_nans_in_logits", "mm_cache_miss_hashes", "new_sampling_mask"),
    *("spec_decode_metrics", "prompt_token_id_logprobs"),
)
OUTPUTS: Releases = {"0.32.0": _OUTPUT_0_32, "0.33.0": (*_OUTPUT_0_32, "error")}
"""The fields of an output in each known release, in order."""
_UNCOMPUTED = ("repetition_detection", "thinking_token_budget", "trace_decode_token_ids")
"""Sampling parameters that this engine does not support. Requests with them are refused."""
_OF_PROMPT = "prompt_logprob_token_ids"
_UTILITIES: Mapping[str, Any] = {
    **{"get_supported_tasks": ["generate"], "list_loras": []},
    "is_sleeping": False,
    **dict.fromkeys(("reset_prefix_cache", "add_lora", "remove_lora", "pin_lora"), True),
}
"""The answers to control calls. All other control calls get an empty answer."""
_EVENT_QUEUED, _EVENT_SCHEDULED, _EVENT_PREEMPTED = 1, 2, 3
_TICK_MS = 1
_DEATH_S = 0.5
"""The time in seconds that a crashing engine waits, so that its last message is sent."""

_pack, _unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


@dataclass(frozen=True)
class VllmOptions:
    """Options for connecting to a vLLM front end."""

    handshake: str
    law: Parrot
    folder: Path
    """The folder with the parrot's tokenizer."""
    version: str = newest(OUTPUTS)
    max_model_len: int = 4096
    schedule: Schedule = field(default_factory=Schedule)
    """The schedule of requests that do not contain one."""
    trace: Path | None = None
    """A file that records every message as JSON Lines; None to record nothing."""


def array(kind: str, shape: tuple[int, ...], values: Iterable[float]) -> tuple[Any, ...]:
    """Return an array in the form of vLLM's serializer, as numpy's ('<i8', '<f4') or as torch's ('int64',
    'float32').
    """
    letter = {"<i8": "q", "int64": "q", "<f4": "f", "float32": "f"}[kind]
    flat = list(values)
    return kind, shape, msgspec.msgpack.Ext(3, struct.pack(f"<{len(flat)}{letter}", *flat))


def _rows_of(value: Any, buffers: Sequence[bytes]) -> list[tuple[int, ...]]:
    """Return the rows of an array of int32 in the form of vLLM's serializer.

    `buffers`: the parts of the message. A large array is a part of its own. Raises UncomputedError for
    another array.
    """
    match value:
        case ["<i4", [int(count), int(width)], data]:
            content = buffers[data] if isinstance(data, int) else data.data
            numbers = struct.unpack(f"<{count * width}i", content)
            return [numbers[start : start + width] for start in range(0, count * width, width)]
    raise UncomputedError("an array of ids in an unknown form")


def logprob_rows(
    law: Parrot,
    rows: Sequence[tuple[int, int]],
    count: int,
    named: Sequence[int] | None = None,
    *,
    tensors: bool = False,
    nan: frozenset[int] = frozenset(),
) -> tuple[Any, ...]:
    """Return logprob arrays for pairs of (likeliest id, output id).

    The first column belongs to the output id, the others to the top ids or to the named ids. The logprob of
    the output id is NaN in the rows that `nan` names.
    """
    ids: list[int] = []
    values: list[float] = []
    for place, (likeliest, token) in enumerate(rows):
        if named is None:
            others = law.top(likeliest, count)
        else:
            others = [(other, law.logprob(likeliest, other)) for other in named]
        ids += [token, *(other for other, _ in others)]
        row = [law.logprob(likeliest, token), *(value for _, value in others)]
        values += [float("nan")] * len(row) if place in nan else row
    whole, real = ("int64", "float32") if tensors else ("<i8", "<f4")
    shape = (len(rows), len(ids) // max(len(rows), 1))
    ranks = [rank(law, likeliest, token) for likeliest, token in rows]
    return (array(whole, shape, ids), array(real, shape, values), array(whole, shape[:1], ranks), None)


def sampling_of(params: Mapping[str, Any] | None, room: int, folder: Path) -> Sampling:
    """Return the sampling parameters of a request.

    `room`: the most tokens that fit into the context. `folder`: the folder with the tokenizer. Raises
    UncomputedError for parameters that are not supported, and for a request without sampling parameters.
    """
    if params is None:
        raise UncomputedError("a request without sampling")
    for name in _UNCOMPUTED:
        if params.get(name):
            raise UncomputedError(name)
    if params.get("bad_words") and not params.get("_bad_words_token_ids"):
        raise UncomputedError("bad_words without their ids")
    ends = frozenset({*(params.get("stop_token_ids") or ()), params.get("_eos_token_id")} - {None})
    allowed = params.get("allowed_token_ids")
    return Sampling(
        budget=min(16 if params.get("max_tokens") is None else params["max_tokens"], room),
        least=params.get("min_tokens") or 0,
        ends=ends,
        barred=ends | frozenset(params.get("_all_stop_token_ids") or ()),
        bias={int(token): bias for token, bias in (params.get("logit_bias") or {}).items()},
        allowed=frozenset(allowed) if allowed is not None else None,
        words=tuple(tuple(word) for word in params.get("_bad_words_token_ids") or () if word),
        language=Grammar.of(params.get("structured_outputs") or {}, folder),
        presence=params.get("presence_penalty") or 0.0,
        frequency=params.get("frequency_penalty") or 0.0,
        repetition=params.get("repetition_penalty") or 1.0,
    )


class VllmEngine:
    """The engine from the point of view of vLLM's front ends: it receives and sends messages."""

    def __init__(self, options: VllmOptions, send: Callable[[int, bytes], object]) -> None:
        """Create an engine.

        `send` is called with the number of an API server and a message for this server.
        """
        self.options, self._send = options, send
        self.engine = Engine()
        self._fields = OUTPUTS[options.version]
        self._weights = "default"
        self._pause_mode = ""
        """The mode of the current pause; empty if the engine is not paused."""
        self._trace = Trace(options.trace)

    def ready(self) -> bytes:
        """Return the first message to each API server.

        The message has every field that any known release requires.
        """
        longest = self.options.max_model_len
        return _pack(
            {
                **{"max_model_len": longest, "num_gpu_blocks": 1024, "block_size": 16, "dtype": "float32"},
                **{"vllm_version": self.options.version, "instance_id": "tokenwire"},
                **{"world_size": 1, "tensor_parallel_size": 1, "pipeline_parallel_size": 1},
                **{"data_parallel_size": 1, "data_parallel_rank": 0, "decode_context_parallel_size": 1},
                **{"max_num_seqs": 256, "max_num_batched_tokens": 8192, "dp_stats_address": None},
                **{"kv_cache_size_tokens": 4 * longest, "kv_cache_max_concurrency": 4.0},
                **{"supports_lora": False, "max_loras": 0},
            }
        )

    def receive(self, kind: bytes, payload: bytes, *buffers: bytes) -> None:
        """Process a message from the front end. `buffers`: the large arrays of the message."""
        content: Any = _unpack(payload) if kind in (ADD, ABORT, UTILITY) else None
        self._trace.note("in", [kind.hex(), content])
        if kind == ADD:
            self._add(dict(zip(REQUEST, content, strict=False)), (payload, *buffers))
        elif kind == ABORT:
            # Like vLLM's EngineCore, this engine sends no output for a request that the client has aborted.
            for name in content:
                self.engine.take(name)
        elif kind == UTILITY:
            client, call, method, arguments = content
            try:
                reply = [call, None, [None, self._control(method, arguments)]]
            except UncomputedError as error:
                reply = [call, str(error), None]
            self._output(client, [], utility=reply)

    def _control(self, method: str, arguments: Sequence[Any]) -> Any:
        """Execute a control call, and return its result. Raises UncomputedError."""
        match method:
            case "get_weight_version":
                return self._weights
            case "is_scheduler_paused":
                return bool(self._pause_mode)
            case "set_weight_version":
                self._weights = arguments[0]
            case "pause_generation":
                self._pause(arguments[0])
            case "resume_scheduler":
                self._pause_mode = ""
        return _UTILITIES.get(method)

    def _pause(self, mode: str) -> None:
        """Pause in one of vLLM's modes. Raises UncomputedError for `wait`, and for unknown modes."""
        if mode not in ("abort", "keep"):
            raise UncomputedError(f"a pause in the mode {mode!r}")
        self._pause_mode = mode
        for running in self.engine.requests if mode == "abort" else ():
            self.engine.take(running.name)
            self._end(running.request, FINISHES["abort"])

    def _end(self, request: Mapping[str, Any], finish: int, error: dict[str, Any] | None = None) -> None:
        """End a request without further tokens."""
        name = request["request_id"]
        row = {"request_id": name, "new_token_ids": [], "finish_reason": finish, "error": error}
        self._output(request.get("client_index") or 0, [self._row(row)], ended=[name])

    @property
    def is_idle(self) -> bool:
        """True if `step` has nothing to do."""
        return bool(self._pause_mode) or not self.engine.requests

    def _add(self, request: dict[str, Any], buffers: Sequence[bytes]) -> None:
        params: Any = request.get("sampling_params")
        prompt = request.get("prompt_token_ids") or []
        name = request["request_id"]
        if self._pause_mode == "abort":
            error = _error("generation is paused; send the request again after it was resumed", 503)
            self._end(request, FINISHES["error"], error)
            return
        try:
            if params and (rows := params.get(_OF_PROMPT)) is not None:
                params[_OF_PROMPT] = _rows_of(rows, buffers)
            sampling = sampling_of(params, self.options.max_model_len - len(prompt), self.options.folder)
            given = (params.get("extra_args") or {}).get(KEY)
            schedule = schedule_of(given, request.get("external_req_id") or name, self.options.schedule)
            right = answer(self.options.law, prompt, sampling)
        except Exception as error:  # An error ends only this request, and becomes the answer to the request.
            self._end(request, FINISHES["error"], _error(*refusal(error)))
            return
        if right.outcome.matched is not None and right.outcome.matched == params.get("_eos_token_id"):
            right = replace(right, outcome=Outcome("stop"))
        self.engine.add(Running(name, prompt, right, schedule, request))

    def step(self) -> None:
        """Run a step, and send its outputs, unless the engine is paused. Raises EngineDiedError."""
        if self._pause_mode:
            return
        messages: dict[tuple[int, str], tuple[list[list[Any]], list[str]]] = {}
        emissions = list(self.engine.step())
        asked = (running.request["sampling_params"].get("logprobs") for running, _ in emissions)
        widest = max(map(_candidates, asked), default=0)
        for running, emitted in emissions:
            key = (running.request.get("client_index") or 0, running.schedule.weights or self._weights)
            rows, ended = messages.setdefault(key, ([], []))
            rows.append(self._row(self._fields_of(running, emitted, widest)))
            if emitted.outcome is not None:
                ended.append(running.name)
        for (client, weights), (rows, ended) in messages.items():
            self._output(client, rows, ended=ended or None, weights=weights)

    def _fields_of(self, running: Running, emitted: Emitted, widest: int) -> dict[str, Any]:
        """Return the fields of an output.

        As in vLLM, all requests of a step have as many candidates as the one that wants the most.
        """
        params, schedule, right = running.request["sampling_params"], running.schedule, running.right
        found: dict[str, Any] = {"request_id": running.name, "new_token_ids": list(emitted.ids)}
        top, named = params.get("logprobs"), params.get("logprob_token_ids")
        places = range(emitted.start, emitted.start + len(emitted.ids))
        shown = [place for place in places if schedule.logprobs != ("none", place)]
        if shown and (top is not None or named):
            rows = [(right.likeliest[place], right.ids[place]) for place in shown]
            nan = frozenset(i for i, place in enumerate(shown) if schedule.logprobs == ("nan", place))
            found["new_logprobs"] = logprob_rows(self.options.law, rows, widest, named, nan=nan)
            found["num_nans_in_logits"] = len(nan)
        if emitted.is_first:
            found |= self._prefilled(params, running, emitted)
        if (outcome := emitted.outcome) is not None:
            found |= {"finish_reason": FINISHES[outcome.kind], "stop_reason": outcome.matched}
            if outcome.status is not None and outcome.status != 500:
                found["error"] = _error("the schedule of the request says so", outcome.status)
            if schedule.kv:
                found["kv_transfer_params"] = {"remote_engine_id": schedule.kv}
            if schedule.drafts:
                found["spec_decode_metrics"] = _drafted(schedule.drafts, running.accepted)
        return found

    def _prefilled(self, params: Mapping[str, Any], running: Running, emitted: Emitted) -> dict[str, Any]:
        """Return the fields about the prompt, which a request's first output contains."""
        prompt, law, now = running.prompt, self.options.law, time.monotonic()
        handed_over = (params.get("extra_args") or {}).get("kv_transfer_params") or {}
        # The prefill server has computed all tokens of the prompt except the last.
        peer = handed_over.get("remote_engine_id")
        cached = len(prompt) - 1 if peer else min(running.schedule.cached, len(prompt) - 1)
        events = [_EVENT_QUEUED, _EVENT_SCHEDULED, *([_EVENT_PREEMPTED] if emitted.was_preempted else [])]
        found: dict[str, Any] = {
            "prefill_stats": {
                **{"num_prompt_tokens": len(prompt), "num_computed_tokens": len(prompt) - cached},
                **{"num_cached_tokens": cached, "num_local_cached_tokens": cached},
            },
            "events": [{"type": event, "timestamp": now} for event in events],
        }
        if (top := params.get("prompt_logprobs")) is not None:
            rows = [(prompt[place - law.lag(place)], prompt[place]) for place in range(1, len(prompt))]
            found["new_prompt_logprobs_tensors"] = logprob_rows(law, rows, _candidates(top), tensors=True)
        if chosen := params.get(_OF_PROMPT):
            found["prompt_token_id_logprobs"] = self._scores(prompt, params, chosen)
        return found

    def _scores(
        self, prompt: Sequence[int], params: Mapping[str, Any], chosen: Sequence[Sequence[int]]
    ) -> tuple[Any, ...]:
        """Return the logprobs of the ids that a request chose for each position of the prompt; minus infinity
        for padding, which is -1.
        """
        law, first = self.options.law, 1 + (params.get("prompt_logprob_start") or 0)
        values = [
            -math.inf if token < 0 else law.logprob(prompt[place - law.lag(place)], token)
            for place, ids in enumerate(chosen, first)
            for token in ids
        ]
        return array("float32", (len(chosen), len(chosen[0])), values)

    def _row(self, found: Mapping[str, Any]) -> list[Any]:
        row = [{"num_nans_in_logits": 0, **found}.get(name) for name in self._fields]
        while row[-1] is None:
            row.pop()
        return row

    def _output(
        self,
        client: int,
        rows: list[list[Any]],
        *,
        utility: list[Any] | None = None,
        ended: list[str] | None = None,
        weights: str = "",
    ) -> None:
        last = [None, None, weights] if weights else []
        message: list[Any] = [0, rows, None, time.monotonic(), utility, ended, *last]
        self._trace.note("out", message)
        self._send(client, _pack(message))


def _candidates(top: int | None) -> int:
    """Return the number of top logprobs that a parameter of a request enables."""
    return GROUP if top == -1 else top or 0


def _error(message: str, status: int) -> dict[str, Any]:
    """Return an error. 400 blames the request, 503 invites a retry, and 500 blames the engine."""
    code = "validation_error" if status == 400 else "internal_error"
    return {"code": code, "message": message, "retryable": status == 503}


def _drafted(proposed: int, accepted: Sequence[int]) -> dict[str, Any]:
    return {
        **{"num_spec_tokens": proposed, "num_draft_tokens": proposed * len(accepted)},
        "histogram": [accepted.count(count) for count in range(proposed + 1)],
        **{"per_step_accepted": list(accepted), "per_step_drafted": [proposed] * len(accepted)},
    }


def serve(options: VllmOptions) -> None:
    """Connect to a front end, and process its messages until the process is stopped or a schedule demands a
    crash.
    """
    context, identity = zmq.Context(), (0).to_bytes(2, "little")

    def connected(kind: int, address: str) -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.setsockopt(zmq.LINGER, int(_DEATH_S * 1000))
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.connect(address)
        return socket

    hand = connected(zmq.DEALER, options.handshake)
    status = {"local": False, "headless": True, "parallel_config_hash": None}
    hand.send(_pack({"status": "HELLO", **status}))
    addresses = _unpack(hand.recv())["addresses"]
    outputs = [connected(zmq.PUSH, address) for address in addresses["outputs"]]
    engine = VllmEngine(options, lambda client, message: outputs[client].send(message))
    poller = zmq.Poller()
    for address in addresses["inputs"]:
        socket = connected(zmq.DEALER, address)
        socket.send(engine.ready())
        poller.register(socket, zmq.POLLIN)
    hand.send(_pack({"status": "READY", **status}))
    try:
        while True:
            for socket, _ in poller.poll(None if engine.is_idle else _TICK_MS):
                for kind, payload, *buffers in waiting(socket.recv_multipart):
                    engine.receive(kind, payload, *buffers)
            engine.step()
    except EngineDiedError as died:
        print(f"the schedule of request {died} ends the engine", file=sys.stderr, flush=True)
        for output in outputs:
            output.send(DEAD)
    finally:
        context.destroy(linger=int(_DEATH_S * 1000))
