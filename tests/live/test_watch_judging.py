"""The watcher's judge: right verdicts, bounded room on disk, and gaps instead of standstills."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from recorded import streamed, whole

from tokenwire.dialects.dialect import load_dialects
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements
from tokenwire.wire.capture import read_capture
from tokenwire.wire.exchange import Exchange, HttpRequest, Read, Server
from tokenwire_live.inspecting.watched import exchange_page, live_page
from tokenwire_live.watch.counts import Counts
from tokenwire_live.watch.exchange_assembly import SCENARIO, Budget
from tokenwire_live.watch.judge_process import Follower, JudgePlan, Reporter, follow, read_opinion
from tokenwire_live.watch.judge_supervisor import JudgeSupervisor, judge_command
from tokenwire_live.watch.judging import (
    ExchangeJudge,
    Opinion,
    Violation,
    single_answer_requirements,
    unwatched,
)
from tokenwire_live.watch.latency import Histogram, Latencies
from tokenwire_live.watch.prometheus import exposition
from tokenwire_live.watch.spool import Batch, Kind, Spool, SpoolReader
from tokenwire_live.watch.violation_folder import ViolationFolder

WHEN = "2026-11-21T09:12:33.123+00:00"
GOOD = replace(streamed("watch/1"), scenario=SCENARIO, started=WHEN)
BAD = replace(streamed("watch/2", forgets_an_id=True), scenario=SCENARIO, started=WHEN)
MUTE = "import time; time.sleep(1000)"
DEAD = "import sys; sys.stdin.buffer.read(8); sys.exit(1)"
BABBLES = "import sys; sys.stdin.buffer.read(8); print('what?'); sys.stdout.flush(); sys.stdin.read()"
"""Judges that never answer, that die, and that talk nonsense."""


def append(spool: Spool, connection: int, exchange: Exchange) -> int:
    """Append what passed on a connection for one exchange; where its request stands."""
    request = exchange.request
    body = json.dumps(request.body).encode() if request.raw_body is None else request.raw_body
    asked = f"{request.method} {request.path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    fields = "".join(f"{name}: {value}\r\n" for name, value in exchange.headers)
    head = f"HTTP/1.1 {exchange.status} OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n"
    spool.append(connection, Kind.OPENED)
    spool.publish()
    position = spool.batches[-1].position + spool.batches[-1].end - spool.batches[-1].start
    assert spool.append_request(connection, asked.encode() + body)
    assert spool.append(connection, Kind.RECEIVED, head.encode())
    for read in exchange.reads:
        assert spool.append(connection, Kind.RECEIVED, b"%x\r\n%s\r\n" % (len(read.data), read.data))
    assert spool.append(connection, Kind.RECEIVED, b"0\r\n\r\n")
    assert spool.append(connection, Kind.CLOSED)
    return position


def spooled(*exchanges: Exchange) -> tuple[Spool, list[int]]:
    """A spool with all of them in one batch, and where their requests stand."""
    spool = Spool(8 << 20)
    positions = [append(spool, number, exchange) for number, exchange in enumerate(exchanges)]
    spool.publish()
    first, last = spool.batches[0], spool.batches[-1]
    spool.batches.clear()
    spool.batches.append(Batch(first.start, last.end, 0, len(exchanges)))
    return spool, positions


def as_watched(exchange: Exchange) -> Exchange:
    """The exchange as the process reads it, but for its name and its times."""
    request = exchange.request
    raw = json.dumps(request.body).encode() if request.raw_body is None else request.raw_body
    asked = HttpRequest(
        request.method, request.path, raw_body=raw, headers=(("Host", "h"), ("Content-Length", str(len(raw))))
    )
    headers = (*exchange.headers, ("Transfer-Encoding", "chunked"))
    return timeless(replace(exchange, request=asked, headers=headers, server=Server()))


def timeless(exchange: Exchange) -> Exchange:
    reads = tuple(replace(read, time=0.0) for read in exchange.reads)
    return replace(exchange, name="", started="", duration=0.0, reads=reads)


def test_a_violation_is_named_with_its_place() -> None:
    bench = ExchangeJudge()
    assert replace(bench.judge(GOOD), latencies=None) == Opinion(judged=True, dialect="sglang-generate")
    opinion = bench.judge(BAD)
    assert opinion.judged
    found = {violation.requirement: violation for violation in opinion.violations}
    assert found["cumulative-ids-extend"].event == 5
    assert found["cumulative-ids-extend"].level == "MUST"


def test_what_nobody_knows_is_not_judged_and_no_gap() -> None:
    health = replace(GOOD, request=HttpRequest("GET", "/health"))
    assert ExchangeJudge().judge(health) == Opinion()


def test_a_compressed_answer_is_a_gap_and_no_violation() -> None:
    packed = replace(GOOD, headers=(*GOOD.headers, ("Content-Encoding", "gzip")), reads=(Read(0.1, b"\x1f"),))
    assert ExchangeJudge().judge(packed).gap == "compressed"


def test_what_the_target_said_of_itself_is_remembered() -> None:
    """A cumulative stream is not what a server promises that says that its streams are incremental."""
    info = replace(
        whole("watch/0"),
        request=HttpRequest("GET", "/server_info"),
        reads=(Read(0.1, b'{"incremental_streaming_output": true}'),),
    )
    bench = ExchangeJudge()
    bench.judge(info)
    assert "mode-is-advertised" in {violation.requirement for violation in bench.judge(GOOD).violations}
    assert ExchangeJudge().judge(GOOD).violations == ()


def test_a_stop_string_that_is_shown_is_seen_in_one_answer() -> None:
    """30 answers that named their stop string and showed it were `0 violating`."""
    request = HttpRequest(
        "POST",
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": "a"}], "stop": ["QZ"]},
    )
    message = {"role": "assistant", "content": "aQQbQZ"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "matched_stop": "QZ"}
    usage = {"prompt_tokens": 1, "completion_tokens": 6, "total_tokens": 7}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}

    def judged(content: str) -> set[str]:
        answer = {**body, "choices": [{**choice, "message": {**message, "content": content}}]}
        read = Read(0.1, json.dumps(answer).encode())
        opinion = ExchangeJudge().judge(replace(whole("watch/1"), request=request, reads=(read,)))
        assert opinion.judged
        return {violation.requirement for violation in opinion.violations}

    assert judged("aQQb") == set()
    assert judged("aQQbQZ") == {"stop-string-not-shown"}


def test_every_sentence_is_judged_or_named_as_one_that_a_watcher_cannot_judge() -> None:
    known = {name for name, row in load_requirements().items() if not row.excluded}
    lacking = [name for names in unwatched().values() for name in names]
    judged = {row.id for row in single_answer_requirements()}
    assert judged | {*lacking} == known
    assert not judged & {*lacking}
    assert "stream-ids-equal-whole" in unwatched()["several answers"]
    assert "text-is-what-its-ids-say" in unwatched()["a tokenizer"]
    page = live_page(Counts(), target="t", listening="l", waiting=0, under_way=0)
    assert all(name in page for name in lacking)
    assert f"{len(judged)} are judged" in page


def test_opinions_survive_the_pipe() -> None:
    opinion = Opinion(True, "", (Violation("r", "MUST", "\ud800 \n", 3, "/a", "x"),), ("c",), "d", 5, "u")
    opinion = replace(opinion, model="m", latencies=Latencies(Histogram(seconds=0.5)))
    out = io.StringIO()
    Reporter(ExchangeJudge(), None, out).write("judged", 5, asdict(opinion))
    assert out.getvalue().count("\n") == 1
    assert read_opinion(json.loads(out.getvalue())[2]) == opinion


def _lines(spool: Spool, reported: Sequence[int] = ()) -> list[list[Any]]:
    """What the process says of the batches of a spool."""
    out = io.StringIO()
    lines = [json.dumps([*batch[:3], list(reported)]).encode() for batch in spool.batches]
    reporter = Reporter(ExchangeJudge(), None, out)
    reader = SpoolReader(spool.fd, spool.size)
    follow(lines, Follower(reader, reporter, Budget(1 << 30, 1 << 20)), reporter)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_process_says_what_it_judges_before_it_does_and_what_is_under_way() -> None:
    spool, (good, bad) = spooled(GOOD, BAD)
    spool.append_request(9, b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n")  # an old connection, not seen before
    spool.publish()
    lines = _lines(spool)
    assert [line[:2] for line in lines] == [
        *[["judging", good], ["judged", good], ["judging", bad], ["judged", bad], ["read", 0]],
        *[["read", 1], ["missed", lines[-1][1]]],
    ]
    assert lines[-1][2:] == ["watch-ended", True]
    assert [len(line[2]["violations"]) > 0 for line in lines if line[0] == "judged"] == [False, True]


def test_what_was_reported_before_is_neither_judged_nor_reported_again() -> None:
    spool, (good, bad) = spooled(GOOD, BAD)
    assert [line[:2] for line in _lines(spool, [good])] == [["judging", bad], ["judged", bad], ["read", 0]]


def test_each_batch_may_hold_a_part_of_an_exchange() -> None:
    spool = Spool(8 << 20)
    append(spool, 1, GOOD)
    spool.publish()
    (opened, rest) = spool.batches
    records = list(SpoolReader(spool.fd, spool.size).records(*rest[:3]))
    cuts = [rest.start + record.position - rest.position for record in records] + [rest.end]
    spool.batches.clear()
    spool.batches.append(opened)
    for start, end in itertools.pairwise(cuts):
        spool.batches.append(Batch(start, end, rest.position + start - rest.start, 0))
    lines = [line for line in _lines(spool) if line[0] != "read"]
    assert [line[0] for line in lines] == ["judging", "judged"]
    assert lines[1][2]["judged"]


class _Judged:
    """A supervisor under way, and what it was told."""

    def __init__(self, command: Sequence[str], spool: Spool, **options: float) -> None:
        self.opinions: list[Opinion] = []
        self.missed: list[str] = []
        self.supervisor = JudgeSupervisor(
            command,
            spool,
            self.opinions.append,
            lambda reason, count: self.missed.extend([reason] * max(count, 1)),
            **options,
        )


def _judged(
    command: Callable[[Spool], Sequence[str]] | Sequence[str],
    *exchanges: Exchange,
    drain: float = 600,
    **options: float,
) -> tuple[list[Opinion], list[str]]:
    """What is told of these exchanges by such a judge, which is started again whenever it dies."""

    async def run() -> _Judged:
        spool, _ = spooled(*exchanges)
        words = command(spool) if callable(command) else command
        judged = _Judged(words, spool, **options)
        await judged.supervisor.close(drain)
        assert (spool.waiting, len(spool.batches), judged.supervisor.open) == (0, 0, 0)
        return judged

    judged = asyncio.run(asyncio.wait_for(run(), 900))
    return judged.opinions, judged.missed


def _ours(folder: Path | None = None, profiles: Sequence[str] = ()) -> Callable[[Spool], list[str]]:
    record = "" if folder is None else str(folder)
    return lambda spool: judge_command(
        JudgePlan(spool.fd, spool.size, 1 << 30, 1 << 20, record, 1 << 20, profiles)
    )


def test_the_process_judges_and_keeps_what_violates(tmp_path: Path) -> None:
    folder = tmp_path / "violations"
    found, missed = _judged(_ours(folder), GOOD, BAD, GOOD)
    assert missed == []
    assert [len(opinion.violations) > 0 for opinion in found] == [False, True, False]
    assert [(opinion.method, opinion.path) for opinion in found] == [("POST", "/generate")] * 3
    (path,) = folder.rglob("*.jsonl.gz")
    assert found[1].recorded == str(path)
    (kept,) = read_capture(path)
    assert (kept.name, kept.started) == (found[1].exchange, found[1].started)
    assert timeless(kept) == as_watched(BAD)
    assert path.parent.name == found[1].violations[0].requirement
    assert replay([folder]).runs[0].streams


def test_the_process_judges_by_the_profiles_alone() -> None:
    found = {}
    for profile in ("core", "metadata"):
        [opinion], missed = _judged(_ours(profiles=[profile]), BAD)
        assert (opinion.judged, missed) == (True, [])
        found[profile] = {violation.requirement for violation in opinion.violations}
    assert "cumulative-ids-extend" in found["core"]
    assert "cumulative-ids-extend" not in found["metadata"]


@pytest.mark.parametrize("program", [DEAD, BABBLES, "raise SystemExit"])
def test_a_judge_that_dies_costs_one_gap_for_each_exchange(program: str) -> None:
    assert _judged([sys.executable, "-c", program], *[GOOD] * 3) == ([], ["judge-crashed"] * 3)


DIES_OF_THE_SECOND = """
import json, sys
from tokenwire_live.watch import judge_process
class Judge(judge_process.ExchangeJudge):
    def judge(self, exchange):
        return sys.exit(1) if b"of the second" in exchange.request.raw_body else super().judge(exchange)
