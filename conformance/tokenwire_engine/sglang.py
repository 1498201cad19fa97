"""SGLang's server over Tokenwire's engine.

SGLang's own HTTP server, tokenizer manager, detokenizer, `Req`, stop checks, collection of `customized_info`
and output streamer run unmodified. Its model, cache and scheduler do not run.

    python -m tokenwire_engine.sglang --model-path DIR --device cpu [flags of sglang.launch_server]

This module runs in SGLang's environment. It replaces the scheduler process, which is an argument of
`launch_server`. The messages between SGLang's processes are private and change with each release.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module, metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import groupby, zip_longest
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from tokenwire.parrot.law import Parrot
from tokenwire_engine.engine import (
    Answer,
    Emitted,
    Engine,
    EngineDiedError,
    Outcome,
    Running,
    Sampling,
    answer,
)
from tokenwire_engine.front_end import Releases, Trace, demand_known, refusal, waiting
from tokenwire_engine.grammar import Grammar
from tokenwire_engine.schedule import KEY, Key, Schedule, parse_schedule, schedule_of

_MANAGERS = "sglang.srt.managers"
_TICK_S = 0.001
_IDLE_MS = 50
_SHARED = (
    *("send_to_detokenizer", "tree_cache", "server_args", "is_generation", "spec_algorithm"),
    "disaggregation_mode",
)
STREAMERS: Releases = {
    "0.5.12.post1": (*_SHARED, "dp_rank", "attn_tp_rank", "get_loads", "stream_interval"),
    "0.5.13": (*_SHARED, "ps", "enable_hicache_storage", "load_inquirer_get_loads"),
    "0.5.23": (*_SHARED, "enable_hicache_storage", "rust_server"),
}
"""The public arguments of the output streamer in each known release.

In 0.5.12 there is no separate streamer, so the list is empty.
"""
_CONTROL: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FlushCacheReqInput": ("FlushCacheReqOutput", {"success": True}),
    "GetInternalStateReq": ("GetInternalStateReqOutput", {"internal_state": {}}),
    "OpenSessionReqInput": ("OpenSessionReqOutput", {"session_id": None, "success": False}),
    "UpdateWeightVersionReqInput": ("UpdateWeightVersionReqOutput", {}),
}
"""The answer to each control message, by class name. Other control messages get no answer."""
_OPTIONS = (
    *("return_logprob", "top_logprobs_num", "token_ids_logprob", "stream", "http_worker_ipc", "time_stats"),
)
"""The fields of a request message that `Req` has under the same names."""
_ERRORS = {400: "BadRequestError", 500: "InternalServerError"}
_LANGUAGES = {"json": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}
"""The sampling parameters that contain a constraint, by the kind of constraint."""


class Absent:
    """A name in a package that is not installed. It can be imported, but not called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __call__(self, *_: object, **__: object) -> None:
        raise RuntimeError(f"{self._name} is not installed; this engine does not run kernels")


class WithoutKernels(MetaPathFinder, Loader):
    """Makes imports of SGLang's kernels succeed if they are not installed.

    Releases up to 0.5.12 import the kernels even on a CPU.
    """

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return an empty module for the package of kernels; None for all other packages."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "sgl_kernel" else None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module placeholders for all names."""
        module.__getattr__ = Absent(module.__name__).__getattr__  # type: ignore[method-assign]


class Parts(NamedTuple):
    """The parts of SGLang that run unmodified. Their location depends on the release."""

    collect: Callable[..., None]
    """SGLang's function that collects `customized_info`."""
    streamer: Callable[..., Any]
    fields: Sequence[str]
    """The names of the streamer's arguments."""
    channels: Any


