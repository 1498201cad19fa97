"""What a server wrote is shown, and never acted on: in no terminal, log, page or file."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import whole, write_file
from rich.text import Text

from tokenwire import disk
from tokenwire.commands.reporting import Reporting, judge_and_report
from tokenwire.judging.verdict import ExitStatus
from tokenwire.replay import replay
from tokenwire.report.console import make_console
from tokenwire.report.files import Outputs
from tokenwire.report.github import fenced
from tokenwire.settings import Settings
from tokenwire.wire.exchange import Read
from tokenwire.wire.inert import inert

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[1;1Hconforms\x9b31m\x7f\u202eevil\u2028line\x00"
OURS = re.compile(r"\x1b\[[0-9;]*m")
"""The styles of this program: all that may reach a terminal."""
ACTIVE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def active(text: str) -> set[str]:
    """The characters of a text that something would act on instead of showing them."""
    return {item for item in text if unicodedata.category(item) in ACTIVE} - {"\n", "\t", "\r"}


@given(st.text(st.characters(exclude_categories=())))
def test_inert_text_is_shown_as_it_is_and_can_be_written(text: str) -> None:
    shown = inert(text)
    assert not active(shown)
    assert inert(shown) == shown
    shown.encode("utf-8")


def test_what_can_be_seen_stays_as_it_is() -> None:
    assert inert("naïve 漢字 😀\n\ttwo lines") == "naïve 漢字 😀\n\ttwo lines"
    assert inert("\x1b[2J") == "\\x1b[2J"
    assert inert("\ud800") == "\\ud800"


def console_output(console_of: dict[str, str | None], text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    for name, value in console_of.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    console = make_console()
    console.file = io.StringIO()
    console.print(Text(text, style="bold red"), soft_wrap=True)
    return console.file.getvalue()


@pytest.mark.parametrize("surroundings", [{}, {"FORCE_COLOR": "1", "TERM": "xterm-256color"}])
def test_a_console_passes_on_no_command_of_a_server(surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = console_output(surroundings, ESCAPES, monkeypatch)
    assert not active(OURS.sub("", shown))
    assert "\\x1b[2J" in shown


@settings(max_examples=25, deadline=None)
@given(text=st.text(st.characters(exclude_categories=()), min_size=1, max_size=8))
def test_no_form_of_a_report_breaks_or_obeys(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any text in the place of a finish type, which makes a violation that shows it."""
    folder = tmp_path_factory.mktemp("report")
    exchange = whole("a")
    body = json.loads(exchange.reads[0].data)
    body["meta_info"]["finish_reason"]["type"] = f"{text}{ESCAPES}"
    broken = replace(exchange, reads=(Read(0.1, json.dumps(body).encode()),))
    subject = replay([write_file(folder / "a.jsonl", broken)])
    console = make_console()
    console.file = io.StringIO()
    outputs = Outputs.within(folder / "report")
    status = judge_and_report(
        subject, Reporting(outputs, Settings(requirement=("finish-type-is-known",))), console
    )
    assert status == ExitStatus.VIOLATION
    output = console.file.getvalue()
    assert "finish-type-is-known" in output
    assert not active(OURS.sub("", output))
    for path in (outputs.json, outputs.html, outputs.sarif, outputs.junit, outputs.badge):
        assert isinstance(path, Path)
        assert not active(path.read_text("utf-8"))


def test_the_files_are_there_whatever_becomes_of_the_terminal(tmp_path: Path) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise UnicodeEncodeError("ascii", text, 0, 1, "no such letter here")

    console = make_console()
    console.file = Broken()
    outputs = Outputs(json=tmp_path / "report.json")
    with pytest.raises(UnicodeEncodeError):
        judge_and_report(replay([write_file(tmp_path / "a.jsonl", whole("a"))]), Reporting(outputs), console)
    assert json.loads((tmp_path / "report.json").read_text())["footer"] is True


def test_a_full_disk_costs_no_older_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "report.html"
    old.write_text("the old one")

    def full(path: Path) -> BinaryIO:
        disk.unfinished(path).touch()
        return Path("/dev/full").open("wb")

    subject = replay([write_file(tmp_path / "a.jsonl", whole("a"))])
    monkeypatch.setattr(disk, "begin", full)
    status = judge_and_report(subject, Reporting(Outputs(html=old)), make_console())
    monkeypatch.undo()
    printed = capsys.readouterr()
    assert status == ExitStatus.HARNESS_ERROR
    assert printed.err == f"{old} was not written: No space left on device\n"
    assert "a.jsonl: conforms, as far as this run could see" in printed.out
    assert [(path.name, path.read_text()) for path in tmp_path.glob("report*")] == [
        ("report.html", "the old one")
    ]


def test_a_workflow_takes_nothing_within_for_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with fenced({"GITHUB_ACTIONS": "true"}):
        print("##[error]not mine")
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("::stop-commands::")
    assert last == f"::{first.removeprefix('::stop-commands::')}::"
    with fenced({}):
        print("plain")
    assert capsys.readouterr().out == "plain\n"


@pytest.mark.parametrize(("columns", "width"), [("72", 72), ("200", 200), ("", 140), ("wide", 140)])
def test_the_width_of_what_no_terminal_shows(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert make_console().width == width
