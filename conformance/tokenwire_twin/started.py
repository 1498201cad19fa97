"""Starts the servers of a comparison by commands, one after the other, on the same port."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from tokenwire.usage_error import UsageError

PORT = "{port}"
"""The placeholder for the port in a command."""
_HOST = "127.0.0.1"
_OK = 200
_PAUSE_S = 0.2
_ANSWER_S = 5.0
_END_S = 15.0
_SHOWN_BYTES = 2_000
"""The number of bytes of a server's output that are shown if the server does not start."""


@dataclass(frozen=True)
class Start:
    """The command that starts a server, and the condition by which the server is ready."""

    command: str
    """The command line. `{port}` is replaced by the port."""
    ready: str = "/v1/models"
    """The path that answers with status 200 when the server is ready."""
    wait_s: float = 600.0
    """The most seconds until the server is ready."""

    def words(self, port: int) -> list[str]:
        """Return the words of the command line for a port. Raises UsageError."""
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise UsageError(f"{self.command!r} is not a command: {error}; close its quotes") from error
        if not any(PORT in word for word in words):
            raise UsageError(f"{self.command!r} has no {PORT}; write {PORT} where the port belongs")
        return [word.replace(PORT, str(port)) for word in words]


@contextlib.contextmanager
def started(start: Start, port: int) -> Iterator[str]:
    """Run a server in this context, and yield the server's URL.

    When the server is stopped, all processes of its process group are stopped as well. Raises UsageError if
    the server does not start.
    """
    words, url = start.words(port), f"http://{_HOST}:{port}"
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise UsageError(f"{start.command!r} cannot be started: {error.strerror}") from error
        try:
            _demand_answer(start, process, url, log)
            yield url
        finally:
            _end(process)


def _demand_answer(start: Start, process: subprocess.Popen[bytes], url: str, log: IO[bytes]) -> None:
    """Wait until a server is ready.

    Raises UsageError if the server ends before, or if the time limit is reached.
    """
    until = time.monotonic() + start.wait_s
    while not _answers(url + start.ready):
        if process.poll() is not None:
            why = f"ended with status {process.returncode}"
        elif time.monotonic() > until:
            why = f"did not answer {start.ready} with 200 within {start.wait_s:g} s"
        else:
            time.sleep(_PAUSE_S)
            continue
        raise UsageError(f"{start.command!r} {why}; it wrote:\n{_end_of(log)}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
            return bool(answer.status == _OK)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def _end_of(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _SHOWN_BYTES))
    return log.read().decode(errors="replace").strip() or "nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a server and all processes in its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            continue
        if number is signal.SIGTERM:
            continue  # other processes of its group may still run
        return
