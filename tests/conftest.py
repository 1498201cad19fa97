"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def start_reference() -> Iterator[Callable[..., str]]:
    """Give `start_reference(*flags) -> base_url`: a real server on a free loopback port.

    Equal flags share one server, which lives until the session ends. The model is builtin:tiny unless --model
    says otherwise. A server that ends before it gives its URL fails the test with what it wrote.
    """
    with contextlib.ExitStack() as servers:
        urls: dict[tuple[str, ...], str] = {}

        def start(*flags: str) -> str:
            if flags not in urls:
                urls[flags] = servers.enter_context(reference_server(flags))
            return urls[flags]

        yield start


@pytest.fixture(scope="session")
def serve_reference() -> Callable[[tuple[str, ...]], contextlib.AbstractContextManager[str]]:
    """Give `serve_reference(flags)`, a context that serves as long as it is open and gives the URL."""
    return reference_server


@contextlib.contextmanager
def reference_server(flags: tuple[str, ...]) -> Iterator[str]:
    """Serve the reference engine on a free port as long as this is open; its URL."""
    model = () if any(flag.startswith("--model") for flag in flags) else ("--model", "builtin:tiny")
    command = [sys.executable, "-m", "tokenwire_reference", "serve", "--port", "0", *model, *flags]
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as server,
    ):
        assert server.stdout is not None
        words = server.stdout.readline().split()
        if not words:
            server.wait()
            complaints.seek(0)
            pytest.fail(f"{' '.join(command)} ended with status {server.returncode}:\n{complaints.read()}")
        try:
            yield words[-1]
        finally:
            server.terminate()
            server.wait()
