"""The server process: a model, an engine on its thread, and HTTP."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from tokenwire_reference.assembly import ExtraArgs, make_engine
from tokenwire_reference.connection import Connection, OverConnections
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.model import Model
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import Row
from tokenwire_reference.doors.app import build_app
from tokenwire_reference.doors.disaggregation import Decode, Disaggregation, Prefill
from tokenwire_reference.doors.heads import MOST_HEAD_BYTES
from tokenwire_reference.doors.request_manager import RequestManager
from tokenwire_reference.doors.served import Served
from tokenwire_reference.extras.crash_hook import CrashAfter, crash_soon
from tokenwire_reference.extras.invariance_probe import probe_invariance
from tokenwire_reference.loading import load_model
from tokenwire_reference.running.engine_runner import EngineOnLoop, EngineRunner, EngineThread
from tokenwire_reference.running.handover import Handover
from tokenwire_reference.running.ranks import Ranks
from tokenwire_reference.server_args import ServerArgs


class EngineStoppedError(RuntimeError):
    """The engine has failed. Every client has got an error, and the process ends."""


ACCEPT_LOG_SECONDS = 10.0
"""Seconds between log messages about waiting connections."""
SHUTDOWN_SECONDS = 1
"""Seconds that the server waits for open answers after all requests have ended."""


def serve(args: ServerArgs) -> None:
    """Load the model, print the URL once requests are answered, and serve until SIGTERM or SIGINT.

    Raises what `load_model` and `Engine` raise, OSError if the port is in use, and EngineStoppedError.
    """
    logging.basicConfig(
        level=args.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    listening = listen(args)
    torch.set_num_threads(args.cpu_threads)
    model, *others = (
        load_model(
            args.model_path,
            device=args.device,
            dtype=args.dtype,
            context_length=args.context_length,
            tokenizer=not args.skip_tokenizer_init,
            script=args.script,
            lora=args.enable_lora or bool(args.lora_paths),
        )
        for _ in range(args.dp_size)
    )
    loop = asyncio.new_event_loop()
    served = assemble(replace(args, port=listening.getsockname()[1]), model, loop, others)
    _warn_where_variant(served.facts["batch_invariance"])
    loop.set_exception_handler(AcceptFailures())
    ending = Ending(served)

    def end_soon() -> None:
        loop.call_soon_threadsafe(ending.end)

    served.runner.on_failure = end_soon
    if isinstance(served.disaggregation, Prefill):
        port = served.disaggregation.start(args.host, args.disaggregation_bootstrap_port)
        served.facts["disaggregation_bootstrap_port"] = loop.run_until_complete(port)
    try:
        served.runner.start()
        loop.run_until_complete(ending.server.serve(sockets=[listening]))
    finally:
        served.runner.stop()
        served.constraining.close()
    if served.runner.failure is not None:
        raise EngineStoppedError(f"the engine stopped: {served.runner.failure}")


def _warn_where_variant(probe: Mapping[str, bool]) -> None:
    """Log a warning if the probed request gave different bits in some configurations."""
    if variant := [name for name, equal in probe.items() if not equal]:
        logging.getLogger(__name__).warning(
            "this model is not batch-invariant on this device: %s differ, so ids and logprobs may depend on"
            " neighbours; /server_info reports it and promises no deterministic inference",
            ", ".join(variant),
        )


def listen(args: ServerArgs) -> socket.socket:
    """Open the port. Connections inherit small send buffers, so that back-pressure reaches the request
    soon.
    """
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    listening = socket.create_server((args.host, args.port), family=family, backlog=2048)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, args.send_buffer_bytes)
    return listening


def assemble(
    args: ServerArgs, model: Model, loop: asyncio.AbstractEventLoop, others: Sequence[Model] = ()
) -> Served:
    """Create the engines, their runners and the request manager for one event loop, and connect them without
    starting them. `others` are copies of the model for further ranks, whose passes run at the same time.
    """

    def bring(rows: Sequence[Row]) -> None:
        if isinstance(runner, Ranks):
            runner.delivered(rows)
        manager.deliver(rows)

    ranks = [_rank(args, model_of_rank, loop, bring) for model_of_rank in (model, *others)]
    engine, first = ranks[0]
    runner = Ranks([runner for _, runner in ranks]) if others else first
    manager = RequestManager(runner, model.tokenizer)
    return Served(
        args=replace(args, max_total_tokens=engine.max_total_tokens),
        model=model,
        tokenizer=model.tokenizer,
        engine=engine,
        runner=runner,
        manager=manager,
        disaggregation=_disaggregation(args, engine),
        adapters={name: model.adapters.read(name, path) for name, path in args.adapters},
        facts=_facts(model, args.page_size),
    )


def _rank(
    args: ServerArgs,
    model: Model,
    loop: asyncio.AbstractEventLoop,
    bring: Callable[[Sequence[Row]], None],
) -> tuple[Engine, EngineRunner]:
    """Return an engine, and the runner that passes the engine's rows to `bring` on the event loop."""
    engine = make_engine(
        model,
        EngineArgs(
            max_running_requests=args.max_running_requests,
            max_queued_requests=args.max_queued_requests,
            request_waiting_timeout=args.request_waiting_timeout,
            chunked_prefill_size=args.chunked_prefill_size,
            max_total_tokens=args.max_total_tokens,
            page_size=args.page_size,
            sampling_backend=args.sampling_backend,
            enable_prefill_weight_versions=args.enable_prefill_weight_versions,
            prefix_caching=not args.disable_radix_cache and args.disaggregation_mode != "decode",
            random_seed=args.random_seed,
            weight_version=args.weight_version,
            speculative_num_draft_tokens=args.speculative_num_draft_tokens
            if args.speculative_algorithm
            else 0,
            test_retract_interval=args.test_retract_interval,
        ),
        ExtraArgs(
            host_cache_pages=args.hicache_size_pages if args.enable_hierarchical_cache else 0,
            storage_dir=Path(args.hicache_storage_dir) if args.hicache_storage_dir else None,
            storage_max_bytes=args.hicache_storage_max_bytes,
            disable_cuda_graph=args.disable_cuda_graph,
            near_ties=args.near_ties,
        ),
    )
    streamer = OutputStreamer(stream_interval=args.stream_interval)
    on_loop = model.module is None  # the steps of a script take no time
    deliver: Callable[[Sequence[Row]], None] = bring if on_loop else Handover(loop, bring)
    if crash_after := args.test_crash_after_stream_outputs:
        deliver = CrashAfter(crash_after, deliver, lambda: crash_soon(loop))
    if on_loop:
        return engine, EngineOnLoop(engine, streamer, deliver, loop)
    return engine, EngineThread(engine, streamer, deliver)


