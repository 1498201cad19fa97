"""What is no inference server earns no PASS, in bounded time, with a sentence that a newcomer understands."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from canned import NULL_TARGETS, CannedSender

from tokenwire.asking.preflight import Preflight, diagnosis, preflight
from tokenwire.asking.scenario import Conversation, Transcript, load_scenarios
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import ExitStatus, Verdict, exit_status
from tokenwire.report.document import document
from tokenwire.report.subject import Subject
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Exchange, HttpRequest


def first_words(sender: CannedSender) -> Preflight:
    return asyncio.run(preflight("http://target", sender, list(load_dialects().values())))


DIALECTS = tuple(load_dialects().values())
IN_ALL_DIALECTS = {
    *("empty object", "empty list", "null", "empty body", "empty choices"),
    *("empty object as a stream", "instant end"),
}
"""What a dialect might read something in. No dialect reads the others: a third of all dialects asks each."""


def everything_asked(name: str) -> Run:
    """All scenarios, as if the preflight had let them pass."""
    transcript, sender = Transcript(), NULL_TARGETS[name]
    asking = DIALECTS if name in IN_ALL_DIALECTS else DIALECTS[list(NULL_TARGETS).index(name) % 3 :: 3]

    async def talk() -> None:
        for scenario in load_scenarios().values():
            for dialect in asking:
                await scenario.run(Conversation(scenario.name, dialect, sender, Advertised(), transcript))

    asyncio.run(talk())
    return Run(tuple(transcript.streams))


@pytest.mark.parametrize("name", NULL_TARGETS)
def test_no_dialect_is_spoken_and_the_reason_is_told(name: str) -> None:
    found = first_words(NULL_TARGETS[name])
    assert found.speaks == ()
    assert found.left_out.keys() == load_dialects().keys()
    assert found.diagnosis


@pytest.mark.parametrize("name", NULL_TARGETS)
def test_no_requirement_passes_even_where_everything_is_asked(name: str) -> None:
    judgements = judge([everything_asked(name)])
    verdicts = {judgement.verdict for judgement in judgements}
    assert judgements
    assert Verdict.PASS not in verdicts, [j.name for j in judgements if j.verdict is Verdict.PASS]
    assert Verdict.HARNESS_ERROR not in verdicts, [j.message for j in judgements]
    assert exit_status(verdicts) in {ExitStatus.VIOLATION, ExitStatus.NOTHING_EVALUATED}
    subject = Subject(url="http://target")
    assert document(subject, judgements, 1)["summary"]["PASS"] == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing there", ("Nothing answers", "connection refused", "Start the server")),
        ("hangs", ("within 3 s", "loading its model")),
        ("HTML", ("HTML page", "not an inference server")),
        ("not found", ("none of the endpoints", "/generate", "404")),
        ("wants credentials", ("credentials", "--header")),
        ("broken", ("fails at every request", "500", "log")),
        ("empty object", ("not in a shape that this suite knows", "{}")),
        ("instant end", ("not in a shape that this suite knows", "data: [DONE]")),
    ],
)
def test_the_diagnosis_is_for_a_newcomer(name: str, words: tuple[str, ...]) -> None:
    diagnosis_found = first_words(NULL_TARGETS[name]).diagnosis
    for word in words:
        assert word in diagnosis_found
    assert "http://target" in diagnosis_found
    assert len(diagnosis_found) < 400


class OneDocument(CannedSender):
    """A server that has one information endpoint, and none that the suite knows."""

    def __init__(self, path: str, document: bytes) -> None:
        super().__init__(document)
        self.path = path

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        sender = self if request.path == self.path else CannedSender(b"404 page not found", status=404)
        return await CannedSender.send(sender, name, scenario, request, **how)


@pytest.mark.parametrize(
    ("path", "document", "words"),
    [
        ("/api/version", b'{"version":"0.31.0"}', "Ollama"),
        ("/info", b'{"model_id":"m","version":"3.3.6"}', "Text Generation Inference"),
        ("/info", b'{"model":"m"}', "none of the endpoints"),
        ("/info", b"not JSON", "none of the endpoints"),
        ("/", b'{"model_id":"m"}', "none of the endpoints"),
    ],
)
def test_a_server_of_another_protocol_is_named(path: str, document: bytes, words: str) -> None:
    found = first_words(OneDocument(path, document))
    assert (found.speaks, words in found.diagnosis) == ((), True)
    assert ("/v1/chat/completions)" in found.diagnosis) is ("none of the" not in words)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://target/api/chat", "without /api/chat"),
        ("http://target/x/api/generate/", "without /api/generate"),
        ("http://target/generate_stream", "Text Generation Inference"),
        ("http://target/api/tags", "none of the endpoints"),
    ],
)
def test_an_endpoint_of_another_protocol_is_named(url: str, words: str) -> None:
    sender = NULL_TARGETS["not found"]
    assert words in asyncio.run(preflight(url, sender, DIALECTS)).diagnosis
    unreachable = NULL_TARGETS["nothing there"]
    assert "Nothing answers" in asyncio.run(preflight(url, unreachable, DIALECTS)).diagnosis


def test_the_diagnosis_does_not_claim_what_only_one_endpoint_did() -> None:
    missing = asyncio.run(NULL_TARGETS["not found"].send("a", "b", next(iter(requests()))))
    broken = asyncio.run(NULL_TARGETS["broken"].send("a", "b", next(iter(requests()))))
    diagnosis_found = diagnosis("http://target", [missing, broken])
    assert "none of the endpoints" not in diagnosis_found
    assert "500" in diagnosis_found


def requests() -> Iterator:
    from tokenwire.asking.preflight import minimal_requests

    return (minimal_requests(dialect)[0] for dialect in load_dialects().values())


# Over the network, by the command line


class Answer(BaseHTTPRequestHandler):
    body = b"{}"

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST  # noqa: N815  # as above

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def empty_objects() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_of_empty_objects(tokenwire, empty_objects: str, tmp_path: Path) -> None:
    ran = tokenwire("check", "--target", empty_objects, "--json", "r.json", "--junit", "r.xml")
    assert ran.returncode == ExitStatus.NOTHING_EVALUATED, ran.stdout + ran.stderr
    assert "not in a shape that this suite knows" in ran.stdout
    assert "PASS" not in ran.stdout
    assert '"footer": true' in (tmp_path / "r.json").read_text("utf-8")
    assert 'tests="0"' in (tmp_path / "r.xml").read_text("utf-8")


def test_nobody_listens(tokenwire) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        ran = tokenwire("check", "--target", f"http://127.0.0.1:{port}")
    assert ran.returncode == ExitStatus.NOTHING_EVALUATED, ran.stdout + ran.stderr
    assert f"Nothing answers at http://127.0.0.1:{port}" in ran.stdout


def test_a_listener_that_never_answers(tokenwire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        ran = tokenwire("check", "--target", url, "--timeout", "0.3")
    assert ran.returncode == ExitStatus.NOTHING_EVALUATED, ran.stdout + ran.stderr
    assert "completed no answer" in ran.stdout
