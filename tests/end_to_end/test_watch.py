"""`tokenwire watch` in front of the reference engine and its faults, as a user runs it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import loopback
import pytest

from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import ExitStatus, Verdict
from tokenwire.replay import replay

ASK = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 6, "temperature": 0}, "stream": True}


@dataclass
class Watching:
    """A watcher under way."""

    url: str
    admin: str
    page: str
    process: subprocess.Popen[str]
    written: str = ""

    def end(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        self.written = self.process.communicate(timeout=300)[0]
        return self.process.returncode

    def metrics(self) -> dict[str, float]:
        text = loopback.get(f"{self.admin}/metrics").text
        samples = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name.removeprefix("tokenwire_watch_"): float(value) for name, value in samples}


@contextlib.contextmanager
def watching(target: str, *words: str) -> Iterator[Watching]:
    command = [sys.executable, "-m", "tokenwire", "watch", "--listen", "127.0.0.1:0", "--target", target]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(2)]
        try:
            page = lines[1][2]
            yield Watching(lines[0][1], page.rstrip("/").rpartition("/")[0], page, process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def reference(start_reference: Callable[..., str]) -> str:
    return start_reference("--enable-faults")


def ask(url: str, fault: str = "", body: dict | None = None) -> bytes:
    headers = {"x-tokenwire-fault": fault} if fault else {}
    headers["authorization"] = "Bearer sesame"
    answer = loopback.post(f"{url}/generate", json=body or ASK, headers=headers)
    return answer.content


def test_faults_are_found_in_what_passes_and_kept(reference: str, tmp_path: Path) -> None:
    faults = ("done-missing", "finish-lost", "last-token-twice")
    with watching(reference, "--record", str(tmp_path / "v")) as watched:
        ask(watched.url)
        for fault in faults:
            ask(watched.url, fault)
        assert watched.end() == ExitStatus.VIOLATION
    assert watched.written.splitlines()[-1].startswith("4 exchanges, 4 judged, 3 violating"), watched.written
    assert watched.written.splitlines()[-1].endswith("gaps: none")
    subject = replay([tmp_path / "v"])
    kept = [dict(stream.exchange.request.headers) for stream in subject.runs[0].streams]
    assert {headers["x-tokenwire-fault"] for headers in kept} == set(faults)
    assert {headers["authorization"] for headers in kept} == {"[redacted]"}
    failed = {
        judgement.requirement.id for judgement in judge(subject.runs) if judgement.verdict is Verdict.FAIL
    }
    part = {line.split(": ")[1] for line in watched.written.splitlines() if line.startswith("MUST")}
    assert part
    assert part <= failed


def test_a_server_that_conforms_is_left_in_peace(reference: str) -> None:
    with watching(reference) as watched:
        for body in (ASK, {**ASK, "stream": False}, {**ASK, "return_logprob": True}):
            ask(watched.url, body=body)
        loopback.get(f"{watched.url}/server_info")
        assert watched.end() == ExitStatus.CONFORMS
    assert watched.written.splitlines()[-1] == "4 exchanges, 3 judged, 0 violating; gaps: none"
    coverage = watched.written.splitlines()[-2]
    assert re.fullmatch(r"judged by \d+ of \d+ requirements; \d+ need several answers, .*", coverage)


def test_metrics_and_page_tell_what_passed(reference: str) -> None:
    with watching(reference) as watched:
        answer = ask(watched.url)
        while not (seen := watched.metrics())["exchanges_total"]:  # the judge comes behind the traffic
            pass
        labels = '{dialect="sglang-generate",model=""}'
        assert seen["exchanges_total"] == seen[f"judged_total{labels}"] == 1
        assert seen[f"time_to_first_token_seconds_count{labels}"] == 1
        assert seen["open_exchanges"] == 0
        assert seen['bytes_total{direction="to_client"}'] > len(answer)
        target = reference.removeprefix("http://")
        assert target in loopback.get(watched.page).text
        assert target not in loopback.get(f"{watched.admin}/").text
        assert loopback.get(f"{watched.admin}/healthz").text == "watching\n"
        assert loopback.get(f"{watched.admin}/no").status_code == 404
        assert loopback.post(f"{watched.admin}/").status_code == 405
        assert httpx.head(f"{watched.admin}/metrics", trust_env=False).content == b""


def test_nothing_that_was_judged_is_no_success(reference: str) -> None:
    with watching(reference) as watched:
        loopback.get(f"{watched.url}/health")
        assert watched.end() == ExitStatus.NOTHING_EVALUATED


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--listen", "nowhere", "--target", "http://h"], "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--target", "http://h/v1"], "has a path"),
        (["--listen", "192.0.2.1:1", "--target", "http://h"], "cannot listen"),
    ],
)
def test_wrong_usage_says_what_is_meant(tokenwire, words: list[str], refusal: str) -> None:
    ran = tokenwire("watch", *words)
    assert ran.returncode == ExitStatus.USAGE, ran.stderr
    assert refusal in re.sub(r"[\s│]+", " ", ran.stderr)
