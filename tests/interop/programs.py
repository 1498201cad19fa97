"""Programs of other people: started as their users start them, without a way to the model hub."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

MODELS = Path(__file__).parents[2] / "fixtures" / "models"

_STARTS_WITHIN_S = 240.0
"""Some import all of torch first, on a machine that may have much to do."""
_LAST_WORDS = 40


class Program:
    """A running program of somebody else: its last words, and whether it still runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        self._words.extend(self._process.stdout)

    def end(self) -> None:
        """Ask it to end, and listen to the end."""
        self._process.terminate()
        self._reader.join()

    def until(self, ready: Callable[[], bool]) -> None:
        """Ask again and again whether it is ready. Fails the test, with its last words, where it never is."""
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if ready():
                    return
            time.sleep(0.1)
        pytest.fail(f"{self._process.args} did not become ready:\n{''.join(self._words)}")


@contextlib.contextmanager
def program(command: Sequence[str], home: Path) -> Iterator[Program]:
    """Run a program of somebody else, without a way to the model hub; end it in the end."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "NO_COLOR": "1"}
    (home / "hub").mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **offline},
        cwd=home,
    ) as process:
        running = Program(process)
        try:
            yield running
        finally:
            running.end()


def free_port() -> int:
    """A port that nobody listens on, for programs that cannot choose one and tell it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def answers(url: str) -> Callable[[], bool]:
    """Whether a URL answers with status 200."""
    return lambda: httpx.get(url).status_code == 200
