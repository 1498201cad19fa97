"""The server process: a model behind an engine's thread behind HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import torch
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tokenwire_reference.assembly import ExtraArgs, make_engine
from tokenwire_reference.core.engine import EngineArgs
from tokenwire_reference.core.engine_runner import EngineOnLoop, EngineRunner, EngineThread
from tokenwire_reference.core.handover import Handover
from tokenwire_reference.core.model import Model
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import Row
from tokenwire_reference.doors.app import build_app
from tokenwire_reference.doors.event_stream import OUTLET
from tokenwire_reference.doors.request_manager import RequestManager
from tokenwire_reference.doors.served import Served
from tokenwire_reference.extras.crash_hook import CrashAfter, crash_soon
from tokenwire_reference.extras.invariance_probe import probe_invariance
from tokenwire_reference.loading import load_model
from tokenwire_reference.server_args import ServerArgs


class EngineStoppedError(RuntimeError):
    """The engine is broken for good; every client was told, and the process ends."""


MOST_HEAD_BYTES = 1 << 16
"""Of a request, before its body."""
SHUTDOWN_SECONDS = 1
"""How long an open answer may go on after all requests were ended."""


def serve(args: ServerArgs) -> None:
    """Load the model, print the URL once requests are answered, and serve until SIGTERM or SIGINT.

    Raises what `load_model` and `Engine` raise, OSError where the port is taken, and EngineStoppedError.
    """
    logging.basicConfig(
        level=args.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    listening = listen(args)
    torch.set_num_threads(args.cpu_threads)
    model = load_model(
        args.model_path,
        device=args.device,
        dtype=args.dtype,
        context_length=args.context_length,
        tokenizer=not args.skip_tokenizer_init,
        script=args.script,
    )
    loop = asyncio.new_event_loop()
    served = assemble(replace(args, port=listening.getsockname()[1]), model, loop)
    _warn_where_variant(served.facts["batch_invariance"])
    server = Server(served)

    def end_soon() -> None:
        loop.call_soon_threadsafe(server.end)

    served.runner.on_failure = end_soon
    try:
        served.runner.start()
        # The signal that ended the server is raised again by uvicorn once everything is closed.
        loop.run_until_complete(server.serve(sockets=[listening]))
    finally:
        served.runner.stop()
    if served.runner.failure is not None:
        raise EngineStoppedError(f"the engine stopped: {served.runner.failure}")


def _warn_where_variant(probe: Mapping[str, bool]) -> None:
    """Log which ways of running a request gave it other bits, if any did."""
    if variant := [name for name, equal in probe.items() if not equal]:
        logging.getLogger(__name__).warning(
            "this model is not batch-invariant on this device: %s differ, so ids and logprobs may depend on"
            " neighbours; /server_info reports it and promises no deterministic inference",
            ", ".join(variant),
        )


def listen(args: ServerArgs) -> socket.socket:
    """Take the port. Connections inherit small send buffers: back-pressure reaches the request soon."""
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    listening = socket.create_server((args.host, args.port), family=family, backlog=2048)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, args.send_buffer_bytes)
    return listening


def assemble(args: ServerArgs, model: Model, loop: asyncio.AbstractEventLoop) -> Served:
    """Put engine, streamer, thread and manager together, for one event loop. Nothing runs yet."""
    engine = make_engine(
        model,
        EngineArgs(
            max_running_requests=args.max_running_requests,
            max_queued_requests=args.max_queued_requests,
            chunked_prefill_size=args.chunked_prefill_size,
            max_total_tokens=args.max_total_tokens,
            page_size=args.page_size,
            sampling_backend=args.sampling_backend,
            prefix_caching=not args.disable_radix_cache,
            random_seed=args.random_seed,
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
    tokenizer = model.tokenizer
    streamer = OutputStreamer(stream_interval=args.stream_interval)

    def bring(rows: Sequence[Row]) -> None:
        manager.deliver(rows)

    on_loop = model.module is None  # it takes no time
    deliver: Callable[[Sequence[Row]], None] = bring if on_loop else Handover(loop, bring)
    if crash_after := args.test_crash_after_stream_outputs:
        deliver = CrashAfter(crash_after, deliver, lambda: crash_soon(loop))
    runner: EngineRunner = (
        EngineOnLoop(engine, streamer, deliver, loop) if on_loop else EngineThread(engine, streamer, deliver)
    )
    manager = RequestManager(runner, tokenizer)
    return Served(
        args=replace(args, max_total_tokens=engine.max_total_tokens),
        model=model,
        tokenizer=tokenizer,
        engine=engine,
        runner=runner,
        manager=manager,
        facts=_facts(model, args.page_size),
    )


def _facts(model: Model, page_size: int) -> dict[str, Any]:
    """What `/server_info` tells under `tokenwire_reference`; the engine's probe found the row sizes."""
    return {
        "model": model.name,
        "vocab_size": model.vocab_size,
        "eos_token_ids": sorted(model.eos_token_ids),
        "dtype": str(model.dtype).removeprefix("torch."),
        "batch_invariant_row_sizes": list(model.row_sizes),
        "batch_invariance": probe_invariance(partial(make_engine, model), model, page_size=page_size),
        "torch": torch.__version__,
    }


