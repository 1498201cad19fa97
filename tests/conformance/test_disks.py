"""Disks that are full, read-only or not there cost a sentence: no traceback, no verdict, no older file."""

from __future__ import annotations

import errno
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from forked_program import forked
from proofs.hostile_servers import Hostile, HostileServer, stream
from recorded import document, streamed, whole, write_folder
from typer.testing import CliRunner, Result

from tokenwire.cli import app
from tokenwire.commands import reporting
from tokenwire.commands.reporting import Reporting, judge_and_report
from tokenwire.disk import why_unwritable
from tokenwire.judging.verdict import ExitStatus
from tokenwire.pytest_plugin import run_items
from tokenwire.replay import replay
from tokenwire.report.console import make_console
from tokenwire.report.files import Outputs
from tokenwire.wire import capture
from tokenwire.wire.capture import CaptureWriter
from tokenwire_live.watch.violation_folder import ViolationFolder

FULL = "No space left on device"
NOBODY = "http://127.0.0.1:1"
FORMS = ("--json", "--junit", "--html", "--sarif", "--badge")
CHECK = ("check", "--target", NOBODY)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a capture, a file and a folder."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "good", whole("w"), streamed("s"))
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    return tmp_path


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(words), env=environment)


def output_of(ran: Result) -> str:
    return " ".join(ran.output.replace("│", " ").split())


