"""Each listener of the suite, alive on the loopback interface, and requests of browsers and strangers."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tokenwire.demo_server import demo_server
from tokenwire.local_server import LocalHandler, serving
from tokenwire_clients.server import torture_server
from tokenwire_clients.session import Session

CANARY = "ANSWERCANARY"
MODEL = "a-model-of-ours"
_ANSWER = {
    "text": "a b",
    "output_ids": [1, 2],
    "meta_info": {
        "id": CANARY,
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 0,
    },
}
"""Of another request id than its client chose."""
_CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": CANARY}, "finish_reason": "stop"},
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
_ASKED = {"text": "a prompt", "rid": "mine", "sampling_params": {"max_new_tokens": 2}}


@dataclass
class Listener:
    """A listener, and the server behind it where it has one."""

    url: str
    """The address of its page or of its API, with a token where it has one."""
    asked: list[Mapping[str, str]] = field(default_factory=list)
    """The heads of the requests that reached the server behind it."""
    target: str = ""

    @property
    def address(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    def ask(
        self, path: str, method: str = "GET", host: str | None = None, body: str = "", **headers: str
    ) -> tuple[int, str]:
        """Send a request with this Host; the status, and the body."""
        connection = http.client.HTTPConnection(self.address, timeout=120)
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": host or self.address, **headers}.items():
            connection.putheader(name, value)
        if method == "POST":
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body.encode())
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


@contextmanager
def target(asked: list[Mapping[str, str]]) -> Iterator[str]:
    """A server whose answers violate a sentence, and hold what nobody but its clients may read."""

    class Handler(LocalHandler):
        def parse_request(self) -> bool:
            return super(LocalHandler, self).parse_request()  # it answers under every Host

        def do_GET(self) -> None:  # noqa: N802  # so it is called
            asked.append(dict(self.headers))
            self.send_json(200, {})

        def do_POST(self) -> None:  # noqa: N802  # so it is called
            asked.append(dict(self.headers))
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_json(200, _CHAT if "chat" in self.path else _ANSWER)

    with serving(Handler, 0) as url:
        yield url


@contextmanager
def _program(folder: Path, *words: str) -> Iterator[Callable[[], str]]:
    """A command that runs, and the reader of its next line."""
    command = [sys.executable, "-m", "tokenwire", *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline
        finally:
            process.terminate()
            process.communicate(timeout=60)


@contextmanager
def watch(folder: Path, *, admin: bool) -> Iterator[Listener]:
    """A watcher that has judged an exchange which violates; or its pages."""
    asked: list[Mapping[str, str]] = []
    words = ("watch", "--listen", "127.0.0.1:0", "--admin-host", "watcher.internal", "--record", "kept")
    with target(asked) as url, _program(folder, *words, "--target", url) as line:
        proxy = Listener(line().split()[1], asked, url)
        page = Listener(line().split()[-1], asked, url)
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "a prompt"}]}
        proxy.ask("/v1/chat/completions", "POST", body=json.dumps(chat))
        proxy.ask("/generate", "POST", body=json.dumps(_ASKED))
        line()  # it tells of the violation once that is counted
        asked.clear()
        yield page if admin else proxy


@contextmanager
def cut(folder: Path) -> Iterator[Listener]:
    asked: list[Mapping[str, str]] = []
    with target(asked) as url, _program(folder, "cut", "--target", url) as line:
        yield Listener(line().split()[2], asked, url)


@contextmanager
def inspect(folder: Path) -> Iterator[Listener]:
    with demo_server() as url, _program(folder, "inspect", "--no-open", "--target", url) as line:
        yield Listener(line().split()[-1], target=url)


@contextmanager
def torture(_: Path) -> Iterator[Listener]:
    with torture_server(Session("client")) as url:
        yield Listener(url)


@contextmanager
def demo(_: Path) -> Iterator[Listener]:
    with demo_server() as url:
        yield Listener(url)