def _disaggregation(args: ServerArgs, engine: Engine) -> Disaggregation | None:
    """Return the disaggregation; None for a server without it.

    Raises ValueError for a model without keys and values.
    """
    if args.disaggregation_mode == "null":
        return None
    if engine.model.module is None:
        raise ValueError(f"{args.model_path} has no keys and values to hand over; serve another model")
    half = {"prefill": Prefill, "decode": Decode}[args.disaggregation_mode]
    return half(engine, args)


class AcceptFailures:
    """Handles connections that asyncio cannot accept, and logs at most one line in `ACCEPT_LOG_SECONDS`.

    Without free file descriptors, asyncio retries 2,048 times a second, and reports each failure with a
    traceback.
    """

    def __init__(self) -> None:
        self._silent_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}):
            loop.default_exception_handler(context)
        elif loop.time() >= self._silent_until:
            self._silent_until = loop.time() + ACCEPT_LOG_SECONDS
            logging.getLogger(__name__).error("new connections wait: %s", error)


def _facts(model: Model, page_size: int) -> dict[str, Any]:
    """Return the facts of `/server_info` under `tokenwire_reference`; the engine's probe found the row
    sizes.
    """
    return {
        "model": model.name,
        "vocab_size": model.vocab_size,
        "eos_token_ids": sorted(model.eos_token_ids),
        "dtype": str(model.dtype).removeprefix("torch."),
        "batch_invariant_row_sizes": list(model.row_sizes),
        "batch_invariance": probe_invariance(partial(make_engine, model), model, page_size=page_size),
        "torch": torch.__version__,
    }


class Ending:
    """Ends a server.

    After a first SIGTERM, running answers are completed before; otherwise the server ends at once.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self.answers = OverConnections(build_app(served, self._lifespan))
        """The application with all connections."""
        self.server = uvicorn.Server(
            uvicorn.Config(
                self.answers,
                http=partial(Connection, AutoHTTPProtocol, served.args),
                ws="none",
                log_config=None,
                access_log=served.args.log_requests,
                h11_max_incomplete_event_size=MOST_HEAD_BYTES,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._ending: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Print the URL, whose socket listens already, and install signal handlers before uvicorn does."""
        loop, args = asyncio.get_running_loop(), self._served.args
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(self.end, number))
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"{args.model_path} is served at http://{host}:{args.port}", flush=True)
        yield

    def end(self, number: int | None = None) -> None:
        """End the server as if it had received this signal.

        A second call does not wait for running answers.
        """
        draining = self._served.draining
        waits = number == signal.SIGTERM and not draining.is_set()
        draining.set()
        if self._ending is not None:
            self._ending.cancel()
        seconds = self._served.args.drain_seconds if waits else 0
        self._ending = asyncio.get_running_loop().create_task(self._end(seconds, number))

    async def _end(self, seconds: float, number: int | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.answers.idle.wait()
        self._served.manager.abort_all()
        if number is None:
            self.server.should_exit = True
        else:  # uvicorn raises the signal again once everything is closed
            self.server.handle_exit(number, None)
