"""The watcher's judge: right verdicts, bounded room on disk, and gaps instead of standstills."""

from __future__ import annotations

import asyncio
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
from tokenwire.watch.exchange_assembly import SCENARIO, ObservedExchange
from tokenwire.watch.judge_process import exchanges, frame, opinion_line, read_opinion
from tokenwire.watch.judging import Bench, Opinion, Violation
from tokenwire.watch.live_page import live_page
from tokenwire.watch.prometheus import exposition
from tokenwire.watch.room import BLOCK, Body, Room
from tokenwire.watch.tally import Tally
from tokenwire.watch.violation_folder import ViolationFolder
from tokenwire.wire.capture import read_capture
from tokenwire.wire.exchange import Exchange, HttpRequest, Read

WHEN = "2026-11-21T09:12:33.123+00:00"
GOOD = replace(streamed("watch/1"), scenario=SCENARIO, started=WHEN)
BAD = replace(streamed("watch/2", forgets_an_id=True), scenario=SCENARIO, started=WHEN)
MUTE = "import sys; sys.stdin.read()"
DEAD = "import sys; sys.stdin.buffer.read(8); sys.exit(1)"
BABBLES = "import sys; sys.stdin.buffer.read(8); print('what?'); sys.stdout.flush(); sys.stdin.read()"
"""Judges that never answer, that die, and that talk nonsense."""


ROOM = Room(64 * BLOCK)


def heard(exchange: Exchange, room: Room = ROOM) -> ObservedExchange:
    """An exchange as it is observed."""
    body = Body(room)
    assert body.more()
    assert all(body.add(read.time, read.data) for read in exchange.reads)
    return ObservedExchange(replace(exchange, reads=()), body)


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
    whole_frame = frame(heard(GOOD), ROOM)
    for cut, count in ((len(whole_frame), 2), (len(whole_frame) - 1, 1), (3, 1), (0, 1)):
        read = list(exchanges(BytesIO(whole_frame + whole_frame[:cut])))
        assert read == [GOOD] * count


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
    assert list(read_capture(path)) == [BAD]
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
        assert room.free == 6
        assert judge.waiting == 2 * len(GOOD.body)
        await judge.close(0)
        assert (judge.waiting, room.free) == (0, 8)

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
