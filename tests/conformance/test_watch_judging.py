"""The watcher's judge: right verdicts, bounded room on disk, and gaps instead of standstills."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from recorded import streamed, whole

from tokenwire.replay import replay
from tokenwire.watch.distant_judge import DistantJudge, judge_command
from tokenwire.watch.exchange_assembly import SCENARIO, ObservedExchange, Passed
from tokenwire.watch.judge_process import exchanges, frame, opinion_line, read_opinion
from tokenwire.watch.judging import Bench, Opinion, Violation
from tokenwire.watch.live_page import live_page
from tokenwire.watch.prometheus import exposition
from tokenwire.watch.room import BLOCK, Kept, Room
from tokenwire.watch.tally import Tally
from tokenwire.watch.violation_folder import ViolationFolder
from tokenwire.wire.capture import read_capture
from tokenwire.wire.exchange import Exchange, HttpRequest, Read, Server

WHEN = "2026-11-21T09:12:33.123+00:00"
GOOD = replace(streamed("watch/1"), scenario=SCENARIO, started=WHEN)
BAD = replace(streamed("watch/2", forgets_an_id=True), scenario=SCENARIO, started=WHEN)
MUTE = "import sys; sys.stdin.read()"
DEAD = "import sys; sys.stdin.buffer.read(8); sys.exit(1)"
BABBLES = "import sys; sys.stdin.buffer.read(8); print('what?'); sys.stdout.flush(); sys.stdin.read()"
"""Judges that never answer, that die, and that talk nonsense."""


ROOM = Room(64 * BLOCK)


def heard(exchange: Exchange, room: Room = ROOM) -> ObservedExchange:
    """An exchange as it is observed, its reads lying in the room."""
    request = exchange.request
    body = json.dumps(request.body).encode() if request.raw_body is None else request.raw_body
    asked = f"{request.method} {request.path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    fields = "".join(f"{name}: {value}\r\n" for name, value in exchange.headers)
    head = f"HTTP/1.1 {exchange.status} OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n"
    chunks = [(read.time, b"%x\r\n%s\r\n" % (len(read.data), read.data)) for read in exchange.reads]
    kept = Kept(room)
    for at, data in ((0.0, head.encode()), *chunks, (exchange.duration, b"0\r\n\r\n")):
        assert kept.hold(len(data))
        kept.stretches.append(data)
        kept.lengths.append(len(data))
        kept.times.append(at)
    kept.store()
    passed = Passed(
        *(exchange.name, asked.encode() + body, exchange.ending, exchange.detail),
        *(0.0, exchange.duration, exchange.started),
    )
    return ObservedExchange(passed, kept)


def as_watched(exchange: Exchange) -> Exchange:
    """The exchange as the process reads it."""
    request = exchange.request
    raw = json.dumps(request.body).encode() if request.raw_body is None else request.raw_body
    asked = HttpRequest(
        request.method, request.path, raw_body=raw, headers=(("Host", "h"), ("Content-Length", str(len(raw))))
    )
    return replace(
        exchange,
        request=asked,
        headers=(*exchange.headers, ("Transfer-Encoding", "chunked")),
        server=Server(),
    )


def test_a_violation_is_named_with_its_place() -> None:
    bench = Bench()
    assert bench.hear(GOOD) == Opinion(judged=True, dialect="sglang-generate")
    opinion = bench.hear(BAD)
    assert opinion.judged
    told = {violation.requirement: violation for violation in opinion.violations}
    assert told["cumulative-ids-extend"].event == 5
    assert told["cumulative-ids-extend"].level == "MUST"


def test_what_nobody_knows_is_not_judged_and_no_gap() -> None:
    health = replace(GOOD, request=HttpRequest("GET", "/health"))
    assert Bench().hear(health) == Opinion()


def test_a_compressed_answer_is_a_gap_and_no_violation() -> None:
    packed = replace(GOOD, headers=(*GOOD.headers, ("Content-Encoding", "gzip")), reads=(Read(0.1, b"\x1f"),))
    assert Bench().hear(packed).gap == "compressed"


def test_what_the_target_said_of_itself_is_remembered() -> None:
    """A cumulative stream is not what a server promises that says that its streams are incremental."""
    info = replace(
        whole("watch/0"),
        request=HttpRequest("GET", "/server_info"),
        reads=(Read(0.1, b'{"incremental_streaming_output": true}'),),
    )
    bench = Bench()
    bench.hear(info)
    assert "mode-is-advertised" in {violation.requirement for violation in bench.hear(GOOD).violations}
    assert Bench().hear(GOOD).violations == ()


def test_opinions_and_exchanges_survive_the_pipe() -> None:
    opinion = Opinion(True, "", (Violation("r", "MUST", "\ud800 \n", 3, "/a", "x"),), ("c",), "d", 5, "u")
    line = opinion_line(opinion)
    assert line.count(b"\n") == 1
    assert read_opinion(line) == opinion
    whole_frame = frame([heard(GOOD), heard(BAD)], ROOM)
    for cut, count in ((len(whole_frame), 2), (len(whole_frame) - 1, 1), (3, 1), (0, 1)):
        read = list(exchanges(BytesIO(whole_frame + whole_frame[:cut])))
        assert read == [as_watched(GOOD), as_watched(BAD)] * count


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", b"GET / HTTP/1.1\r\n"])
def test_a_request_that_only_the_process_finds_unreadable_is_no_exchange(request_: bytes) -> None:
    """The watcher itself reads no more of it than where it ends."""
    seen = heard(GOOD)
    hurt = replace(seen, passed=seen.passed._replace(request=request_))
    assert list(exchanges(BytesIO(frame([seen, hurt], ROOM)))) == [as_watched(GOOD), None]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
def test_an_answer_that_only_the_process_finds_unreadable_is_no_exchange(answer: bytes) -> None:
    seen, kept = heard(GOOD), Kept(ROOM)
    kept.stretches.append(answer)
    kept.lengths.append(len(answer))
    kept.times.append(0.0)
    assert list(exchanges(BytesIO(frame([seen, replace(seen, kept=kept)], ROOM)))) == [as_watched(GOOD), None]


def _judged(
    command: list[str],
    scene: Callable[[DistantJudge], Awaitable[None]],
    room: Room = ROOM,
    **options: float,
):
    told: list[tuple[Exchange, Opinion]] = []
    missed: list[str] = []

    async def run() -> None:
        judge = DistantJudge(
            command,
            room,
            lambda *words: told.append(words),
            missed.append,
            **options,  # type: ignore[arg-type]  # seconds
        )
        await scene(judge)

    asyncio.run(asyncio.wait_for(run(), 60))
    return told, missed


def test_the_process_judges_and_keeps_what_violates(tmp_path: Path) -> None:
    async def scene(judge: DistantJudge) -> None:
        for exchange in (GOOD, BAD, GOOD):
            judge.submit(heard(exchange))
        await judge.close(30)

    folder = tmp_path / "violations"
    told, missed = _judged(judge_command(folder, 1 << 20), scene)
    assert missed == []
    assert [len(opinion.violations) > 0 for _, opinion in told] == [False, True, False]
    (path,) = folder.rglob("*.jsonl.gz")
    assert told[1][1].recorded == path.stat().st_size
    assert list(read_capture(path)) == [as_watched(BAD)]
    assert path.parent.name == told[1][1].violations[0].requirement
    assert replay([folder]).runs[0].streams


def test_the_process_judges_by_the_profiles_alone(tmp_path: Path) -> None:
    async def scene(judge: DistantJudge) -> None:
        judge.submit(heard(BAD))
        await judge.close(30)

    told = {}
    for profile in ("core", "metadata"):
        [(_, opinion)], missed = _judged(judge_command(tmp_path / profile, 1 << 20, [profile]), scene)
        assert (opinion.judged, missed) == (True, [])
        told[profile] = {violation.requirement for violation in opinion.violations}
    assert "cumulative-ids-extend" in told["core"]
    assert "cumulative-ids-extend" not in told["metadata"]


@pytest.mark.parametrize("program", [DEAD, BABBLES, "raise SystemExit"])
def test_a_judge_that_dies_costs_one_gap_for_each_exchange(program: str) -> None:
    async def scene(judge: DistantJudge) -> None:
        for _ in range(3):
            judge.submit(heard(GOOD))
        await judge.close(30)

    told, missed = _judged([sys.executable, "-c", program], scene)
    assert told == []
    assert missed == ["judge-crashed"] * 3


DIES_OF_THE_SECOND = """
import sys
from tokenwire.watch import judge_process
class Bench(judge_process.Bench):
    def hear(self, exchange):
        return sys.exit(1) if exchange.name == "watch/2" else super().hear(exchange)