class _Outgoing:
    """A transport that drops what is written once the connection is lost.

    An answer of many events in a row (a batch) learns of the loss only behind them, and asyncio would log a
    warning for each.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


class Connection(h11.Connection):
    """Frames the parts of a chunked body itself: between them nothing changes of what h11 keeps."""

    _in_chunks = False

    def part(self, data: bytes) -> Any:
        """What is written for a part of a body."""
        if self._in_chunks and data:
            return b"%x\r\n%b\r\n" % (len(data), data)
        return super().send(h11.Data(data=data))

    def send(self, event: Any) -> Any:
        if type(event) is h11.Data:
            return self.part(event.data)
        output = super().send(event)
        if type(event) is h11.Response:
            self._in_chunks = output is not None and b"\r\nTransfer-Encoding: chunked\r\n" in output
        elif type(event) is h11.EndOfMessage:
            self._in_chunks = False
        return output


class ConnectionOutlet:
    """Writes parts of the body of one answer: see `Outlet`."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def free(self) -> bool:
        return bool(self._cycle.disconnected) or not self._cycle.flow.write_paused

    def write(self, part: bytes) -> None:
        if not self._cycle.disconnected:
            self._cycle.transport.write(self._cycle.conn.part(part))


class Protocol(H11Protocol):  # type: ignore[misc]  # uvicorn is not followed by mypy here
    """HTTP that stops writing as soon as the kernel takes no more: outputs wait where they can coalesce.

    A client that owes a request, or the rest of one, is waited for so long and no longer.
    """

    def __init__(self, *args: Any, receive_seconds: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = Connection(h11.SERVER, self.config.h11_max_incomplete_event_size or MOST_HEAD_BYTES)
        self.app: ASGIApp = self.with_outlet(self.app)
        self._receive_seconds = receive_seconds
        self._too_late: asyncio.TimerHandle | None = None

    def with_outlet(self, app: ASGIApp) -> ASGIApp:
        """An application that is offered an outlet for each of its answers."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "extensions": {OUTLET: ConnectionOutlet(self.cycle)}}, receive, send)

        return answer

    def connection_made(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=0)
        super().connection_made(_Outgoing(transport))
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_wait()

    def _await_request(self) -> None:
        """Give the client one limited time to send a request, however slowly its bytes come."""
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._end_wait()
        elif self._too_late is None:
            self._too_late = self.loop.call_later(self._receive_seconds, self.transport.close)

    def _end_wait(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None


class Server(uvicorn.Server):  # type: ignore[misc]  # uvicorn is not followed by mypy here
    """uvicorn, which says its URL on stdout and ends open answers when it is told to end."""

    def __init__(self, served: Served) -> None:
        super().__init__(
            uvicorn.Config(
                build_app(served),
                http=partial(Protocol, receive_seconds=served.args.receive_seconds),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=served.args.log_requests,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._served = served
        self._until = 0.0
        """When answers end that are under way."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        args = self._served.args
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"{args.model_path} is served at http://{host}:{args.port}", flush=True)

    def end(self) -> None:
        """Tell the server to end, as a signal does."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let answers go on for a while after the first SIGTERM; any other signal ends them."""
        drains = sig == signal.SIGTERM and not self.should_exit
        self._until = time.monotonic() + self._served.args.drain_seconds if drains else 0.0
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if not await super().on_tick(counter):
            return False
        self._served.draining.set()
        return not self.server_state.tasks or time.monotonic() >= self._until

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._served.manager.abort_all()
        await super().shutdown(sockets)
