"""Runs work of unknown cost in separate processes, so that a limit can end the work.

A process is started when there is work for it. The process reads lines from its standard input, and writes
one line of output for each line. At SIGUSR1 it must end the current work; at the end of its input it must
exit.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class TrialError(RuntimeError):
    """The process ended during its work."""


class Trials:
    """A pool of processes that run a Python module.

    Each process does one piece of work at a time. Must be used on the event loop.
    """

    def __init__(self, module: str, greeting: Callable[[], bytes], processes: int) -> None:
        """Initialize. `greeting` returns the first input line for each process. It is called in a thread."""
        self._module = module
        self._greeting = greeting
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="trial")
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: list[subprocess.Popen[bytes]] = []

    async def run(self, line: bytes) -> bytes:
        """Let a process work on a line, and return its answer. Cancelling ends the work.

        Raises TrialError.
        """
        work = _Work(line)
        waiting = self._threads.submit(self._do, work)
        try:
            return await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            work.stop()
            raise

    def close(self) -> None:
        """End the processes and their work."""
        for process in list(self._all):
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._all:
            _end(process)
        self._all.clear()

    def _do(self, work: _Work) -> bytes:
        process = self._idle.pop() if self._idle else self._start()
        answer = work.done_by(process)
        if answer == b"":  # the process has ended
            self._all.remove(process)
            _end(process)
            raise TrialError(f"{self._module} ended with status {process.returncode}")
        self._idle.append(process)
        return answer or b""

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # allocators write their messages about limits to standard error
        )
        self._all.append(process)
        _write(process, self._greeting())
        return process


class _Work:
    """The work of a process on one input line. Another thread may stop the work."""

    def __init__(self, line: bytes) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def done_by(self, process: subprocess.Popen[bytes]) -> bytes | None:
        """Return the answer of a process, empty if it ended; None if the work was stopped before it began."""
        with self._lock:
            if self._stopped:
                return None
            self._process = process
        assert process.stdout is not None, "it is a pipe"
        try:
            _write(process, self._line)
            return process.stdout.readline()
        except BrokenPipeError:
            return b""
        finally:
            with self._lock:
                self._process = None

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.send_signal(signal.SIGUSR1)


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None, "it is a pipe"
    process.stdin.write(line + b"\n")
    process.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