judge_process.Bench = Bench
judge_process.main("", "0")
"""


def test_what_was_given_to_a_judge_that_dies_is_given_to_the_next_one() -> None:
    async def scene(judge: DistantJudge) -> None:
        for name in ("watch/1", "watch/2", "watch/3"):
            judge.submit(heard(replace(GOOD, name=name)))
        await judge.close(30)

    told, missed = _judged([sys.executable, "-c", DIES_OF_THE_SECOND], scene)
    assert [exchange.name for exchange, _ in told] == ["watch/1", "watch/3"]
    assert missed == ["judge-crashed"]


def test_a_judge_that_cannot_be_started_is_a_gap() -> None:
    async def scene(judge: DistantJudge) -> None:
        judge.submit(heard(GOOD))
        await judge.close(30)

    assert _judged(["/nowhere/judge"], scene) == ([], ["judge-crashed"])


def test_what_waits_keeps_its_room_until_it_was_judged_or_given_up() -> None:
    room = Room(8 * BLOCK)

    async def scene(judge: DistantJudge) -> None:
        for _ in range(2):
            judge.submit(heard(GOOD, room))
        assert room.taken > 0
        assert judge.waiting > 2 * len(GOOD.body)
        await judge.close(0)
        assert (judge.waiting, room.taken) == (0, 0)

    told, missed = _judged([sys.executable, "-c", MUTE], scene, room)
    assert told == []
    assert missed == ["watch-ended"] * 2


def test_a_judge_that_hangs_is_ended_and_the_next_one_goes_on() -> None:
    async def scene(judge: DistantJudge) -> None:
        judge.submit(heard(GOOD))
        await judge.close(30)

    assert _judged([sys.executable, "-c", MUTE], scene, patience_s=0.01) == ([], ["judge-too-slow"])


def test_the_folder_keeps_to_its_cap_and_rare_violations_stay(tmp_path: Path) -> None:
    folder = ViolationFolder(tmp_path, 1 << 20)
    size = folder.keep("rare", replace(BAD, name="watch/1"))
    cap = 4 * size + size // 2
    folder = ViolationFolder(tmp_path, cap)
    for serial in range(10, 20):
        assert folder.keep("frequent", replace(BAD, name=f"watch/{serial}"))
    assert folder.size <= cap
    kept = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.gz")}
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.gz")) == folder.size
    assert {name.partition("/")[0] for name in kept} == {"rare", "frequent"}
    assert any(name.endswith("-19.jsonl.gz") for name in kept)
    assert not any(name.endswith("-10.jsonl.gz") for name in kept)


def test_what_is_larger_than_the_cap_is_not_kept(tmp_path: Path) -> None:
    folder = ViolationFolder(tmp_path, 10)
    assert folder.keep("one", BAD) == 0
    assert list(tmp_path.rglob("*.gz")) == []


HOSTILE = Violation("ids-are-counted", "MUST", '<script>alert("1")</script>', 1, "/a", "</table><img src=x>")


def hostile_tally() -> Tally:
    tally = Tally(exchanges=3)
    tally.gaps['odd"\n\\reason'] += 1
    exchange = replace(GOOD, request=HttpRequest("GET", "/<b>"))
    tally.heard(exchange, Opinion(judged=True, violations=(HOSTILE,)))
    tally.heard(exchange, Opinion(judged=True, crashed=("ids-are-counted",)))
    return tally


def test_the_live_page_shows_hostile_text_as_text() -> None:
    page = live_page(hostile_tally(), target="http://<i>", listening="x:1", waiting=5)
    assert "&lt;script&gt;alert" in page
    for words in ("<script", "<img", "<b>/", "/<b>", "<i>"):
        assert words not in page
    assert "default-src 'none'" in page
    assert 'http-equiv="refresh"' in page
    assert "ids-are-counted" in page


_SAMPLE = re.compile(
    r'[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\["\\n])*"(,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*\})? \d+'
)


def test_metrics_are_what_prometheus_reads() -> None:
    lines = exposition(hostile_tally(), 7).splitlines()
    families: list[str] = []
    for line in lines:
        if line.startswith("# TYPE "):
            families.append(line.split()[2])
        elif not line.startswith("# HELP "):
            assert _SAMPLE.fullmatch(line), line
            assert re.split(r"[{ ]", line)[0] == families[-1]
    assert len(families) == len(set(families))
    assert 'tokenwire_watch_violations_total{requirement="ids-are-counted",level="MUST"} 1' in lines
    assert "tokenwire_watch_exchanges_total 3" in lines
    assert "tokenwire_watch_judged_total 2" in lines
    assert "tokenwire_watch_conforming_total 1" in lines
    assert "tokenwire_watch_waiting_bytes 7" in lines
    assert r'tokenwire_watch_gaps_total{reason="odd\"\n\\reason"} 1' in lines
