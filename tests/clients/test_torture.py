"""A client is served every vector: ours passes all, and each planted bug is red in the right sentence."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection

import httpx
import pytest
from typer.testing import CliRunner

from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Delivery
from tokenwire.report.files import Outputs, write_reports
from tokenwire.wire.event_stream import parse_event_stream
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire_clients.behaviour import BEHAVIOURS, all_cases
from tokenwire_clients.command import app
from tokenwire_clients.held import held_by
from tokenwire_clients.server import torture_server
from tokenwire_clients.session import Asked, Session
from tokenwire_clients.vectors import load_doors, reads_of, whole
from tokenwire_live.watch.exchange_assembly import Budget, ConnectionReader
from tokenwire_live.watch.judging import ExchangeJudge, single_answer_requirements
from tokenwire_live.watch.spool import Kind, Record

DOORS = sorted(load_doors())
CASES = all_cases()


@pytest.fixture
def driver():
    path = Path(__file__).parents[2] / "examples" / "clients" / "driver.py"
    spec = importlib.util.spec_from_file_location("driver", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def pieces_of(url, listed) -> tuple[int, dict[str, str], list[bytes], Ending]:
    """The answer to one request, read by read."""
    reads, ending = [], Ending.COMPLETE
    with (
        httpx.Client(base_url=url, timeout=30, verify=False) as client,
        client.stream("POST", listed["base"] + listed["path"], json=listed["request"]) as answer,
    ):
        try:
            for read in answer.iter_bytes():
                reads.append(read)
                if listed["leave"]:
                    break
        except httpx.RemoteProtocolError:
            ending = Ending.TRUNCATED
    return answer.status_code, dict(answer.headers), reads, ending


def our_reader(url, listed) -> dict[str, object]:
    """What the suite's reader holds of a case, as a client would report it."""
    status, headers, reads, ending = pieces_of(url, listed)
    door = load_doors()[listed["door"]]
    exchange = Exchange(
        "one",
        HttpRequest("POST", door.path, listed["request"]),
        "client",
        status,
        tuple(headers.items()),
        tuple(Read(n / 1000, read) for n, read in enumerate(reads)),
        ending,
    )
    hint = Delivery.CUMULATIVE if door.name.endswith("cumulative") else Delivery.INCREMENTAL
    stream = load_dialects()[door.dialect].read(exchange, delivery_hint=hint)
    broken = (
        any(event.problem for event in stream.events) or stream.unterminated or ending is Ending.TRUNCATED
    )
    return held_by(stream) | ({"error": "broken"} if broken else {})


def plain_client(bug=""):
    """A client of chat and of `/generate` as one writes it in a hurry, with one bug or none."""

    def client(url, listed) -> dict[str, object]:
        _, _, reads, ending = pieces_of(url, listed)
        if bug == "splits characters":
            text = "".join(read.decode(errors="replace") for read in reads)
        else:
            text = b"".join(reads).decode(errors="replace")
        blocks = text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n")
        data = [
            line[5:].lstrip() for block in blocks for line in block.split("\n") if line.startswith("data:")
        ]
        held = defaultdict(lambda: {"text": "", "finish": None})
        events = [json.loads(line) for line in data if line != "[DONE]"]
        for event in events:
            for choice in event.get("choices", [event] if "text" in event else ()):
                record = held[choice.get("index", 0)]
                new = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                finish = choice.get("finish_reason") or (choice.get("meta_info") or {}).get("finish_reason")
                if finish and bug == "drops the last delta":
                    new = ""
                joins = (
                    "delta" in choice or listed["door"].endswith("incremental") or bug == "joins whole states"
                )
                record["text"] = record["text"] + new if joins else new
                record["finish"] = finish["type"] if isinstance(finish, dict) else finish or record["finish"]
        broken = ending is Ending.TRUNCATED or any("error" in event for event in events)
        choices = [{"index": index, **record} for index, record in sorted(held.items())]
        return {"choices": choices, "error": "broken" if broken else None}

    return client


