"""`watch` and `compare` under a file of settings: what they take from it, and what not."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess

import loopback
import pytest

from tokenwire.demo_server import demo_server
from tokenwire.judging.verdict import ExitStatus


class Server(ThreadingHTTPServer):
    """Answers everything alike, and remembers what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.heads: list[dict[str, str]] = []
        self.bodies: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.heads.append({name.lower(): value for name, value in self.headers.items()})
        self.server.bodies.append(self.rfile.read(int(self.headers.get("content-length", 0))).decode())
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815  # the name that http.server calls

    def log_message(self, *_: object) -> None:
        """Be silent."""


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def servers() -> Iterator[Sequence[Server]]:
    with serving() as first, serving() as other:
        yield first, other


def write(folder: Path, text: str) -> None:
    (folder / "tokenwire.toml").write_text(text, "utf-8")


Run = Callable[..., CompletedProcess[str]]


def printed(ran: CompletedProcess[str]) -> str:
    """What was said, without the frame that errors stand in."""
    return " ".join((ran.stdout + ran.stderr).replace("│", " ").split())


@contextlib.contextmanager
def watching(folder: Path, *words: str) -> Iterator[list[str]]:
    """The first two lines that a watcher writes; it is ended in the end."""
    command = [sys.executable, "-m", "tokenwire", "watch", "--trust", *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield [process.stdout.readline() for _ in range(2)]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def test_a_watcher_takes_all_that_it_needs_from_the_file(servers: Sequence[Server], tmp_path: Path) -> None:
    write(
        tmp_path,
        f'target = "{servers[0].url}"\nheaders = {{ X-Own = "mine" }}\n'
        '[watch]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\nrecord = "kept"\ndrain = 0\n',
    )
    with watching(tmp_path) as lines:
        assert lines[0].endswith(f"for {servers[0].url.removeprefix('http://')}\n")
        loopback.get(f"{lines[0].split()[1]}/health")
    assert [head for head in servers[0].heads if "x-own" in head] == []
    assert len(servers[0].heads) == 1


def test_the_command_line_of_a_watcher_beats_the_file(servers: Sequence[Server], tmp_path: Path) -> None:
    write(tmp_path, f'target = "{servers[0].url}"\n[watch]\nlisten = "192.0.2.1:1"\n')
    with watching(tmp_path, "--listen", "127.0.0.1:0", "--target", servers[1].url) as lines:
        loopback.get(f"{lines[0].split()[1]}/health")
    assert [len(server.heads) for server in servers] == [0, 1]


@pytest.mark.parametrize(
    ("text", "words", "refusal"),
    [
        ('[watch]\nlisten = "here"\n', [], "watch.listen is 'here', but must be HOST:PORT"),
        ("[watch]\nrate = 1\n", [], "watch.rate is not a setting; it applies to all commands"),
        ('target = "http://h/v1"\n[watch]\nlisten = "127.0.0.1:0"\n', [], "'http://h/v1' has a path"),
        (
            'profiles = ["gateway"]\ntarget = "http://h"\n',
            ["--listen", "127.0.0.1:0"],
            "no single answer can violate gateway",
        ),
        ("", ["--listen", "127.0.0.1:0"], "Missing option '--target'"),
    ],
)
def test_what_a_watcher_cannot_do_by_the_file_is_told(
    tokenwire: Run, tmp_path: Path, text: str, words: list[str], refusal: str
) -> None:
    write(tmp_path, text)
    ran = tokenwire("watch", "--trust", *words)
    assert ran.returncode == ExitStatus.USAGE
    assert refusal in printed(ran)


def test_a_comparison_asks_as_the_file_says(
    tokenwire: Run, servers: Sequence[Server], tmp_path: Path
) -> None:
    write(tmp_path, 'dialects = ["sglang-generate"]\nbudget = "quick"\nmodel = "mine"\ntimeout = 5\n')
    tokenwire("compare", servers[0].url, servers[1].url, "--trust")
    asked = [body for body in servers[0].bodies if body]
    assert asked
    assert all('"input_ids"' in body for body in asked)
    (tmp_path / "other.toml").write_text("timeot = 5\n", "utf-8")
    wrong = tokenwire("compare", "a", "b", "--config", "other.toml")
    assert wrong.returncode == ExitStatus.USAGE
    assert "other.toml: timeot is not a setting; did you mean 'timeout'?" in printed(wrong)


def test_the_headers_of_the_file_go_to_its_target_alone(
    tokenwire: Run, servers: Sequence[Server], tmp_path: Path
) -> None:
    write(
        tmp_path,
        f'target = "{servers[1].url}/"\nheaders = {{ X-Own = "mine" }}\ndialects = ["sglang-generate"]\n',
    )
    for first, other in (servers, servers[::-1]):
        tokenwire("compare", first.url, other.url, "--header", "X-Said: here", "--timeout", "5", "--trust")
    seen = [
        {name: {head.get(name) for head in server.heads} for name in ("x-own", "x-said")}
        for server in servers
    ]
    assert seen == [{"x-own": {None}, "x-said": {"here"}}, {"x-own": {"mine"}, "x-said": {"here"}}]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("check", "-q", "--target"), " not asked: 12 of --max-requests 12 are sent"),
        (("record", "recorded", "--target"), " not asked: 12 of --max-requests 12 are sent); judge them: "),
        (("compare", "-q", "http://127.0.0.1:9"), "; not all was asked or compared"),
    ],
    ids=lambda words: words[0],
)
def test_a_limit_that_cut_a_run_short_is_reported_at_the_end(tokenwire, tmp_path, command, words) -> None:
    most = 12 if "compare" not in command else 24  # of both sides
    (tmp_path / "tokenwire.toml").write_text(f"max-requests = {most}\n", "utf-8")
    with demo_server() as url:
        command = [url if word.endswith(":9") else word for word in command]
        scenarios = ("--scenario", "request-id", "--scenario", "samples")
        ran = tokenwire(*command, url, *scenarios, "--dialect", "sglang-generate")
    last = " ".join(ran.stdout.rstrip().rpartition("\n\n")[2].split())
    assert words in last, ran.stdout + ran.stderr