def parts_of(port_args: Any, *, skip_tokenizer_init: bool) -> Parts:
    """Return SGLang's parts from the installed release."""
    components = f"{_MANAGERS}.scheduler_components"
    try:
        streamer = import_module(f"{components}.output_streamer").SchedulerOutputStreamer
    except ImportError:
        return _parts_of_a_scheduler(port_args, skip_tokenizer_init=skip_tokenizer_init)
    processor = import_module(f"{components}.batch_result_processor").SchedulerBatchResultProcessor
    channels = import_module(f"{components}.ipc_channels").SchedulerIpcChannels.create(
        port_args=port_args,
        is_rank_zero=True,
        skip_tokenizer_init=skip_tokenizer_init,
        metrics_enabled=False,
        enable_scripted_runtime=False,
    )
    wanted = tuple(field.name for field in fields(streamer) if not field.name.startswith("_"))
    return Parts(processor._maybe_collect_customized_info, streamer, wanted, channels)


def _parts_of_a_scheduler(port_args: Any, *, skip_tokenizer_init: bool) -> Parts:
    """Return SGLang's parts from a release whose scheduler contains the parts (0.5.12)."""
    import zmq

    methods = import_module(f"{_MANAGERS}.scheduler_output_processor_mixin").SchedulerOutputProcessorMixin
    sender = import_module(f"{_MANAGERS}.scheduler").SenderWrapper
    connect, context = import_module("sglang.srt.utils.network").get_zmq_socket, zmq.Context(2)
    behind = port_args.tokenizer_ipc_name if skip_tokenizer_init else port_args.detokenizer_ipc_name
    channels = SimpleNamespace(
        recv_from_tokenizer=connect(context, zmq.PULL, port_args.scheduler_input_ipc_name, False),
        send_to_tokenizer=sender(connect(context, zmq.PUSH, port_args.tokenizer_ipc_name, False)),
        send_to_detokenizer=sender(connect(context, zmq.PUSH, behind, False)),
    )
    streamer = type("Streamer", (SimpleNamespace, methods), {})
    return Parts(methods.maybe_collect_customized_info, streamer, STREAMERS["0.5.12.post1"], channels)


def scores(
    law: Parrot, rows: Sequence[tuple[int, int]], top: int, named: Sequence[int] | None
) -> dict[str, list[Any]]:
    """Return the logprobs of rows of (likeliest id, id), under the names that `Req` has for a prompt and for
    an output. Values that were not requested are left out, as SGLang does.
    """
    found: dict[str, list[Any]] = {
        "token_logprobs_val": [law.logprob(likeliest, token) for likeliest, token in rows],
        "token_logprobs_idx": [token for _, token in rows],
    }
    if top:
        tops = [law.top(likeliest, top) for likeliest, _ in rows]
        found["top_logprobs_val"] = [[value for _, value in one] for one in tops]
        found["top_logprobs_idx"] = [[token for token, _ in one] for one in tops]
    if named is not None:
        values = [[law.logprob(likeliest, token) for token in named] for likeliest, _ in rows]
        found |= {"token_ids_logprobs_val": values, "token_ids_logprobs_idx": [list(named)] * len(rows)}
    return found


def values_of(key: Key, start: int, ids: Sequence[int], prompt: int) -> list[Any]:
    """Return the values of a key of `customized_info` for the outputs of a step.

    `start`: the number of earlier outputs. `prompt`: the number of prompt tokens.
    """
    if not ids or start + len(ids) <= key.first:
        return []
    places = range(start, start + len(ids))
    mirrored: Mapping[str, Sequence[Any]] = {
        "mirror_token_id": ids,
        "mirror_position": [prompt + place - 1 for place in places],
    }
    values = list(mirrored.get(key.name) or [f"{key.name}{place}" for place in places])
    return values[:1] if key.by_step else values[max(0, key.first - start) :]


def waves(steps: Iterable[tuple[Running, Emitted]]) -> list[list[tuple[Running, Emitted]]]:
    """Divide the outputs of a step into messages, each with at most one output per request."""
    by_request = (list(group) for _, group in groupby(steps, key=lambda step: step[0].name))
    return [[one for one in wave if one is not None] for wave in zip_longest(*by_request)]


