"""A gateway beside its worker: tiny proxies of our own in front of the reference, each with one defect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from threaded_server import serve_in_threads

from tokenwire.asking.run import Plan, Progress, interrogate
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.replay import replay
from tokenwire.report.document import document
from tokenwire.report.subject import Subject
from tokenwire.requirement import load_requirements
from tokenwire.settings import Settings
from tokenwire.usage_error import UsageError

Edit = Callable[[int, bytes], tuple[int, bytes]]
"""Makes status and body of a proxy's answer from those of the worker."""

ROWS = [row for row in load_requirements().values() if row.oracle == "across-targets"]


@contextmanager
def gateway(worker: str, edit: Edit) -> Iterator[str]:
    """A proxy that reads each answer to its end, and passes on what `edit` makes of it."""
    client = httpx.Client(base_url=worker, timeout=60)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers["content-length"])))

        def do_GET(self) -> None:
            self.forward(b"")

        def forward(self, body: bytes) -> None:
            headers = {"content-type": self.headers.get("content-type", "application/json")}
            answer = client.request(self.command, self.path, content=body, headers=headers)
            status, data = edit(answer.status_code, answer.content)
            self.send_response(status)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: object) -> None:
            pass

    with client, serve_in_threads(Handler) as url:
        yield url


def untouched(status: int, body: bytes) -> tuple[int, bytes]:
    return status, body


def drops_a_field(status: int, body: bytes) -> tuple[int, bytes]:
    return status, body.replace(b'"prompt_token_ids"', b'"lost"')


def renames_the_finish(status: int, body: bytes) -> tuple[int, bytes]:
    for name in (b'"type":', b'"finish_reason":'):
        body = body.replace(name + b'"length"', name + b'"stop"')
    return status, body


def loses_the_last_event(status: int, body: bytes) -> tuple[int, bytes]:
    frames = body.split(b"\n\n")
    if frames[-2:] != [b"data: [DONE]", b""] or len(frames) < 4:
        return status, body
    return status, b"\n\n".join([*frames[:-3], *frames[-2:]])


def refuses_in_its_own_words(status: int, body: bytes) -> tuple[int, bytes]:
    return (
        (422, json.dumps({"error": {"message": "Bad Request"}}).encode()) if status == 400 else (status, body)
    )


def judged(subject: object) -> dict[str, Verdict]:
    assert isinstance(subject, Subject), subject
    return {judgement.requirement.id: judgement.verdict for judgement in judge(subject.runs, ROWS)}


def asked(url: str, *, record: Path | None = None, **options: Any) -> dict[str, Verdict]:
    plan = Plan(Settings(target=url, timeout=120, **options), record=record)
    return judged(asyncio.run(interrogate(plan, Progress())))


def red(verdicts: dict[str, Verdict]) -> set[str]:
    return {
        name.removeprefix("gateway-keeps-") for name, verdict in verdicts.items() if verdict is Verdict.FAIL
    }


@pytest.fixture(scope="module")
def worker(start_reference: Callable[..., str]) -> str:
    return start_reference("--incremental-streaming-output")


def test_a_proxy_that_touches_nothing_keeps_everything_and_its_recording_says_the_same(
    worker: str, tmp_path: Path
) -> None:
    with gateway(worker, untouched) as url:
        live = asked(url, worker=worker, scenario=("gateway",), record=tmp_path / "recorded")
    assert set(live) == {row.id for row in ROWS}
    assert set(live.values()) == {Verdict.PASS}
    assert judged(replay([tmp_path / "recorded"])) == live


@pytest.mark.parametrize(
    ("edit", "kept_not"),
    [
        (drops_a_field, {"every-field"}),
        (renames_the_finish, {"the-finish"}),
        (
            loses_the_last_event,
            {"the-finish", "the-ids", "the-text", "the-series", "every-field", "the-counts"},
        ),
        (refuses_in_its_own_words, {"the-status"}),
    ],
)
def test_a_defect_of_a_proxy_is_seen(worker: str, edit: Edit, kept_not: set[str]) -> None:
    with gateway(worker, edit) as url:
        verdicts = asked(url, worker=worker, scenario=("gateway",))
    assert red(verdicts) == kept_not
    words = Verdict.WARN if edit is refuses_in_its_own_words else Verdict.PASS
    assert verdicts["gateway-keeps-the-reason"] is words


def test_without_a_worker_nothing_is_compared(worker: str) -> None:
    assert set(asked(worker, scenario=("probe",)).values()) == {Verdict.NOT_TESTABLE}


def test_a_worker_that_is_none_is_told() -> None:
    with pytest.raises(UsageError, match="--worker"):
        asyncio.run(interrogate(Plan(Settings(target="http://127.0.0.1:1", worker="localhost")), Progress()))


def miscounts(status: int, body: bytes) -> tuple[int, bytes]:
    return status, body.replace(b'"completion_tokens":', b'"completion_tokens":1')


def names_no_type(status: int, body: bytes) -> tuple[int, bytes]:
    return status, body.replace(b'"type":"length"', b'"type":7').replace(b'"type": "length"', b'"type": 7')


def test_what_the_worker_does_by_itself_is_marked_and_comes_last(worker: str, tmp_path: Path) -> None:
    """Live and replayed. The gateway adds a defect of its own to one that its worker has."""
    chosen = [load_requirements()[name] for name in ("ids-are-counted", "answer-fits-schema")]
    with gateway(worker, miscounts) as behind, gateway(behind, names_no_type) as url:
        settings = Settings(
            target=url,
            worker=behind,
            timeout=120,
            scenario=("greedy-stream",),
            dialect=("sglang-generate",),
        )
        subject = asyncio.run(interrogate(Plan(settings, record=tmp_path / "recorded"), Progress()))
    assert isinstance(subject, Subject)
    for seen in (subject, replay([tmp_path / "recorded"])):
        report = document(seen, judge(seen.runs, chosen), 1)
        causes = [(cause["requirement"], cause.get("of_worker", False)) for cause in report["causes"]]
        assert causes == [("answer-fits-schema", False), ("ids-are-counted", True)]


def refuses_in_plain_text(status: int, body: bytes) -> tuple[int, bytes]:
    return status, b"no" if status == 400 else body


def test_failures_of_dangerous_requests_are_asked_of_the_worker_too(worker: str) -> None:
    """These scenarios run last, after all that is asked of the worker."""
    with gateway(worker, refuses_in_plain_text) as behind, gateway(behind, untouched) as url:
        plan = Plan(Settings(target=url, worker=behind, timeout=120, scenario=("malformed-ids",)))
        subject = asyncio.run(interrogate(plan, Progress()))
    assert isinstance(subject, Subject), subject
    rows = document(subject, judge(subject.runs, [load_requirements()["refusal-is-json"]]), 1)["verdicts"]
    failed = [row for row in rows if row["verdict"] == "FAIL"]
    assert {row["scenario"] for row in failed} == {"malformed-ids"}
    assert all(row.get("of_worker") for row in failed)
