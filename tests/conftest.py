"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from forked_program import run_forked, served_forked
from hypothesis import settings
from long_proofs import mark_long
from side_by_side import await_others_last, scheduler

pytest_xdist_make_scheduler = pytest.hookimpl(optionalhook=True)(scheduler)

settings.register_profile("untimed", deadline=None)
settings.register_profile("short", deadline=None, max_examples=25)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_long(items, config.args)
    await_others_last(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than processors: some tests wait for servers that hang."""
    return (os.cpu_count() or 1) + 1


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Name a failure as it happens: `-q` would print a letter, and the names only when all is over."""
    if not report.failed:
        return None
    word = "failed" if report.when == "call" else "error"
    return word, f"\n{word.upper()} {report.nodeid}\n", word.upper()


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What tokenwire remembers of the folders of these tests, and nothing of the user's own."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run([openssl, *words.split(), *names], check=True, capture_output=True)
    return files


@pytest.fixture
def tokenwire(tmp_path: Path) -> Callable[..., CompletedProcess[str]]:
    """Give `tokenwire(*words, **environment)`: the command line, run in this test's own folder."""

    def run(*words: str, **environment: str) -> CompletedProcess[str]:
        return run_forked("tokenwire", *words, folder=tmp_path, environment=environment)

    return run


@pytest.fixture(scope="session")
def start_reference() -> Iterator[Callable[..., str]]:
    """Give `start_reference(*flags) -> base_url`: a real server on a free loopback port.

    Equal flags share one server, which lives until the session ends.
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
    with served_forked(*flags) as (url, _):
        yield url