def plain(value: Any, depth: int = 2) -> Any:
    """Convert a message to JSON values.

    An object becomes a dict of its fields, with the name of its class.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(one, depth) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, array)):
        return [plain(one, depth) for one in value]
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dict__", None)
    if not names or depth == 0:
        return repr(value)
    return {"class": type(value).__name__, **{name: plain(getattr(value, name), depth - 1) for name in names}}


def log_of(req: Any) -> Any:
    """Return the object that contains the logprobs of a request. Up to 0.5.12, this is the request itself."""
    return getattr(req, "logprob", req)


def output_of(req: Any) -> Mapping[str, Any]:
    """Return the arguments that describe a request for SGLang's streamer."""
    return {
        **{"rid": req.rid, "output_ids": list(req.output_ids), "customized_info": req.customized_info},
        "finished": plain(req.finished_reason),
        "logprobs": list(log_of(req).output_token_logprobs_val or ()),
    }


class Scheduler:
    """Replaces SGLang's scheduler: receives requests, and passes the outputs of each step to SGLang's own
    streamer.

    SGLang's Rust server reads attributes with SGLang's names.
    """

    end_of_reasoning: Any = None
    """The marker behind the reasoning, as `Req` counts with it. None without a reasoning parser."""
    is_paused = False
    """True from a pause until the server continues.

    The front end itself ends what runs before a pause in the mode `abort`, and lets new requests wait.
    """

    def __init__(self, server_args: Any, port_args: Any) -> None:
        self.io: Any = import_module(f"{_MANAGERS}.io_struct")
        batch = import_module(f"{_MANAGERS}.schedule_batch")
        parts = parts_of(port_args, skip_tokenizer_init=server_args.skip_tokenizer_init)
        self.request_class, self.abort_class = batch.Req, batch.FINISH_ABORT
        self.collect, self.channels = parts.collect, parts.channels
        self.read = getattr(self.io, "sock_recv", lambda socket, flags: socket.recv_pyobj(flags))
        self.server_args = server_args
        config = import_module("sglang.srt.configs.model_config").ModelConfig
        self.model_config = config.from_server_args(server_args)
        path = self.rust_server_tokenizer_path()
        self.tokenizer = import_module("sglang.srt.utils.hf_transformers_utils").get_tokenizer(path)
        self.end_of_reasoning = self.find_end_of_reasoning()
        self.law = Parrot(self.model_config.vocab_size, int(os.environ["TOKENWIRE_DISTANCE"]))
        self.default = parse_schedule(os.environ.get("TOKENWIRE_SCHEDULE", ""))
        self.page_size, self.load_snapshot_writer = 1, None
        self.max_total_num_tokens = 1 << 15
        self.max_req_input_len = self.model_config.context_len - 1
        self.kv_events_publisher = SimpleNamespace(local_kv_event_sources=lambda *_: [])
        self.engine = Engine()
        self.rust: Any = None
        if os.environ.get("SGLANG_RUST_SERVER") == "1":
            self.rust = import_module("sglang.srt.rust_server.server").RustServer.launch(self)
            self.rust.set_startup_time({"total": 0.0})
        version, as_version = metadata.version("sglang"), os.environ.get("TOKENWIRE_VERSION", "")
        demand_known("SGLang", STREAMERS, version, parts.fields, as_version)
        given = {
            "send_to_detokenizer": self.channels.send_to_detokenizer,
            "server_args": server_args,
            "is_generation": True,
            "spec_algorithm": import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm.NONE,
            "disaggregation_mode": import_module("sglang.srt.disaggregation.utils").DisaggregationMode.NULL,
            "enable_hicache_storage": lambda: False,
            "rust_server": self.rust,
            "ps": SimpleNamespace(dp_rank=None, attn_tp_rank=0),
            **dict.fromkeys(("get_loads", "load_inquirer_get_loads"), lambda *_, **__: None),
            "attn_tp_rank": 0,
            "stream_interval": server_args.stream_interval,
        }
        self.streamer = parts.streamer(**{name: given.get(name) for name in parts.fields})
        self.trace = Trace(os.environ.get("TOKENWIRE_TRACE"))

    def rust_server_tokenizer_path(self) -> str:
        """The folder of the tokenizer."""
        return str(self.server_args.tokenizer_path or self.server_args.model_path)

    def find_end_of_reasoning(self) -> Any:
        """Return the ids of the marker behind the reasoning. Older releases use only the first id."""
        if not self.server_args.reasoning_parser:
            return None
        module = import_module("sglang.srt.parser.reasoning_parser")
        parser = module.ReasoningParser(model_type=self.server_args.reasoning_parser, stream_reasoning=False)
        ids = self.tokenizer.encode(parser.detector.think_end_token, add_special_tokens=False)
        return ids if hasattr(self.model_config, "think_end_ids") else ids[0]

    # Requests.

    def receive(self) -> list[Any]:
        """Return the messages that have arrived."""
        if self.rust is not None:
            return list(self.rust.drain(256))
        return list(waiting(partial(self.read, self.channels.recv_from_tokenizer)))

    def handle(self, message: Any) -> None:
        """Process one message."""
        name = type(message).__name__
        self.trace.note("in", plain(message))
        match name:
            case "TokenizedGenerateReqInput" | "BatchTokenizedGenerateReqInput":
                for one in getattr(message, "batch", (message,)):
                    self.add(one)
            case "AbortReq":
                for running in self.engine.requests:
                    if message.abort_all or running.name.startswith(message.rid):
                        self.order_end(running)
            case "PauseGenerationReqInput" | "ContinueGenerationReqInput":
                self.is_paused = name == "PauseGenerationReqInput"
            case "ShutdownReq":
                raise SystemExit
            case _ if name in _CONTROL:
                if name == "UpdateWeightVersionReqInput":
                    self.name_weights(message.new_version)
                kind, values = _CONTROL[name]
                taken = {name: getattr(message, name) for name, value in values.items() if value is None}
                output = getattr(self.io, kind)(**{**values, **taken})
                if self.rust is not None:
                    self.rust.push_control_output(message, output)
                else:
                    self.channels.send_to_tokenizer.send_output(output, message)

    def name_weights(self, version: str) -> None:
        """Give the weights another version, with SGLang's own records of the change."""
        context = import_module("sglang.srt.runtime_context")
        before = context.get_serving().weight_version
        if version != before:
            context.get_context().override("scheduler.weight_version", weight_version=version)
            record = import_module("sglang.srt.utils.weight_versions").record_weight_version_events
            record([running.request for running in self.engine.requests], old_version=before)

    def order_end(self, running: Running) -> None:
        """End a request at the next step, as SGLang's scheduler does for an abort."""
        req = running.request
        self.engine.take(running.name)
        # The request was waiting; SGLang's scheduler answers it outside of the output stream.
        if running.given == 0:
            abort = self.io.AbortReq(rid=running.name)
            if self.rust is not None:
                self.rust.push_abort(abort, req)
            else:
                self.channels.send_to_tokenizer.send_output(abort, req)
            return
        req.to_finish = self.abort_class()
        running.end(Outcome("abort"))
        self.engine.running[running.name] = running

    def add(self, message: Any) -> None:
        """Add a request: compute its answer, and create SGLang's `Req` for it."""
        if hasattr(message, "unwrap_pickle_fields"):
            message.unwrap_pickle_fields()
        params, prompt = message.sampling_params, list(message.input_ids or [])
        room = max(self.max_req_input_len - len(prompt), 1)
        params.max_new_tokens = room if params.max_new_tokens is None else min(params.max_new_tokens, room)
        req = self.request_class(
            message.rid,
            message.input_text,
            message.input_ids,
            params,
            eos_token_ids=self.model_config.hf_eos_token_id,
            vocab_size=self.model_config.vocab_size,
            require_reasoning=getattr(message, "require_reasoning", False),
            **{name: getattr(message, name) for name in _OPTIONS},
        )
        req.tokenizer = self.tokenizer
        custom = params.custom_params
        try:
            given = custom.get(KEY) if isinstance(custom, dict) else None
            schedule = schedule_of(given, message.rid, self.default)
            right = answer(self.law, prompt, self.sampling_of(params))
            if message.return_logprob:
                start = message.logprob_start_len
                self.log_prompt(log_of(req), prompt, len(prompt) if start < 0 else start)
        except Exception as error:  # An error ends only this request, and becomes the answer to the request.
            words, status = refusal(error)
            req.to_finish = self.abort_class(words, status, _ERRORS[status])
            schedule, right = Schedule(info=self.default.info), Answer((), (), Outcome("abort"))
        self.engine.add(Running(message.rid, prompt, right, schedule, req))

    def sampling_of(self, params: Any) -> Sampling:
        """Return the sampling parameters. SGLang samples at least one token, and `Req` decides the end."""
        ends = frozenset(params.stop_token_ids or ())
        if not params.ignore_eos:
            ends |= frozenset(self.model_config.hf_eos_token_id or ())
        bias = {int(token): value for token, value in (params.logit_bias or {}).items()}
        wanted = {kind: getattr(params, name, None) or None for kind, name in _LANGUAGES.items()}
        return Sampling(
            budget=max(params.max_new_tokens, 1),
            least=params.min_new_tokens or 0,
            barred=ends,
            bias=bias,
            language=Grammar.of(wanted, Path(self.rust_server_tokenizer_path())),
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            repetition=params.repetition_penalty,
        )

    # Steps.

    @property
    def is_idle(self) -> bool:
        """True if `step` has nothing to do."""
        return self.is_paused or not self.engine.requests

    def step(self) -> None:
        """Run a step, and send its outputs through SGLang's streamer, unless the engine is paused.

        Raises EngineDiedError.
        """
        if self.is_paused:
            return
        for wave in waves(self.engine.step()):
            going = [(running, emitted) for running, emitted in wave if not running.request.finished()]
            for running, emitted in going:
                self.extend(running.request, running, emitted)
            if not (ready := [running.request for running, _ in going]):
                continue
            self.trace.note("out", [output_of(req) for req in ready])
            self.streamer.stream_output(ready, any(req.return_logprob for req in ready))
            for req in ready:
                if req.finished():
                    self.engine.take(req.rid)

    def extend(self, req: Any, running: Running, emitted: Emitted) -> None:
        """Append the outputs of a step to a request, and let SGLang's `Req` check for its end."""
        schedule, places = running.schedule, range(emitted.start, emitted.start + len(emitted.ids))
        if emitted.is_first:
            req.cached_tokens = req.cached_tokens_device = min(schedule.cached, len(running.prompt))
        if emitted.was_preempted and not req.is_retracted:
            req.is_retracted, req.retraction_count = True, req.retraction_count + 1
        req.output_ids.extend(array("q", emitted.ids))
        if emitted.ids and self.end_of_reasoning is not None and req.require_reasoning:
            req.update_reasoning_tokens(list(emitted.ids), self.end_of_reasoning)
        if req.return_logprob:
            self.log_outputs(req, running, places)
        # SGLang samples one token even if it refuses the request.
        sampled = emitted.ids or ((0,) if emitted.is_first else ())
        for key in schedule.info:
            for value in values_of(key, emitted.start, sampled, len(running.prompt)):
                result = SimpleNamespace(customized_info={key.name: [value]})
                # SGLang's own function collects the values, one value in each call.
                self.collect(None, 0, req, result)
        outcome = emitted.outcome
        if outcome is not None and outcome.kind in {"error", "abort", "repeat"} and not req.to_finish:
            kind = "InternalServerError" if outcome.status else None
            req.to_finish = self.abort_class("the schedule of the request says so", outcome.status, kind)
        look_for_end = getattr(req, "update_finish_state", None) or req.check_finished
        look_for_end(new_accepted_len=max(1, len(emitted.ids)))

    def log_prompt(self, log: Any, prompt: Sequence[int], start: int) -> None:
        """Set the logprobs of a prompt from a position on. The first token of the prompt has no logprob."""
        places = range(start + 1, len(prompt))
        rows = [(prompt[place - self.law.lag(place)], prompt[place]) for place in places]
        for name, values in scores(self.law, rows, log.top_logprobs_num, log.token_ids_logprob).items():
            first = prompt[start:][:1] if name == "token_logprobs_idx" else [None] * bool(prompt[start:])
            setattr(log, f"input_{name}", [*first, *values])

    def log_outputs(self, req: Any, running: Running, places: Sequence[int]) -> None:
        """Append the logprobs of the outputs at these places. At a limit of 0, the id itself has none."""
        log = log_of(req)
        kind, wrong = running.schedule.logprobs or ("", -1)
        kept = [place for place in places if (kind, place) != ("none", wrong)]
        rows = [(running.right.likeliest[place], running.right.ids[place]) for place in kept]
        found = scores(self.law, rows, log.top_logprobs_num, log.token_ids_logprob)
        if kind == "nan" and wrong in kept:
            found["token_logprobs_val"][kept.index(wrong)] = float("nan")
        for name, values in found.items():
            if req.sampling_params.max_new_tokens or not name.startswith("token_logprobs"):
                getattr(log, f"output_{name}").extend(values)

    def run(self) -> None:
        """Process messages until the process is stopped, or until a schedule demands a crash."""
        while True:
            if self.is_idle:
                if self.rust is not None:
                    self.rust.wait_request(_IDLE_MS)
                else:
                    self.channels.recv_from_tokenizer.poll(_IDLE_MS)
            for message in self.receive():
                self.handle(message)
            if not self.is_idle:
                self.step()
                time.sleep(_TICK_S)


