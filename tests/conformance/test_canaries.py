"""Canaries in every place where a credential may stand or come back: no output of a run has any."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_program import run_forked
from proofs.hostile_servers import Conduct, Hostile, HostileServer, head, sends
from recorded import document
from test_watch_exchange_assembly import Receiver, listen

from tokenwire.judging.verdict import ExitStatus
from tokenwire_live.watch.violation_folder import ViolationFolder

SENT = {
    "a literal header": "CANARY-bearer-1",
    "a header from the environment": "CANARY-environment-2",
    "a name like a session": "CANARY-session-3",
    "a cookie": "CANARY-cookie-4",
    "a password": "CANARY-password-5",
}
TOLD = {
    "a cookie of the server": "CANARY-set-cookie-6",
    "a session of the server": "CANARY-server-session-7",
    "a user in a location": "CANARY-userinfo-8",
    "a key in a location": "CANARY-query-9",
    "a key in the settings": "CANARY-settings-10",
}
BASIC = base64.b64encode(f"me:{SENT['a password']}".encode()).decode()
HEADERS = (
    f"Authorization: Bearer {SENT['a literal header']}",
    "X-Tenant: env:TENANT",
    f"X-Session: {SENT['a name like a session']}",
    f"Cookie: a=b; sid={SENT['a cookie']}",
    f"Proxy-Authorization: Basic {BASIC}",
)
ECHOES = " ".join([*SENT.values(), BASIC])


class LeakingServer(HostileServer):
    """Tells everybody every key: in its settings; and in an answer, a broken head and an error, by turns."""

    def __init__(self) -> None:
        super().__init__(Hostile(sends(), ()))
        broken = document([1, 2, 3], finished=True)
        broken["meta_info"]["finish_reason"]["type"] = broken["text"] = ECHOES
        events = f"data: {json.dumps(broken)}\n\ndata: [DONE]\n\n".encode()
        fields = (
            f"set-cookie: sid={TOLD['a cookie of the server']}",
            f"x-session-id: {TOLD['a session of the server']}",
            f"location: http://me:{TOLD['a user in a location']}@host/?api_key={TOLD['a key in a location']}",
            f"x-debug: {ECHOES}",
        )
        settings = json.dumps({"api_key": TOLD["a key in the settings"], "seen": ECHOES}).encode()
        self._settings = sends(head("application/json", *fields), settings)
        answer = sends(head("text/event-stream", *fields), events[:60], events[60:])
        broken_head = sends(f"HTTP/1.1 200 OK\r\nno header {ECHOES}\r\n\r\n".encode())
        error = sends(head("text/plain", *fields, status="500 Oh"), ECHOES.encode())
        self._answers = itertools.chain([answer] * 3, itertools.cycle([broken_head, answer, error]))

    def _conduct(self, method: bytes) -> Conduct:
        with self._lock:
            return self._settings if method == b"GET" else next(self._answers)


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_text("utf-8", "replace")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All that a run against that server writes, by what it is."""
    folder = tmp_path_factory.mktemp("leaks")
    surroundings = {
        "TENANT": SENT["a header from the environment"],
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_ACTIONS": "true",
    }
    how = ["--dialect", "sglang-generate", "--scenario", "greedy-stream", "--timeout", "20"]
    for header in HEADERS:
        how += ["--header", header]
    written = {}
    with LeakingServer() as server:
        words = ["check", "--target", server.url, *how, "--record", "recorded", "--report", "report", "-v"]
        found = run_forked("tokenwire", *words, folder=folder, environment=surroundings)
    again = run_forked(
        "tokenwire", "replay", "recorded", "--report", "again", "-v", folder=folder, environment=surroundings
    )
    for name, ran in (("check", found), ("replay", again)):
        assert ran.returncode == ExitStatus.VIOLATION, ran.stdout + ran.stderr
        written |= {f"{name}: stdout": ran.stdout, f"{name}: stderr": ran.stderr}
    return written | dict(_texts(folder))


@pytest.mark.parametrize("place", [*SENT, *TOLD])
def test_no_output_of_a_run_tells_a_credential(outputs: dict[str, str], place: str) -> None:
    canary = (SENT | TOLD)[place]
    assert [name for name, text in outputs.items() if canary in text or BASIC in text] == []


def test_the_run_wrote_all_that_it_can_write(outputs: dict[str, str]) -> None:
    assert {"check: stdout", "summary.md", "report/report.html", "report/report.sarif", "report/report.xml",
            "report/report.json", "again/report.json"} <= {*outputs}  # fmt: skip
    assert "***" in outputs["report/report.json"], "what came back stands there, masked"
    assert "X-Session: [redacted]" in outputs["report/report.json"], "and so does what was sent"


@pytest.mark.parametrize("place", ["header", "query", "body"])
def test_no_recording_of_what_is_watched_tells_a_credential(tmp_path: Path, place: str) -> None:
    canary = "CANARY-watched"
    header = f"X-Auth-Token: {canary}\r\n" if place == "header" else ""
    query = f"?token={canary}" if place == "query" else ""
    body = f'{{"input_ids":[1],"api_key":"{canary}"}}' if place == "body" else "{}"
    answer = f'{{"error":"unknown key {canary}","api_key":"CANARY-other","again":"{canary}"}}'
    receiver = Receiver()
    observer = listen(receiver)
    request = (
        f"POST /generate{query} HTTP/1.1\r\nHost: h\r\n{header}Content-Length: {len(body)}\r\n\r\n{body}"
    )
    observer.sent(request.encode())
    for data in (f"HTTP/1.1 400 No\r\nX-Seen: {canary}\r\nContent-Length: {len(answer)}\r\n\r\n", answer):
        observer.received(data.encode())
    (exchange,) = receiver.exchanges
    assert len(exchange.body) == len(answer)
    assert ViolationFolder(tmp_path, 1 << 20).keep("some-requirement", exchange)
    (path,) = tmp_path.rglob("*.gz")
    assert b"CANARY" not in gzip.decompress(path.read_bytes())


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--target", "http://me:CANARY@host"),
        ("check", "--target", "http://host/?api_key=CANARY"),
        ("check", "--target", "ftp://me:CANARY@host"),
        ("check", "--target", "http://127.0.0.1:1", "--header", "Authorization Bearer CANARY"),
        ("check", "--target", "http://127.0.0.1:1", "--header", "Authorization: Bearer CANARY\nX"),
        ("check", "--target", "http://127.0.0.1:1", "--header", "Authorization: Bearer CANARY\u2028X"),
        ("check", "--target", "http://127.0.0.1:1", "--worker", "http://me:CANARY@host"),
        ("watch", "--listen", "127.0.0.1:0", "--target", "http://me:CANARY@host"),
        ("watch", "--listen", "127.0.0.1:0", "--target", "http://host/?api_key=CANARY"),
    ],
)
def test_what_is_refused_is_not_repeated(tokenwire, words: tuple[str, ...]) -> None:
    ran = tokenwire(*words)
    assert ran.returncode == ExitStatus.USAGE, ran.stdout + ran.stderr
    assert "CANARY" not in ran.stdout + ran.stderr
