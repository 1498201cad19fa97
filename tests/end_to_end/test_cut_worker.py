"""A worker that breaks off in a stream, behind tiny gateways of our own that end it in different ways."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from threaded_server import serve_in_threads

from tokenwire.asking.run import Plan, Progress, interrogate
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.replay import replay
from tokenwire.report.subject import Subject
from tokenwire.requirement import load_requirements
from tokenwire.settings import Settings
from tokenwire.wire.address import Address
from tokenwire_live.cutting import CuttingProxy

ROWS = [load_requirements()[name] for name in ("gateway-shows-a-cut", "gateway-explains-a-cut")]
OTHERS = [load_requirements()[name] for name in ("stream-ends-cleanly", "requests-do-not-break-the-server")]
ERROR = b'data: {"error": {"message": "the worker broke off", "code": 502}}\n\n'
DONE = b"data: [DONE]\n\n"


@contextmanager
def gateway(worker: str, ending: bytes | None) -> Iterator[str]:
    """A gateway that passes on what comes, and writes this after a cut; None to break off too."""
    client = httpx.Client(base_url=worker, timeout=60)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers["content-length"])))

        def do_GET(self) -> None:
            self.forward(b"")

        def forward(self, body: bytes) -> None:
            headers = {"content-type": "application/json"}
            with client.stream(self.command, self.path, content=body, headers=headers) as answer:
                self.send_response(answer.status_code)
                self.send_header("content-type", answer.headers["content-type"])
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                try:
                    for part in answer.iter_raw():
                        self.write(part)
                except httpx.RemoteProtocolError:
                    self.close_connection = True
                    if ending is None:
                        return
                    self.write(ending)
                self.wfile.write(b"0\r\n\r\n")

        def write(self, part: bytes) -> None:
            if part:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

        def log_message(self, *words: object) -> None:
            pass

    with client, serve_in_threads(Handler) as url:
        yield url


@contextmanager
def cut(worker: str) -> Iterator[str]:
    """The proxy that cuts streams, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    proxy = CuttingProxy(Address.of_target(worker))
    try:
        yield f"http://{run(proxy.listen(Address('127.0.0.1', 0)))}"
        run(proxy.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def worker(start_reference: Callable[..., str]) -> str:
    return start_reference()


def verdicts(subject: object) -> list[Verdict]:
    assert isinstance(subject, Subject), subject
    assert not [found for found in judge(subject.runs, OTHERS) if found.violations]
    return [judgement.verdict for judgement in judge(subject.runs, ROWS)]


def asked(url: str, worker: str, **options: Path) -> object:
    settings = Settings(
        target=url, worker=worker, timeout=120, scenario=("cut-worker",), dialect=("sglang-generate",)
    )
    return asyncio.run(interrogate(Plan(settings, **options), Progress()))


@pytest.mark.parametrize(
    ("ending", "due"),
    [
        (ERROR + DONE, [Verdict.PASS, Verdict.PASS]),
        (None, [Verdict.PASS, Verdict.WARN]),
        (DONE, [Verdict.FAIL, Verdict.WARN]),
        (b"", [Verdict.FAIL, Verdict.WARN]),
    ],
    ids=["an error", "broken", "an end mark", "nothing"],
)
def test_the_end_of_a_cut_stream_is_judged(
    worker: str, ending: bytes | None, due: list[Verdict], tmp_path: Path
) -> None:
    """Live and replayed."""
    with cut(worker) as behind, gateway(behind, ending) as url:
        assert verdicts(asked(url, behind, record=tmp_path / "recorded")) == due
    assert verdicts(replay([tmp_path / "recorded"])) == due


def test_a_gateway_that_does_not_use_the_proxy_is_not_judged(worker: str) -> None:
    with cut(worker) as behind, gateway(worker, b"") as url:
        assert verdicts(asked(url, behind)) == [Verdict.NOT_TESTABLE] * 2


def test_a_worker_without_the_proxy_is_not_cut(worker: str) -> None:
    with gateway(worker, b"") as url:
        subject = asked(url, worker)
    assert isinstance(subject, Subject)
    (first, _) = judge(subject.runs, ROWS)
    assert (first.verdict, "tokenwire cut" in first.message) == (Verdict.NOT_TESTABLE, True)
