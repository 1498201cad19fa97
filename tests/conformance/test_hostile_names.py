"""Names that servers and captures choose: keys, series, headers, events, scenarios. None ends a report."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recorded import IDS, document, request, streamed, whole

from tokenwire.commands.reporting import Reporting, judge_and_report
from tokenwire.disk import write_whole
from tokenwire.judging.verdict import ExitStatus
from tokenwire.pytest_plugin import ConformanceItem
from tokenwire.replay import replay
from tokenwire.report import files
from tokenwire.report.console import make_console
from tokenwire.report.files import Outputs
from tokenwire.report.tally_file import merged, read_tally
from tokenwire.settings import Settings
from tokenwire.wire.capture import exchange_lines
from tokenwire.wire.exchange import Exchange, Read, Server
from tokenwire.wire.inert import inert
from tokenwire_live.inspecting.server import HTML, PageServer

NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=6)
STRANGE = ("\ud800", "\udfff\x1b[2J", "\x00", "</script>", "%s{}", "\u202e", "\n::error::x", "'\"\\")


def hostile_answers(name: str) -> list[Exchange]:
    """Answers with the name wherever a server may choose one, and the same answers under such names."""
    info = {
        f"series-{name}": [1, 2],
        name: [[None]],
        "weight_version": name,
        "finish_reason": {"type": name, name: name},
        "output_token_logprobs": [[-0.5, 1, name]],
    }
    body = document(IDS, finished=True, request_id=name)
    body["meta_info"] |= info
    body |= {name: {name: name}, "text": name}
    data = json.dumps(body).encode()
    answer = replace(whole("whole"), reads=(Read(0.1, data),))
    stream = replace(
        streamed("stream"), reads=(Read(0.1, b"data: " + data + b"\n\n"), Read(0.2, b"data: [DONE]\n\n"))
    )
    hostile_headers = tuple((header, name) for header in (name, "x-request-id", "content-type"))
    return [
        answer,
        stream,
        replace(stream, name="twice", reads=stream.reads[:1] * 2),
        replace(answer, name="refused", status=400, reads=(Read(0.1, data),)),
        replace(answer, name="cut", reads=(Read(0.1, data[:-3]),)),
        replace(answer, name="headers", headers=hostile_headers),
        replace(
            answer, name=f"named/{name}", scenario=name, server=Server(name, name, (name,)), started=name
        ),
        replace(answer, name="asked", request=request_with(name)),
    ]


def request_with(name: str) -> Any:
    asked = request(stream=False)
    sampling = {"max_new_tokens": 6, "stop": [name], name: name}
    return replace(asked, body={"text": name, "sampling_params": sampling, "rid": name, name: 1})


def write_capture(path: Path, exchanges: list[Exchange]) -> Path:
    lines = (json.dumps(line) for exchange in exchanges for line in exchange_lines(exchange))
    write_whole(path, "\n".join(lines) + "\n")
    return path


def forms(folder: Path) -> Mapping[str, Path]:
    outputs = replace(Outputs.within(folder), trace=folder / "trace.json")
    return {form: file for form, file in vars(outputs).items() if file is not None}


@settings(max_examples=settings().max_examples // 5, deadline=None)
@given(name=NAMES)
@example(name=STRANGE[0])
@example(name=STRANGE[1])
@example(name=STRANGE[6])
def test_every_form_of_a_report_survives_any_name(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("report")
    subject = replay([write_capture(folder / "a.jsonl", hostile_answers(name))])
    paths = forms(folder / "report")
    console = make_console()
    console.file = io.StringIO()
    reporting = Reporting(Outputs(**paths), Settings(tally=folder / "tally.gz"))
    status = judge_and_report(subject, reporting, console)
    assert status == ExitStatus.VIOLATION
    for form, file in paths.items():
        assert file.read_text("utf-8"), form
    report = json.loads(paths["json"].read_text("utf-8"))
    assert not [row for row in report["verdicts"] if row["verdict"] == "HARNESS_ERROR"]
    merged([("a", read_tally(folder / "tally.gz"))])


@pytest.mark.parametrize("broken", ["page", "sarif", "badge", "trace", "fold", "as_json"])
def test_a_form_that_fails_costs_only_itself(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(files, broken, fail)
    paths = forms(tmp_path / "report")
    subject = replay([write_capture(tmp_path / "a.jsonl", [whole("a")])])
    assert judge_and_report(subject, Reporting(Outputs(**paths)), make_console()) == ExitStatus.HARNESS_ERROR
    printed = capsys.readouterr()
    assert "ZeroDivisionError: a bug of ours" in printed.err
    assert "a.jsonl: conforms, as far as this run could see" in printed.out
    assert sum(path.exists() for path in paths.values()) == len(paths) - 1


def test_pytest_failing_costs_only_junit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(ConformanceItem, "repr_failure", fail)
    paths = forms(tmp_path / "report")
    subject = replay([write_capture(tmp_path / "a.jsonl", [*hostile_answers("a")])])
    assert judge_and_report(subject, Reporting(Outputs(**paths)), make_console()) == ExitStatus.HARNESS_ERROR
    assert json.loads(paths["json"].read_text("utf-8"))["footer"] is True
    assert {form for form, path in paths.items() if not path.exists()} == {"junit"}


@given(name=NAMES)
@example(name=STRANGE[0])
def test_the_live_page_survives_any_name(name: str) -> None:
    async def page(_: str) -> tuple[str, str]:
        return HTML, f"<p>{name}</p>"

    answer = asyncio.run(PageServer({}, open_pages={"": page})._answer("GET", "/", b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert f"Content-Length: {len(body)}".encode() in head
    assert inert(name) in body.decode("utf-8")
