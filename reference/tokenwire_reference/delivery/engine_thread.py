"""The engine's own thread: requests go in through an inbox, rows come out by one call for each step."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from tokenwire_reference.delivery.output_streamer import OutputStreamer
from tokenwire_reference.engine.queue_limit import QueueFullError
from tokenwire_reference.request import FinishReason, OutputRow, Request

if TYPE_CHECKING:
    from tokenwire_reference.engine.engine import Engine

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class EngineThread:
    """Runs an engine. All methods but `run` may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        streamer: OutputStreamer,
        deliver: Callable[[Sequence[OutputRow]], None],
    ) -> None:
        """`deliver` is called on the engine's thread, at most once a step, with at least one row."""
        self._engine = engine
        self._streamer = streamer
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self.failure: BaseException | None = None
        """What broke the engine for good, or None."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called on the engine's thread, once, when the engine is broken and every client was told."""
        # A daemon: a long step must not keep a process alive that was told to end.
        self._thread = threading.Thread(target=self.run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Let the thread end after its current step."""
        self._inbox.put(self._stop)
        self._thread.join(timeout)

    def add(self, request: Request) -> None:
        self._inbox.put(lambda: self._add(request))

    def abort(self, rid: str) -> None:
        self._inbox.put(lambda: self._abort(rid))

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Run a function between two steps, on the engine's thread."""
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # who asked has left
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._inbox.put(run)
        return future

    def run(self) -> None:
        """Work until stopped."""
        while not self._stopping:
            try:
                self._drain_inbox()
                if not self._has_nothing_to_do and not self._stopping:
                    self._emit(self._engine.step())
            except Exception as error:
                self._fail(error)
            except BaseException as error:
                self._fail(error)
                raise

    @property
    def _has_nothing_to_do(self) -> bool:
        return self.failure is not None or self._engine.idle

    def _drain_inbox(self) -> None:
        """Do what was asked; wait for something to do only where the engine has nothing to compute."""
        if self._has_nothing_to_do:
            self._inbox.get()()
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
        try:
            self._engine.add(request)
        except ValueError as error:
            status = 503 if isinstance(error, QueueFullError) else 400
            request.finish = FinishReason("abort", message=str(error), status_code=status)
            self._emit([request])
        except Exception as error:  # the request could not even be queued: no other one notices
            logger.exception("request %r could not be queued", request.rid)
            self._engine.abort(request.rid)
            request.finish = FinishReason.of_failure(error)
            self._emit([request])

    def _emit(self, touched: Sequence[Request]) -> None:
        rows = self._streamer.stream(touched)
        for row in rows:
            if row.finish is not None and row.finish.failed:
                # It may have failed on its way out, when the engine still has it.
                self._abort(row.rid)
        if rows:
            self._deliver(rows)

    def _fail(self, error: BaseException) -> None:
        """End every request with a server error: a client must not wait for an engine that is gone."""
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
