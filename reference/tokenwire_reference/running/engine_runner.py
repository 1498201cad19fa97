"""Runs an engine: requests enter through an inbox, and rows leave by one call for each step.

`EngineThread` has its own thread, so that the event loop is free while a model computes. An engine of a
scripted model needs almost no time, and runs on the event loop (`EngineOnLoop`). With two threads, switching
between them would take longer than the work.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from tokenwire_reference.core.load import QueueFullError
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import FinishReason, Request, Row, alone

if TYPE_CHECKING:
    from tokenwire_reference.core.engine import Engine

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")
Deliver = Callable[[Sequence[Row]], None]

STOP_SECONDS = 1.0
"""Seconds to wait for the end of a step."""


class EngineRunner(ABC):
    """Runs an engine. The public methods may be called from any thread."""

    def __init__(self, engine: Engine, streamer: OutputStreamer, deliver: Deliver) -> None:
        """Initialize.

        `deliver` is called with the rows of a step, on the engine's thread, if the step has any rows.
        """
        self._engine = engine
        self._streamer = streamer
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self.failure: BaseException | None = None
        """The error after which the engine cannot continue; None while it works."""
        self.on_failure: Callable[[], None] = lambda: None
        """A function that is called on the engine's thread after the engine has failed and every client has
        got an error.
        """

    @abstractmethod
    def start(self) -> None:
        """Start the engine."""

    @abstractmethod
    def stop(self) -> None:
        """End the engine after its current step, and wait up to `STOP_SECONDS`.

        Must not be called on the event loop.
        """

    def add(self, request: Request, *, aborted: bool = False) -> None:
        """Run a request. A request that was already `aborted` ends without a step."""

        def task() -> None:
            self._add(request)
            if aborted:
                self._abort(request.rid)

        self._ask(task)

    def abort(self, rid: str) -> None:
        self._ask(lambda: self._abort(rid))

    def call(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Run a function between two steps, on the engine's thread."""
        future: Future[_Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the caller no longer waits
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._ask(run)
        return future

    def each(self, function: Callable[[Engine], _Result]) -> list[Future[_Result]]:
        """Run a function on every engine, between two steps of that engine. This runner has one engine."""
        return [self.call(lambda: function(self._engine))]

    def _ask(self, task: Callable[[], None]) -> None:
        self._inbox.put(task)

    @property
    def _has_nothing_to_do(self) -> bool:
        return self.failure is not None or self._engine.idle

    def _drain_inbox(self) -> None:
        """Run the tasks in the inbox."""
        while not self._stopping:
            try:
                task = self._inbox.get_nowait()
            except queue.Empty:
                return
            task()

    def _add(self, request: Request) -> None:
        self._streamer.admit(request)
        if self.failure is not None:
            self._end_all(self.failure)
            return
        if alone(request, self._queue, request, what="it could not be queued") is None:
            failure = request.finish
            self._engine.abort(request.rid)
            request.finish = failure
        if request.finish is not None:
            self._emit([request])

    def _queue(self, request: Request) -> bool:
        """Add a request to the engine.

        If the engine refuses the request, end the request and return False.
        """
        try:
            self._engine.add(request)
        except ValueError as error:
            status = 503 if isinstance(error, QueueFullError) else 400
            request.finish = FinishReason("abort", message=str(error), status_code=status)
        return request.finish is None

    def _emit(self, touched: Sequence[Request]) -> None:
        rows = self._streamer.stream(touched)
        for row in rows:
            if row.finish is not None and row.finish.failed:
                # If delivery failed, the engine may still have the request.
                self._abort(row.record.rid)
        if rows:
            self._deliver(rows)

    def _fail(self, error: BaseException) -> None:
        """End every request with a server error, so that no client waits for a broken engine."""
        logger.critical("the engine stopped: %s", error, exc_info=error)
        first, self.failure = self.failure is None, error
        self._end_all(error)
        if first:
            self.on_failure()

    def _end_all(self, error: BaseException) -> None:
        broken = self._streamer.live
        for request in broken:
            request.finish = FinishReason("abort", message=f"the engine stopped: {error}", status_code=500)
        self._emit(broken)

    def _abort(self, rid: str) -> None:
        if self.failure is None:
            self._engine.abort(rid)

    def _stop(self) -> None:
        self._stopping = True


class EngineThread(EngineRunner):
    """Runs an engine on its own thread."""

    _thread: threading.Thread | None = None

    def start(self) -> None:
        # The thread is a daemon, because a long step must not keep an ending process alive.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ask(self._stop)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping:
            try:
                if self._has_nothing_to_do:
                    self._inbox.get()()
                self._drain_inbox()
                if not self._has_nothing_to_do and not self._stopping:
                    self._emit(self._engine.step())
            except Exception as error:
                self._fail(error)
            except BaseException as error:
                self._fail(error)
                raise


class EngineOnLoop(EngineRunner):
    """Runs an engine on the event loop, one step in each iteration of the loop.

    A slow step runs in a thread.
    """

    def __init__(
        self, engine: Engine, streamer: OutputStreamer, deliver: Deliver, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(engine, streamer, deliver)
        self._loop = loop
        self._asked = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = self._loop.create_task(self._run())

    def stop(self) -> None:
        self._ask(self._stop)
        if self._running is None:
            return
        end = asyncio.wait([self._running], timeout=STOP_SECONDS)
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(end, self._loop).result()
        else:
            self._loop.run_until_complete(end)

    def _ask(self, task: Callable[[], None]) -> None:
        super()._ask(task)
        self._loop.call_soon_threadsafe(self._asked.set)

    async def _run(self) -> None:
        while not self._stopping:
            try:
                self._drain_inbox()
                if self._stopping:
                    break
                if self._has_nothing_to_do:
                    self._asked.clear()
                    await self._asked.wait()
                elif self._engine.takes_time:
                    self._emit(await asyncio.to_thread(self._engine.step))
                else:
                    self._emit(self._engine.step())
                    await asyncio.sleep(0)  # the next step runs after the consumers of these rows
            except Exception as error:
                self._fail(error)
