"""A run that was killed goes on: nothing that was answered is asked again, and the report is over both."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_program import forked
from proofs.hostile_servers import Conduct, Hostile, HostileServer, sends, stream, whole
from recorded import document
from typer.testing import CliRunner, Result

from tokenwire import __version__
from tokenwire.asking.planning import planned
from tokenwire.asking.resumption import NOTES
from tokenwire.cli import app
from tokenwire.judging.verdict import ExitStatus
from tokenwire.settings import Settings

EVENT = f"data: {json.dumps(document([1, 2, 3], finished=True))}\n\ndata: [DONE]\n\n".encode()
SCENARIOS = ("--scenario", "greedy-stream", "--scenario", "small-budget", "--scenario", "honesty")
HOW = ["--dialect", "sglang-generate", "--timeout", "120"]


class CountingServer(HostileServer):
    """Answers every request in one way, counts them, and keeps one waiting."""

    def __init__(self) -> None:
        super().__init__(Hostile(sends(), ()))
        self.asked = 0
        self.holds_at = 0
        self.held, self.goes_on = threading.Event(), threading.Event()
        self.version = "1"

    def _conduct(self, method: bytes) -> Conduct:
        if method == b"GET":
            return whole(json.dumps({"version": self.version}).encode())
        with self._lock:
            self.asked += 1
            holds = self.asked == self.holds_at
        if holds:
            self.held.set()
            self.goes_on.wait()
        return stream(EVENT)


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as serving:
        yield serving
        serving.goes_on.set()


def run(server: CountingServer, *words: str) -> Result:
    return CliRunner().invoke(app, ["check", "--target", server.url, *HOW, *words])


def summary(path: Path) -> dict[str, Any]:
    rows = json.loads(path.read_text())["verdicts"]
    return {f"{row['requirement']}[{row['scenario']}]": row["verdict"] for row in rows}


def test_a_killed_run_goes_on(
    server: CountingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGKILL, with an answer under way; one request at a time, so that others are over by then."""
    monkeypatch.chdir(tmp_path)
    alone = ("--max-concurrency", "1", *SCENARIOS, "--requirement", "done-ends-the-stream")
    run(server, *alone, "--json", "whole.json", "--record", "whole")
    in_whole = server.asked
    server.asked, server.holds_at = 0, in_whole // 2
    words = ["check", "--target", server.url, *HOW, *alone, "--record", "kept"]
    with (
        tempfile.TemporaryFile("w+") as output,
        forked("tokenwire", *words, stdout=output, stderr=output, folder=tmp_path) as process,
    ):
        assert server.held.wait(120)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    server.goes_on.set()
    over = json.loads((tmp_path / "kept" / NOTES).read_text())["over"]
    server.asked = 0
    ran = run(server, *alone, "--json", "both.json", "--resume", "kept")
    assert ran.exit_code == ExitStatus.CONFORMS, ran.output
    assert over, "it was not killed at once"
    assert server.asked < in_whole
    assert summary(tmp_path / "both.json") == summary(tmp_path / "whole.json")
    whole_run, both = ({str(path.relative_to(folder)) for path in (tmp_path / folder).rglob("*.jsonl")}
                       for folder in (tmp_path / "whole", tmp_path / "kept"))  # fmt: skip
    assert whole_run == both, "the recording is that of a whole run"
    assert all('"kind":"end"' in path.read_text() for path in (tmp_path / "kept").rglob("*.jsonl"))


def test_what_was_answered_is_not_asked_again(
    server: CountingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    only = ("--scenario", "greedy-stream", "--requirement", "done-ends-the-stream")
    run(server, *only, "--record", "kept", "--json", "first.json")
    first = server.asked
    files = {path: path.read_bytes() for path in (tmp_path / "kept" / "sglang-generate").rglob("*.jsonl")}
    ran = run(server, *only, "--resume", "kept", "--json", "second.json")
    assert server.asked - first <= 2, "the small request of the beginning, and perhaps the text of ids"
    assert summary(tmp_path / "first.json") == summary(tmp_path / "second.json"), ran.output
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--scenario", "stop-string", "--resume", "kept"), "recorded with scenario ['greedy-stream'], not"),
        (("--scenario", "greedy-stream", "--budget", "soak", "--resume", "kept"), "recorded with budget"),
        (("--scenario", "greedy-stream", "--header", "X-A: b", "--resume", "kept"), "recorded with header"),
        (("--resume", "nowhere"), "is not a folder"),
        (("--resume", "empty"), "cannot be resumed"),
        (("--resume", "kept", "--record", "new"), "exclude each other"),
    ],
)
def test_another_run_is_refused(
    server: CountingServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    refusal: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "kept").mkdir()
    recorded = Settings(target=server.url, dialect=("sglang-generate",), scenario=("greedy-stream",))
    asked = {"tokenwire": __version__, "target": server.url, **planned(recorded).asked}
    (tmp_path / "kept" / NOTES).write_text(json.dumps({"asked": asked, "server": {}, "over": {}}))
    ran = run(server, *words)
    assert ran.exit_code == ExitStatus.USAGE, ran.output
    assert refusal in re.sub(r"[\s│]+", " ", ran.output)
    assert server.asked == 0


def test_another_server_is_refused_and_costs_nothing(
    server: CountingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    only = ("--scenario", "greedy-stream", "--requirement", "done-ends-the-stream")
    run(server, *only, "--record", "kept")
    files = {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    server.version = "2"
    ran = run(server, *only, "--resume", "kept")
    assert ran.exit_code == ExitStatus.USAGE, ran.output
    assert "record into a new folder" in re.sub(r"[\s│]+", " ", ran.output)
    assert {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()} == files