def run_scheduler_process(server_args: Any, port_args: Any, gpu_id: int, *rest: Any) -> None:
    """The scheduler process. It replaces SGLang's function of the same name."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe = next(one for one in rest if hasattr(one, "send"))
    publish(server_args, gpu_id)
    scheduler = Scheduler(server_args, port_args)
    limits = {name: getattr(scheduler, name) for name in ("max_total_num_tokens", "max_req_input_len")}
    pipe.send({"status": "ready", **limits, "startup_time": {"total": 0.0}, "hicache_object_layout": None})
    try:
        scheduler.run()
    except EngineDiedError as died:
        print(f"the schedule of request {died} ends the engine", file=sys.stderr, flush=True)
        os._exit(1)


def publish(server_args: Any, gpu_id: int) -> None:
    """Publish the server's settings within this process, in the way of the installed release."""
    try:
        context = import_module("sglang.srt.runtime_context")
    except ImportError:  # Releases up to 0.5.13 do not have this module.
        import_module("sglang.srt.server_args").set_global_server_args_for_scheduler(server_args)
        return
    ranks = context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=gpu_id)
    context.publish(server_args, role="scheduler", ranks=ranks)


def main() -> None:
    """Start SGLang's server over the engine."""
    if find_spec("sglang") is None:
        sys.exit(
            f"sglang is missing in {sys.executable}: install SGLang there, or name the interpreter of its "
            "environment, as in `/path/to/python -m sglang.launch_server`"
        )
    arguments = import_module("sglang.srt.server_args").prepare_server_args(sys.argv[1:])
    launch = import_module("sglang.srt.entrypoints.http_server").launch_server
    launch(arguments, run_scheduler_process_func=run_scheduler_process)


if __name__ in {"__main__", "__mp_main__"}:  # `__mp_main__` is the name in processes that SGLang starts
    sys.meta_path.append(WithoutKernels())
if __name__ == "__main__":
    main()