@pytest.mark.parametrize(
    "words",
    [
        *[(*CHECK, option, "folder") for option in FORMS],
        *[(*CHECK, option, "file/within") for option in FORMS],
        *[(*CHECK, option, "file") for option in ("--report", "--record")],
        *[(*CHECK, option, "/proc/nowhere") for option in ("--json", "--report", "--record")],
        *[("replay", "good", option, "file/within") for option in ("--json", "--report")],
        ("record", "file/within", "--target", NOBODY),
        ("record", "/proc/nowhere", "--target", NOBODY),
        ("compare", "good", "good", "--json", "folder"),
        ("compare", NOBODY, NOBODY, "--json", "file/within"),
        ("init", "--target", NOBODY, "--file", "file/within"),
        ("watch", "--listen", "127.0.0.1:0", "--target", NOBODY, "--record", "file"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_asked(
    here: Path, words: tuple[str, ...]
) -> None:
    ran = run(*words)
    assert ran.exit_code == ExitStatus.USAGE, ran.output
    assert any(
        item in output_of(ran) for item in ("cannot be written: ", "is a folder", "is not an empty folder")
    )
    assert "Nothing answers" not in output_of(ran)
    assert (here / "file").read_text() == "old"


def test_a_summary_of_a_step_that_cannot_be_written_is_refused(here: Path) -> None:
    ran = run(*CHECK, GITHUB_STEP_SUMMARY=str(here / "folder"))
    assert ran.exit_code == ExitStatus.USAGE
    assert "GITHUB_STEP_SUMMARY" in output_of(ran)


def test_a_read_only_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", read_only)
    assert why_unwritable(tmp_path / "x") == f"{tmp_path / 'x'} cannot be written: Read-only file system"


def test_missing_folders_are_made_and_nothing_else(tmp_path: Path) -> None:
    assert why_unwritable(tmp_path / "new" / "x.json") == ""
    assert [*tmp_path.rglob("*")] == [tmp_path / "new"]


class Filling(io.BytesIO):
    """A file on a disk that has so many bytes left."""

    left = 0

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if len(data) > Filling.left:
            raise OSError(errno.ENOSPC, FULL)
        Filling.left -= len(data)
        return super().write(data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give `disk(room)`: captures find so many bytes of room from then on."""
    really = CaptureWriter._new_file

    def new_file(writer: CaptureWriter, path: Path) -> BinaryIO:
        really(writer, path).close()
        return Filling()

    def limit(room: int) -> None:
        Filling.left = room
        monkeypatch.setattr(CaptureWriter, "_new_file", new_file)

    return limit


@pytest.fixture
def server() -> Iterator[HostileServer]:
    event = f"data: {json.dumps(document([1, 2, 3], finished=True))}\n\ndata: [DONE]\n\n"
    with HostileServer(Hostile(stream(event.encode()), ())) as serving:
        yield serving


ASKING = ("--dialect", "sglang-generate", "--scenario", "greedy-stream", "--timeout", "60")


@pytest.mark.parametrize("room", [0, 200, 5000])
def test_a_disk_that_fills_while_recording_costs_the_recording(
    here: Path, server: HostileServer, disk: Callable[[int], None], room: int
) -> None:
    """Before the first line, within an exchange or later: the verdicts are those without it."""
    judged = ("--requirement", "done-ends-the-stream", "--json")
    whole_run = run("check", "--target", server.url, *ASKING, *judged, "whole.json")
    disk(room)
    ran = run("check", "--target", server.url, *ASKING, *judged, "full.json", "--record", "kept")
    assert whole_run.exit_code == ExitStatus.CONFORMS, whole_run.output
    assert ran.exit_code == ExitStatus.HARNESS_ERROR, ran.output
    assert isinstance(ran.exception, SystemExit)
    assert ran.stderr.count(f"kept contains only some of the exchanges: {FULL}\n") == 1
    summaries = [json.loads((here / name).read_text())["summary"] for name in ("whole.json", "full.json")]
    assert summaries[0] == summaries[1]
    assert "tokenwire replay kept" not in (here / "full.json").read_text(), (
        "no line sends a reader to half a recording"
    )


def test_a_run_that_only_records_ends_where_nothing_can_be_written(
    here: Path, server: HostileServer, disk: Callable[[int], None]
) -> None:
    disk(200)
    ran = run("record", "kept", "--target", server.url, *ASKING, "-q")
    assert ran.exit_code == ExitStatus.HARNESS_ERROR, ran.output
    assert ran.stderr == f"kept contains only some of the exchanges: {FULL}; the run has ended\n"


def test_what_a_full_disk_cut_off_is_no_exchange(tmp_path: Path) -> None:
    """A disk as it is: `/dev/full` takes nothing, and says so when a file is flushed or closed."""
    found: list[str] = []
    writer = CaptureWriter(tmp_path, on_loss=found.append)
    with Path("/dev/full").open("wb") as full, capture.ExchangeWriter(full, on_loss=writer._lose) as file:
        file.exchange(whole("a"))
    with writer.open("b") as file:
        file.exchange(whole("b"))
    assert found == [writer.lost]
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def junit_disk_full(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when pytest begins to write `r.xml`."""

    def run(*positional: Any, **named: Any) -> Any:
        (here / "r.xml.part").symlink_to("/dev/full")
        return run_items(*positional, **named)

    monkeypatch.setattr(reporting, "run_items", run)


@pytest.mark.usefixtures("junit_disk_full")
def test_a_form_that_cannot_be_written_costs_no_other(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JUnit is pytest's to write, and the summary GitHub's."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/dev/full")
    outputs = Outputs(junit=here / "r.xml", json=here / "r.json")
    status = judge_and_report(replay([here / "good"]), Reporting(outputs), make_console())
    printed = capsys.readouterr()
    assert status == ExitStatus.HARNESS_ERROR
    assert printed.err.splitlines() == [
        f"{here / 'r.xml'} was not written: {FULL}",
        f"the summary of the step, /dev/full, was not written: {FULL}",
    ]
    assert "conforms" in printed.out
    assert json.loads((here / "r.json").read_text())["footer"] is True


@pytest.mark.usefixtures("junit_disk_full")
def test_an_old_junit_file_survives_a_full_disk(here: Path) -> None:
    (here / "r.xml").write_text("old")
    judge_and_report(replay([here / "good"]), Reporting(Outputs(junit=here / "r.xml")), make_console())
    assert [(path.name, path.read_text()) for path in here.glob("r.xml*")] == [("r.xml", "old")]


def test_a_terminal_that_takes_nothing_is_one_sentence(here: Path) -> None:
    with Path("/dev/full").open("w") as full, tempfile.TemporaryFile("w+") as stderr:
        with forked(
            "tokenwire", "replay", "good", "--json", "r.json", stdout=full, stderr=stderr, folder=here
        ) as process:
            process.join()
            assert process.exitcode == ExitStatus.HARNESS_ERROR
        stderr.seek(0)
        assert stderr.read() == f"the report could not be printed: {FULL}\n"
    assert json.loads((here / "r.json").read_text())["footer"] is True


def test_the_folder_of_violations_keeps_nothing_in_part(
    tmp_path: Path, disk: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ViolationFolder(tmp_path, 1 << 20)
    disk(50)
    with pytest.raises(OSError, match=FULL):
        folder.keep("some-requirement", whole("a"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    monkeypatch.undo()
    kept = folder.keep("some-requirement", whole("a"))
    assert [str(path) for path in tmp_path.rglob("*") if path.is_file()] == [kept]