def reader_of(bug=""):
    """A client of chat streams that reads a case's bytes, with one bug or none."""

    def client(door, case) -> dict[str, object]:
        body = b"".join(reads_of(case.reads)).removeprefix(b"\xef\xbb\xbf")
        text = re.sub("\r\n|\r", "\n", body.decode())
        lines, held, usage = text.split("\n")[: -1 if bug == "drops a last line" else None], {}, None
        blocks = "\n".join(lines).split("\n\n")
        data = [
            "\n".join(line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:"))
            for block in blocks
        ]
        for event in (json.loads(line) for line in data if line and line != "[DONE]"):
            if "error" in event:
                return {"error": "the server failed"}
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                join(held.setdefault(choice["index"], {"text": "", "reasoning": "", "calls": {}}), choice)
            if bug == "stops at the first finish" and any(choice.get("finish") for choice in held.values()):
                break
        stopped = bug == "stops at the first finish"
        finished = (any if stopped else all)(choice.get("finish") for choice in held.values())
        made = [{**choice, "index": n, "calls": [*choice["calls"].values()]} for n, choice in held.items()]
        return {"choices": made, "usage": usage} if finished else {"error": "no finish"}

    def join(held, choice) -> None:
        delta = choice["delta"]
        beside = choice.get("finish_reason") and bug == "loses the delta beside the finish"
        for name, keys in (("text", ["content"]), ("reasoning", ["reasoning", "reasoning_content"])):
            piece = "" if beside else next((delta[key] for key in keys if delta.get(key)), "")
            lost = bug == "loses the reasoning" and name == "reasoning"
            kept = held[name] if name == "reasoning" or bug != "replaces deltas" or not piece else ""
            held[name] = "" if lost else kept + piece
        for piece in [] if beside else delta.get("tool_calls") or ():
            function = piece.get("function") or {}
            number = piece["index"]
            if bug == "adds to the call that opened last" and "id" not in piece:
                number = max(held["calls"])
            call = held["calls"].setdefault(number, {"id": None, "name": None, "arguments": ""})
            call["id"], call["name"] = piece.get("id") or call["id"], function.get("name") or call["name"]
            new = function.get("arguments") or ""
            call["arguments"] += new
        if "token_ids" in choice:
            kept = 0xFFFF if bug == "keeps 16 bits of an id" else -1
            ids = [id_ & kept for id_ in choice["token_ids"] or ()]
            held["output_ids"] = ids if bug == "replaces deltas" else held.get("output_ids", []) + ids
        held["finish"] = choice.get("finish_reason") or held.get("finish")

    return client


def messages_client(bug=""):
    """A client of Messages that keeps the blocks of an answer, with one bug or none."""

    def client(case) -> dict[str, object]:
        blocks, finish = {}, None
        for event in parse_event_stream(b"".join(reads_of(case.reads)))[0]:
            data = json.loads(event.data)
            if data["type"] == "content_block_start":
                blocks[data["index"]] = dict(data["content_block"], partial_json="")
            for key, value in data.get("delta", {}).items() if data["type"] == "content_block_delta" else ():
                if key == "signature":
                    number = 0 if bug == "gives all signatures to the first block" else data["index"]
                    blocks[number][key] = "" if bug == "drops the signature" else value
                elif key != "type":
                    blocks[data["index"]][key] += value
            if data["type"] == "message_delta":
                finish = data["delta"]["stop_reason"]
        thoughts = [block for block in blocks.values() if block["type"] == "thinking"]
        held = {
            "text": "".join(block["text"] for block in blocks.values() if block["type"] == "text"),
            "reasoning": "".join(block["thinking"] for block in thoughts),
            "signatures": [block["signature"] for block in thoughts],
            "finish": finish,
        }
        return {"choices": [held]}

    return client


def judged_alone(bug, door) -> Session:
    session = Session()
    for case in load_doors()[door].cases.values():
        if case.id != "long" and case.result != "invalid" and case.status == 200:
            session.take(door, case.id, json.loads(json.dumps(reader_of(bug)(door, case))))
    return session


@contextmanager
def tortured(pause=lambda _seconds: None) -> Iterator[tuple[Session, str]]:
    session = Session()
    with torture_server(session, pause=pause) as url:
        yield session, url


def report(session, url, reader, names) -> list[dict[str, object]]:
    """Let a client ask for cases over HTTP and post what it holds; the verdict on each."""
    answers = []
    with httpx.Client(base_url=url, timeout=30, verify=False) as client:
        for door, name in names:
            (listed,) = (case for case in session.listed(door) if case["case"] == name)
            held = reader(url, listed)
            answer = client.post(f"/tokenwire/report/{door}/{name}", content=json.dumps(held))
            assert answer.status_code == 200, answer.text
            answers.append(answer.json())
    return answers


def legal(door) -> list[tuple[str, str]]:
    return [
        (door, name)
        for (of, name), (_, case) in CASES.items()
        if of == door and case.result != "invalid" and name not in {"long", *BEHAVIOURS}
    ]


@pytest.mark.parametrize("held", [{"text": "half a character: \ud83d"}, {"finish": {"type": "stop"}}])
def test_a_report_of_what_no_record_holds_is_answered(held):
    with tortured() as (_, url):
        report = json.dumps({"choices": [{"index": 0, **held}]})
        answer = httpx.post(f"{url}/tokenwire/report/openai-chat/text", content=report)
    assert answer.json()["verdict"] == Verdict.FAIL
    assert answer.json()["findings"][0]["actual"] == next(iter(held.values()))


@pytest.mark.parametrize("door", DOORS)
def test_our_reader_passes_all_legal_cases_over_http(door):
    with tortured() as (session, url):
        answers = report(session, url, our_reader, legal(door)[::4])
    assert {answer["verdict"] for answer in answers} == {Verdict.PASS}
    assert {judgement.verdict for judgement in session.judgements()} == {Verdict.PASS}


@pytest.mark.parametrize(
    "name", ["slow", "slow-begin", "buffered", "compressed", "broken-once", "busy-429", "leave"]
)
def test_our_reader_passes_what_is_done_beside_the_bytes(name):
    pauses = []
    with tortured(pauses.append) as (session, url):
        (answer,) = report(session, url, our_reader, [("openai-chat", name)])
    assert answer["verdict"] == Verdict.PASS, answer
    assert bool(pauses) == name.startswith("slow")


RED = {
    "drops the last delta": ("openai-chat", "every-delta-is-kept"),
    "splits characters": ("openai-chat", "characters-are-joined"),
    "joins whole states": ("sglang-generate-cumulative", "cumulative-replaces"),
}


@pytest.mark.parametrize("bug", RED)
def test_a_planted_bug_is_red_in_the_right_sentence(bug):
    door, sentence = RED[bug]
    tried = [
        "length",
        "text",
        "spaces",
        "characters",
        "choices",
        "markup",
        "characters-in-characters",
        "text-sevens",
        "text-crlf",
    ]
    names = [(door, name) for name in tried]
    with tortured() as (session, url):
        report(session, url, plain_client(bug), names)
    red = {
        judgement.requirement.id: judgement
        for judgement in session.judgements()
        if judgement.verdict is Verdict.FAIL
    }
    assert set(red) == {sentence}
    shown = session.document()["verdicts"]
    (row,) = (row for row in shown if row["verdict"] == "FAIL")
    assert row["evidence"][0]["excerpt"]
    assert row["evidence"][0]["expected"] != row["evidence"][0]["actual"]
    with tortured() as (session, url):
        report(session, url, plain_client(), names)
    assert {judgement.verdict for judgement in session.judgements()} == {Verdict.PASS}


HEADLINES = {
    "": [],
    "stops at the first finish": ["streams-are-read-to-their-end"],
    "loses the delta beside the finish": ["every-delta-is-kept"],
    "loses the reasoning": ["reasoning-is-kept-apart"],
    "replaces deltas": ["every-delta-is-kept"],
    "keeps 16 bits of an id": ["lists-stay-in-step"],
    "adds to the call that opened last": ["calls-are-joined"],
}


@pytest.mark.parametrize("bug", HEADLINES)
def test_one_fault_of_a_client_is_one_headline(bug):
    report = judged_alone(bug, "vllm-chat").document()
    assert [cause["requirement"] for cause in report["causes"]] == HEADLINES[bug]


SIGNED = ("text", "reasoning", "agent", "signatures", "signatures-all-at-once", "reasoning-opens-with-text")


@pytest.mark.parametrize("bug", ["", "drops the signature", "gives all signatures to the first block"])
def test_a_lost_signature_of_thinking_is_one_headline(bug):
    session, door = Session(), load_doors()["anthropic-messages"]
    for name in SIGNED:
        session.take(door.name, name, messages_client(bug)(door.cases[name]))
    (judgement,) = (row for row in session.judgements() if row.requirement.id == "signatures-are-kept")
    assert judgement.verdict is (Verdict.FAIL if bug else Verdict.PASS)
    causes = session.document()["causes"]
    assert [cause["requirement"] for cause in causes] == (["signatures-are-kept"] if bug else [])


def test_a_client_that_reports_no_signature_is_not_judged_by_them():
    session, door = Session(), load_doors()["anthropic-messages"]
    held = messages_client()(door.cases["signatures"])
    del held["choices"][0]["signatures"]
    session.take(door.name, "signatures", held)
    (judgement,) = session.judgements()
    assert (judgement.requirement.id, judgement.verdict) == ("signatures-are-kept", Verdict.UNSUPPORTED)


def test_a_lost_usage_is_not_taken_for_a_stop_at_the_first_finish():
    session = Session()
    for name in ("text", "choices"):
        right = whole(CASES["openai-chat", name][1].record)
        session.take("openai-chat", name, {**right, "usage": None})
    assert {finding.sentence for finding in session.findings()} == {"usage-is-read-where-it-stands"}


@pytest.mark.parametrize(("bug", "words"), [("", "takes"), ("drops a last line", "drops")])
def test_a_last_event_without_its_blank_line_may_be_taken_or_dropped(bug, words):
    session, door = Session(), load_doors()["vllm-chat"]
    for name in ("text-unended-finish", "text-unended-end"):
        session.take(door.name, name, reader_of(bug)(door.name, door.cases[name]))
    (judgement,) = session.judgements()
    assert judgement.requirement.id == "unended-events-are-whole-or-dropped"
    assert judgement.verdict is Verdict.PASS
    assert session.remarks[-1] == (
        f"the client {words} a last event without its blank line, which is allowed: vllm-chat"
    )
    cut = {"choices": [{"text": "Tokens come in pieces, of any size", "finish": "stop"}]}
    session.take(door.name, "text-unended-finish", cut)
    (judgement,) = session.judgements()
    assert judgement.verdict is Verdict.FAIL


def test_a_character_in_two_surrogates_is_one_character():
    session, right = Session(), {"index": 0, "finish": "stop"}
    halves = json.loads(r'{"text": "a\ud83d"}')["text"] + json.loads(r'{"text": "\ude00b"}')["text"]
    assert (
        session.take("openai-chat", "halves", {"choices": [{**right, "text": halves}]})["verdict"] == "PASS"
    )
    replaced = session.take("openai-chat", "halves", {"choices": [{**right, "text": "a\ufffd\ufffdb"}]})
    assert replaced["findings"][0]["sentence"] == "surrogates-are-joined"


def test_the_first_snippet_of_the_guide_is_judged_by_what_it_reports(driver):
    session = Session()
    for name in ("text", "reasoning", "call", "agent"):
        (choice,) = whole(CASES["openai-chat", name][1].record)["choices"]
        held = driver.held_choice(0, choice["text"], choice["finish"])
        session.take("openai-chat", name, {"choices": [held]})
    assert {judgement.verdict for judgement in session.judgements()} == {Verdict.PASS, Verdict.UNSUPPORTED}


@pytest.mark.parametrize(("text", "shown"), [("", ""), (None, None)])
def test_a_text_that_is_lost_is_shown_as_reported_and_from_its_first_delta(text, shown):
    session = Session()
    session.take("openai-chat", "text", {"choices": [{"text": text, "finish": "stop"}]})
    (judgement,) = (one for one in session.judgements() if one.violations)
    (found,) = judgement.violations
    assert found.actual == shown
    stream = judgement.run.streams[0].load()
    first = next(one for one in stream.choices[0].emissions if one.text)
    assert found.place.event == first.event.place.event
    cases = len(all_cases())
    words = f"the client reported on 1 of {cases:,} cases; the verdicts do not cover the other {cases - 1:,}"
    assert session.remarks[0] == words


def run_torture(*words) -> tuple[int, str]:
    ended = CliRunner().invoke(app, words)
    return ended.exit_code, ended.output


def test_one_case_is_asked_by_the_line_that_a_report_prints(tmp_path):
    client = tmp_path / "my client.py"
    client.write_text(
        "import json, os, urllib.request\n"
        "url = os.environ['TOKENWIRE_URL']\n"
        "for case in json.load(urllib.request.urlopen(url + '/tokenwire/cases')):\n"
        "    held = json.dumps({'choices': [{'text': 'no', 'finish': 'stop'}]}).encode()\n"
        "    urllib.request.urlopen(f\"{url}/tokenwire/report/{case['door']}/{case['case']}\", held)\n"
    )
    folder = tmp_path / "report"
    served = ["--", sys.executable, str(client)]
    status, output = run_torture(
        "--client", "mine", "--report", str(folder), "--case", "openai-chat/text", *served
    )
    assert status == 1
    assert output.startswith("1 case at http://127.0.0.1:")
    (line,) = (line for line in output.splitlines() if line.startswith("  tokenwire torture"))
    words = shlex.split(line)
    assert words == [
        *("tokenwire", "torture", "--client", "mine", "--report", str(folder)),
        *("--case", "openai-chat/text", *served),
    ]
    assert "$URL" not in output
    assert run_torture(*words[2:])[0] == 1
    status, verbose = run_torture("-v", *words[2:])
    assert status == 1
    assert "\nclients\nFAIL" in verbose
    assert len(run_torture("-q", *words[2:])[1]) < len(output)


def test_a_case_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    status, output = run_torture("--report", str(tmp_path / "report"), "--case", "openai-chat/texd")
    assert status == 2
    assert "did you mean 'openai-chat/text'?" in " ".join(output.replace("│", " ").split())


def test_a_client_that_takes_a_broken_stream_for_whole_is_told():
    session = Session()
    held = {"choices": [{"index": 0, "text": "Tokens", "finish": "stop"}]}
    answer = session.take("openai-chat", "text-reset", held)
    assert answer["findings"][0]["sentence"] == "broken-streams-are-told"
    assert answer["record"]["choices"][0]["text"] == "Tokens come in pieces, of any size."
    assert session.take("openai-chat", "text-reset", {"error": "the stream broke off"})["verdict"] == "PASS"
    assert session.take("openai-chat", "text-reset", {"choices": [{"text": "Tokens"}]})["verdict"] == "PASS"


def test_a_case_that_an_adapter_gives_up_is_inconclusive():
    session = Session()
    session.take("openai-chat", "long", {"given_up": "after 60 s of the processor"})
    (judgement,) = session.judgements()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.message == "long was given up after 60 s of the processor"
    assert session.document()["verdicts"]


def test_a_report_shows_as_much_of_a_long_stream_as_it_needs():
    session, key = Session(), ("openai-chat", "long")
    session.take(*key, {"error": "not read in 60 s"})
    shown = session.judgements()[0].run.streams[0].exchange
    assert len(shown.reads) == 5_000
    held = whole(CASES[key][1].record)["choices"][0] | {"text": "a" + " b" * 200 + " c"}
    session.take(*key, {"choices": [held]})
    (violation,) = session.judgements()[0].violations
    assert violation.place.event == 202
    assert session.remarks[-1] == "of the case long the report shows 5,000 reads, or as far as it differs"


def test_a_client_that_invents_an_error_is_told():
    session = Session()
    answer = session.take("openai-chat", "text", {"error": "ValueError: no"})
    assert (answer["verdict"], answer["findings"][0]["field"]) == ("FAIL", "error")
    (shown,) = (row["exhibit"] for row in session.document()["verdicts"] if row["verdict"] == "FAIL")
    assert shown["message"] == "text: the client raised an error on a valid stream"
    assert (shown["expected"], shown["actual"]) == ("no error", "ValueError: no")


@pytest.mark.parametrize("status", [429, 503])
def test_a_client_that_does_not_wait_is_told(status):
    right, key = whole(CASES["openai-chat", "text"][1].record), ("openai-chat", f"busy-{status}")
    for second, red in ((10.2, ["busy-servers-are-spared"]), (11.1, [])):
        session = Session()
        session.note(*key, Asked(10.0, 1))
        session.note(*key, Asked(second, 1))
        session.take(*key, right)
        assert [finding.sentence for finding in session.findings()] == red


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_is_busy_once(status):
    with tortured() as (_, url):
        path = f"{url}/openai-chat/busy-{status}/v1/chat/completions"
        busy, whole_answer = (httpx.post(path, json={}) for _ in range(2))
    assert (busy.status_code, busy.headers["retry-after"]) == (status, "1")
    assert busy.json()["error"]["code"] == status
    assert (whole_answer.status_code, whole_answer.content[-14:]) == (200, b"data: [DONE]\n\n")


def test_a_client_that_joins_a_stream_that_broke_with_the_next_is_told():
    text = "Tokens come" + "Tokens come in pieces, of any size."
    answer = Session().take("openai-chat", "broken-once", {"choices": [{"text": text, "finish": "stop"}]})
    assert answer["findings"][0]["sentence"] == "begun-streams-are-not-asked-again"


def test_a_client_that_stays_connected_is_told(monkeypatch):
    monkeypatch.setattr("tokenwire_clients.session._LEAVES_WITHIN_S", 0.0)
    session = Session()
    assert session.take("openai-chat", "leave", {})["findings"][0]["sentence"] == "left-streams-are-closed"
    session.left("openai-chat", "leave")
    assert session.take("openai-chat", "leave", {})["verdict"] == "PASS"


def behind(case, *, begins, connection, others=()) -> tuple[str, list[str]]:
    """What is said of a client whose next request behind a case takes this connection."""
    session, right = Session(), whole(CASES["openai-chat", "text"][1].record)
    for name in others:
        session.note("openai-chat", name, Asked(9.0, 9))
    session.note("openai-chat", case, Asked(10.0, 1))
    session.take("openai-chat", case, right)
    session.note("openai-chat", "leave", Asked(11.0, connection, begins=begins))
    session.note("openai-chat", "text", Asked(12.0, 12, begins=True))
    (judgement,) = session.judgements()
    return judgement.verdict.value, [finding.sentence for finding in session.findings()]


def test_the_next_request_shows_what_became_of_a_connection():
    kept, left = "connections-are-kept", "closed-connections-are-left"
    assert behind("kept", begins=False, connection=1) == ("PASS", [])
    assert behind("kept", begins=False, connection=5) == ("PASS", [])  # the one that brought the report
    assert behind("kept", begins=True, connection=2) == ("WARN", [kept])
    assert behind("closes", begins=True, connection=2) == ("PASS", [])
    assert behind("closes", begins=False, connection=1) == ("FAIL", [left])
    assert behind("kept", begins=True, connection=2, others=["slow"])[0] == "UNSUPPORTED"  # more is under way


@pytest.mark.parametrize(
    ("asks_anew", "broken"), [(False, "closed-connections-are-left"), (True, "connections-are-kept")]
)
def test_the_server_sees_which_connection_a_client_takes(asks_anew, broken):
    """One that sends all on one connection, and one that opens another for each request."""
    right = whole(CASES["openai-chat", "text"][1].record)
    with tortured() as (session, url), ExitStack() as opened:
        address = (httpx.URL(url).host, httpx.URL(url).port)
        connections = [opened.enter_context(create_connection(address))] * 3
        for number, name in enumerate(("kept", "closes", "text")):
            if asks_anew:
                connections[number] = opened.enter_context(create_connection(address))
            body = json.dumps({"model": f"openai-chat/{name}"}).encode()
            headers = f"Host: {address[0]}\r\nContent-Length: {len(body)}\r\n\r\n"
            head = f"POST /v1/chat/completions HTTP/1.1\r\n{headers}"
            connections[number].sendall(head.encode() + body)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                read = connections[number].recv(1 << 16)
                assert read, answer
                answer += read
            assert (b"Connection: close" in answer) == (name == "closes")
            httpx.post(f"{url}/tokenwire/report/openai-chat/{name}", json=right)
        sent = httpx.get(f"{url}/tokenwire/sent/openai-chat/text").json()
    assert [finding.sentence for finding in session.findings()] == [broken]
    assert sent == len(list(reads_of(CASES["openai-chat", "text"][1].reads)))


def test_a_sentence_about_lists_does_not_apply_to_a_client_that_reports_none():
    session, right = Session(), whole(CASES["openai-chat", "logprobs"][1].record)
    choices = [{key: choice[key] for key in ("index", "text", "finish")} for choice in right["choices"]]
    session.take("openai-chat", "logprobs", {"choices": choices})
    (judgement,) = session.judgements()
    assert (judgement.verdict, judgement.witnesses) == (Verdict.UNSUPPORTED, 0)
    assert judgement.message.startswith("the client reports no output_ids and no logprobs")
    session.take("openai-chat", "logprobs", right)
    (judgement,) = session.judgements()
    assert (judgement.verdict, judgement.witnesses) == (Verdict.PASS, 1)


@pytest.mark.parametrize(
    "held",
    [
        [],
        {"choices": None},
        {"choices": [{"index": []}]},
        {"choices": ["text"]},
        {"choices": [{"calls": ["a"]}]},
        {"usage": 3},
    ],
)
def test_a_report_of_another_form_is_refused_with_its_place(held):
    with tortured() as (session, url):
        answer = httpx.post(f"{url}/tokenwire/report/openai-chat/text", json=held)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("no report, at /")
    assert not session.wrong


def test_a_client_may_report_the_index_that_a_stream_gave():
    session, right = Session(), whole(CASES["openai-chat", "text"][1].record)["choices"][0]
    held = {"choices": [{**right, "text": "Tok"}, {"index": "0", "text": "ens"}, {"index": 1, "text": ""}]}
    session.take("openai-chat", "text-misfit-3-index", held)
    assert [finding.difference.choice for finding in session.findings()] == [0, "0", 1]
    assert session.document()["verdicts"]


def test_what_names_no_case_is_refused():
    with tortured() as (_, url), httpx.Client(base_url=url) as client:
        assert client.post("/v1/chat/completions", json={"model": "nobody/text"}).status_code == 404
        assert client.post("/tokenwire/report/openai-chat/nothing", json={}).status_code == 404
        assert client.post("/tokenwire/report/openai-chat/text", json=[]).status_code == 400
        assert client.post("/tokenwire/report/openai-chat/text", content=b"{").status_code == 400
        assert client.get("/nowhere").status_code == 404
        by_model = client.post("/v1/chat/completions", json={"model": "openai-chat/text"})
        assert by_model.content == b"".join(reads_of(CASES["openai-chat", "text"][1].reads))
        assert {"id": "openai-chat/text", "object": "model"} in client.get("/v1/models").json()["data"]


class Receiver:
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def finished(self, position, exchange) -> None:
        self.exchanges.append(exchange)

    def missed(self, position, reason, *, exchange) -> None:
        raise AssertionError(reason)


def watched(door, case) -> Exchange:
    """A case as `tokenwire watch` puts it together from the bytes of a connection."""
    body = json.dumps(case.request).encode()
    asked = f"POST {door.path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    fields = "".join(f"{name}: {value}\r\n" for name, value in case.headers.items())
    head = f"HTTP/1.1 {case.status} X\r\n{fields}Transfer-Encoding: chunked\r\n\r\n".encode()
    chunks = [f"{len(read):x}\r\n".encode() + read + b"\r\n" for read in reads_of(case.reads)]
    receiver = Receiver()
    reader = ConnectionReader(receiver, Budget(most=1 << 24, largest=1 << 22))
    sent = [(Kind.REQUEST, asked), (Kind.RECEIVED, head), *((Kind.RECEIVED, chunk) for chunk in chunks)]
    if case.ending == Ending.COMPLETE:
        sent.append((Kind.RECEIVED, b"0\r\n\r\n"))
    sent.append((Kind.TARGET_ENDED, b""))
    for number, (kind, data) in enumerate(sent):
        reader.take(Record(number, 7, kind, 100.0 + number / 1000, memoryview(data)))
    (exchange,) = receiver.exchanges
    return exchange


@pytest.mark.parametrize("name", DOORS)
def test_watch_puts_every_case_together(name):
    door = load_doors()[name]
    for case in door.cases.values():
        if case.id != "long":
            exchange = watched(door, case)
            assert (exchange.body, exchange.ending) == (b"".join(reads_of(case.reads)), case.ending), case.id


def test_watch_says_of_every_case_what_its_file_says():
    door, alone = load_doors()["openai-completions"], {row.id for row in single_answer_requirements()}
    for case in door.cases.values():
        if case.id == "long":
            continue
        broken = {
            violation.requirement
            for violation in ExchangeJudge().judge(watched(door, case)).violations
            if violation.level == "MUST"
        }
        if case.result == "invalid":
            assert case.requirement in broken or case.requirement not in alone, case.id
        else:
            assert not broken, case.id


def test_a_report_of_a_case_without_an_event_has_all_forms(tmp_path):
    session = Session()
    session.take(
        "openai-chat", "text-reset-at-once", {"choices": [{"text": "Tok", "finish": "stop"}], "usage": {}}
    )
    outputs = Outputs.within(tmp_path)
    assert write_reports(session.document(), outputs, session.judgements()) == []
    assert "broken-streams-are-told" in (tmp_path / "report.html").read_text("utf-8")