judge_process.ExchangeJudge = Judge
judge_process.main(judge_process.JudgePlan(**json.loads(sys.argv[1])))
"""


def test_what_was_given_to_a_judge_that_dies_is_given_to_the_next_one() -> None:
    deadly = replace(GOOD, request=HttpRequest("POST", "/generate", raw_body=b'{"rid": "of the second"}'))

    def command(spool: Spool) -> list[str]:
        return [sys.executable, "-c", DIES_OF_THE_SECOND, *_ours()(spool)[-1:]]

    found, missed = _judged(command, GOOD, deadly, GOOD)
    assert [opinion.judged for opinion in found] == [True, True]
    assert found[0].exchange != found[1].exchange
    assert missed == ["judge-crashed"]


READS_THEN_DIES = """
import sys
sys.stdin.readline()
print('["read", 3]')
print('["missed", 30, "unreadable", true]')
sys.stdout.flush()
sys.stdin.readline()
"""


def test_what_a_judge_that_dies_had_read_is_lost_and_counted() -> None:
    """Three exchanges were under way, one of which ended since; and nobody judged those of the next batch."""

    async def run() -> list[str]:
        spool, _ = spooled(GOOD)
        spool.append_request(1, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        spool.append_request(1, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        judged = _Judged([sys.executable, "-c", READS_THEN_DIES], spool)
        first = spool.batches[0]
        spool._position = first.end - first.start
        await judged.supervisor.close(30)
        return judged.missed

    assert asyncio.run(asyncio.wait_for(run(), 60)) == ["unreadable", *["judge-crashed"] * 4]


def test_a_judge_that_cannot_be_started_is_a_gap() -> None:
    assert _judged(["/nowhere/judge"], GOOD) == ([], ["judge-crashed"])


def test_what_nobody_has_judged_in_the_end_is_told() -> None:
    assert _judged([sys.executable, "-c", MUTE], GOOD, GOOD, drain=0) == ([], ["watch-ended"] * 2)


def test_a_judge_that_hangs_is_ended_and_the_next_one_goes_on() -> None:
    assert _judged([sys.executable, "-c", MUTE], GOOD, patience_s=0.01) == ([], ["judge-too-slow"])


def test_the_folder_keeps_to_its_cap_and_rare_violations_stay(tmp_path: Path) -> None:
    folder = ViolationFolder(tmp_path, 1 << 20)
    size = Path(folder.keep("rare", replace(BAD, name="watch/1"))).stat().st_size
    cap = 4 * size + size // 2
    folder = ViolationFolder(tmp_path, cap)
    for serial in range(10, 20):
        assert folder.keep("frequent", replace(BAD, name=f"watch/{serial}"))
    kept = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.gz")}
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.gz")) <= cap
    assert {name.partition("/")[0] for name in kept} == {"rare", "frequent"}
    assert any(name.endswith("-19.jsonl.gz") for name in kept)
    assert not any(name.endswith("-10.jsonl.gz") for name in kept)


def test_what_is_larger_than_the_cap_is_not_kept(tmp_path: Path) -> None:
    folder = ViolationFolder(tmp_path, 10)
    assert folder.keep("one", BAD) == ""
    assert list(tmp_path.rglob("*.gz")) == []


HOSTILE = Violation("ids-are-counted", "MUST", '<script>alert("1")</script>', 1, "/a", "</table><img src=x>")


def hostile_counts() -> Counts:
    counts = Counts(exchanges=1)
    counts.gaps['odd"\n\\reason'] += 1
    first = Histogram()
    first.add(0.015)
    opinion = Opinion(judged=True, violations=(HOSTILE,), method="GET", path="/<b>", dialect="d")
    counts.add(replace(opinion, model='<m"\n\x1b>', latencies=Latencies(first)))
    counts.add(Opinion(judged=True, crashed=("ids-are-counted",)))
    return counts


def shown(counts: Counts) -> str:
    return live_page(counts, target="http://<i>", listening="x:1", waiting=5, under_way=2, in_full=True)


def test_the_live_page_shows_hostile_text_as_text() -> None:
    page = shown(hostile_counts())
    assert "&lt;script&gt;alert" in page
    assert page.count("<script") == 1
    for words in ("<script>alert", "<img", "<b>/", "/<b>", "<i>"):
        assert words not in page
    assert "default-src &#39;none&#39;" in page
    assert 'http-equiv="refresh"' in page
    assert "ids-are-counted" in page


def test_the_live_page_says_how_often_a_violation_comes_and_how_to_see_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my violations").mkdir()
    counts = Counts()
    for minute in range(4):
        counts.add(Opinion(judged=True))
        day = f"2026-11-21T09:0{minute}:33.123+00:00"
        violations = (Violation("ids-are-counted", "MUST", "one too many"),)
        kept = f"my violations/{minute}.jsonl.gz"
        Path(kept).touch()
        counts.add(Opinion(True, "", violations, started=day, recorded=kept))
    page = shown(counts)
    row = page[page.index(">ids-are-counted<") :].partition("</tr>")[0]
    for words in (">4<", ">50 %<", ">09:00:33<", ">09:03:33<"):
        assert words in row
    command = "tokenwire replay &#39;my violations/{}.jsonl.gz&#39; --requirement ids-are-counted"
    assert command.format(3) in row
    findings = page[page.index('id="findings"') :]
    assert findings.count('<tr id="finding/') == 1
    assert command.format(3) in findings
    assert command.format(2) not in page
    Path("my violations/3.jsonl.gz").unlink()
    assert command.format(3) not in shown(counts)
    assert "its capture was deleted: --record-cap" in shown(counts)


def test_the_live_page_shows_when_tokens_came_for_each_model() -> None:
    counts = Counts()
    found = Latencies()
    for seconds in (0.003, 0.004, 0.03):
        found.first.add(seconds)
    counts.add(Opinion(judged=True, dialect="sglang-generate", model="<b>m", latencies=found))
    counts.add(Opinion(judged=True, dialect="sglang-generate", model="quiet"))
    page = shown(counts)
    assert "&lt;b&gt;m" in page
    assert 'aria-label="first token: half within 5 ms, 99 % within 50 ms"' in page
    assert "between tokens:" not in page
    assert page.count("<svg") == 1


def test_models_that_clients_name_are_bounded() -> None:
    counts = Counts()
    for number in range(80):
        counts.add(Opinion(judged=True, dialect="d", model=str(number)))
    assert len(counts.served) == 51
    assert counts.served["d", "(others)"].judged == 30
    assert counts.total.judged == 80


def test_times_are_those_of_tokens() -> None:
    """Two ids that one event brings share the time since the event before."""
    found = ExchangeJudge().judge(GOOD).latencies
    assert found is not None
    stream = load_dialects()["sglang-generate"].read(GOOD)
    first, *_, last = [event.place.time for event in stream.events if event.data]
    assert found.first.seconds == first
    assert sum(found.first.counts) == 1
    assert sum(found.between.counts) == len(stream.choices[0].output_ids or ()) - 1
    assert found.between.seconds == pytest.approx(last - first)
    assert ExchangeJudge().judge(whole("watch/3")).latencies is None


def test_a_violating_exchange_is_opened_in_the_player(tmp_path: Path) -> None:
    script = b'"text": "</script><img src=x>'
    reads = tuple(replace(read, data=read.data.replace(b'"text": "', script)) for read in BAD.reads)
    evil = replace(BAD, reads=reads)
    path = ViolationFolder(tmp_path, 1 << 20).keep("cumulative-ids-extend", evil)
    page = exchange_page(Opinion(True, "", dialect="sglang-generate", recorded=path, exchange="watch/<i>2"))
    assert "cumulative-ids-extend" in page
    assert 'id="playbacks"' in page
    assert 'href="../../requirement/cumulative-ids-extend"' in page
    assert "<img" not in page
    assert "<i>" not in page
    assert page.count("</script>") == 2


_SAMPLE = re.compile(
    r'[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\["\\n])*"(,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*\})? [\d.]+'
)


def test_metrics_are_what_prometheus_reads() -> None:
    lines = exposition(hostile_counts(), 7, 2).splitlines()
    families: list[str] = []
    for line in lines:
        if line.startswith("# TYPE "):
            families.append(line.split()[2])
        elif not line.startswith("# HELP "):
            assert _SAMPLE.fullmatch(line), line
            assert re.sub(r"(_bucket|_sum|_count)?[{ ].*", "", line) == families[-1]
    assert len(families) == len(set(families))
    violated = 'requirement="ids-are-counted",level="MUST",dialect="d",model="<m\\"\\n\\\\x1b>"'
    assert f"tokenwire_watch_violations_total{{{violated}}} 1" in lines
    assert "tokenwire_watch_exchanges_total 3" in lines
    assert 'tokenwire_watch_judged_total{dialect="",model=""} 1' in lines
    assert 'tokenwire_watch_conforming_total{dialect="",model=""} 1' in lines
    times = 'time_to_first_token_seconds_bucket{dialect="d",model="<m\\"\\n\\\\x1b>",le='
    for edge, count in (("0.01", 0), ("0.02", 1), ("+Inf", 1)):
        assert f'tokenwire_watch_{times}"{edge}"}} {count}' in lines
    assert "tokenwire_watch_waiting_bytes 7" in lines
    assert "tokenwire_watch_open_exchanges 2" in lines
    assert r'tokenwire_watch_gaps_total{reason="odd\"\n\\reason"} 1' in lines


def test_the_board_and_the_alerts_name_metrics_and_labels_that_are_there() -> None:
    examples = Path(__file__).parents[2] / "examples" / "watch"
    rules = yaml.safe_load((examples / "alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
    board = json.loads((examples / "grafana.json").read_text("utf-8"))
    panels = board["panels"]
    asked = [rule["expr"] for rule in rules] + [
        query["expr"] for panel in panels for query in panel["targets"]
    ]
    for query in asked:
        promql_parser.parse(query.replace("$__rate_interval", "5m"))
    samples = exposition(hostile_counts(), 0, 0)
    named = set(re.findall(r"tokenwire_watch_\w+", " ".join(asked)))
    assert named <= set(re.findall(r"^tokenwire_watch_\w+", samples, re.M))
    assert len(named) > 10
    labels = set(re.findall(r"(\w+)=", " ".join(asked)))
    for group in re.findall(r"by \(([\w, ]+)\)", " ".join(asked)):
        labels |= set(group.split(", "))
    assert labels == {"dialect", "model", "level", "requirement", "reason", "le"}
    assert all(f'{label}="' in samples for label in labels)
    variables = {f"${variable['name']}": variable for variable in board["templating"]["list"]}
    assert set(re.findall(r"\$(?!__)\w+", " ".join(asked))) == variables.keys() - {"$datasource"}
    for name in variables.keys() - {
        "$datasource"
    }:  # a server that names no model has the label, and it is empty
        assert variables[name]["allValue"] == ".*"
    for query in (query for panel in panels for query in panel["targets"]):
        grouped = {
            label for group in re.findall(r"by \(([\w, ]+)\)", query["expr"]) for label in group.split(", ")
        }
        assert set(re.findall(r"{{(\w+)}}", query["legendFormat"])) <= grouped
