from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from io import StringIO
from pathlib import Path

import jsonschema
import pytest
from hand_made_stream import ids_stream, made_up_row
from rich.console import Console
from stream_builder import named, refusal, whole

from tokenwire.ask import Budget
from tokenwire.asking import detokenization, preflight
from tokenwire.asking.planning import planned
from tokenwire.checks.check import CHECKS, Check, Target
from tokenwire.checks.evidence import Observation, expect
from tokenwire.disk import write_whole
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.observing import NO_SCENARIO
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict, exit_status, overall
from tokenwire.profile import standing
from tokenwire.record import Stream
from tokenwire.report import exhibit
from tokenwire.report.document import as_json, document, row
from tokenwire.report.failure import failure
from tokenwire.report.files import Outputs, write_bodies
from tokenwire.report.overview import overview, profile_in_words, summaries
from tokenwire.report.page import page
from tokenwire.report.reproduction import again, body_file, curl
from tokenwire.report.subject import ASKED_ANYWAY, Subject
from tokenwire.report.terminal import print_report
from tokenwire.report.wording import cut, value, where
from tokenwire.settings import Settings
from tokenwire.spec_files import load_schema
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import HttpRequest


def at_most_two_ids(stream: Stream, target: Target) -> Iterator[Observation]:
    for emission in stream.emissions():
        count = len(emission.output_ids or ())
        yield expect(emission.at("output_ids"), "at most 2", count, "too many ids", holds=count <= 2)


@pytest.fixture
def violated(monkeypatch: pytest.MonkeyPatch) -> tuple[Judgement, Subject]:
    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", observe=at_most_two_ids))
    monkeypatch.setattr(exhibit, "looks_like", lambda judgement: judgement.requirement.upstream)
    run = Run(
        (ids_stream([1], [2], [3], [4], [5, 6, 7], [8], [9], [10, 11, 12], [13]),), Advertised(name="srv")
    )
    (judgement,) = judge([run], [made_up_row(upstream=("sgl-project/sglang PR #27205",))])
    return judgement, Subject(url="http://h:1", runs=(run,), dialects=("sglang-generate",))


def test_a_failure_is_six_lines_then_evidence_then_two_commands(violated) -> None:
    judgement, subject = violated
    text = failure(row(judgement, subject))
    lines = text.splitlines()
    assert lines[0] == "FAIL  made-up  in one"
    assert lines[1].split() == ["sentence", "Things", "MUST", "be", "so."]
    assert lines[2].split(maxsplit=1) == ["found", "too many ids"]
    assert lines[3].split(maxsplit=1) == ["expected", "at most 2"]
    assert lines[4].split(maxsplit=1) == ["actual", "3"]
    assert "event 4" in lines[5]
    assert "/output_ids" in lines[5]
    assert "PR #27205" in lines[6]
    assert "and 1 more like it, in 1 exchange" in text
    assert lines[-2].strip().startswith("curl ")
    assert lines[-1].strip() == "tokenwire check --target http://h:1 --requirement made-up --scenario one"


def test_the_events_around_the_first_illegal_one_are_shown_and_its_value_is_marked(violated) -> None:
    judgement, subject = violated
    lines = failure(row(judgement, subject)).splitlines()
    events = [line for line in lines if "data:" in line and "curl" not in line]
    assert [line.split()[0] for line in events] == ["2", "3", ">", "5", "6"]
    below = lines[lines.index(events[2]) + 1]
    assert events[2][below.index("^") : below.rindex("^") + 1] == "[5,6,7]"


def test_no_line_of_a_failure_is_wider_than_the_terminal_but_the_commands(violated) -> None:
    judgement, subject = violated
    (seen, *_) = judgement.violations
    long = seen._replace(
        message="one word after the other " * 12, actual="…" * 150, expected="ex pec ted" * 15
    )
    upstream = judgement.requirement.upstream * 5
    elsewhere = [long._replace(place=long.place._replace(exchange=f"a/b/some-label-{n}")) for n in range(9)]
    long_one = replace(judgement, violations=(long, *elsewhere), requirement=made_up_row(upstream=upstream))
    lines = failure(row(long_one, subject), 80).splitlines()
    assert max(map(len, lines[:-2])) <= 80
    assert "ex pec ted" * 15 in "".join(line[14:] for line in lines), "spaces of the wire are kept"


def test_texts_that_part_have_a_caret_below_the_first_character_that_is_wrong(violated) -> None:
    judgement, subject = violated

    def shown(expected: str, actual: str) -> list[str]:
        seen = judgement.violations[0]._replace(expected=expected, actual=actual)
        return failure(row(replace(judgement, violations=(seen,)), subject)).splitlines()

    lines = shown(" sat on the mat", " sat on teh mat")
    caret = next(n for n, line in enumerate(lines) if line.strip() == "^")
    assert lines[caret - 1].startswith("  actual")
    assert lines[caret - 1][lines[caret].index("^") :] == "eh mat"
    assert "^" not in "".join(shown("an end of its own", "abort")[:6])


def test_a_label_can_be_left_out_with_all_of_its_lines(violated) -> None:
    judgement, subject = violated
    judged = replace(judgement, requirement=made_up_row(sentence="Things MUST be so. " * 20))
    text = failure(row(judged, subject), without=("sentence", "again"))
    assert "MUST" not in text
    assert "tokenwire check" not in text


def test_a_judgement_without_a_violation_has_no_failure_to_show(violated) -> None:
    judgement, subject = violated
    with pytest.raises(ValueError, match="no violation"):
        failure(row(replace(judgement, violations=(), verdict=Verdict.PASS), subject))


def test_curl_survives_the_shell() -> None:
    stream = ids_stream([1])
    words = shlex.split(curl(stream.exchange, "http://h:1/"))
    assert words[:5] == ["curl", "-sN", "-X", "POST", "http://h:1/generate"]
    assert json.loads(words[words.index("--data-binary") + 1]) == {"input_ids": [1, 2], "text": "it's"}
    assert '"$URL"/generate' in curl(stream.exchange)
    got = replace(stream.exchange, request=HttpRequest("GET", "/server_info"))
    assert "--data-binary" not in curl(got)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": \xff}',
        b"\0",
        b"[" * 100_000,
        b'{"input_ids":[' + b"10," * 40_000 + b"10]}",
        b"[" * 5_000 + b"'\"" + b"]" * 5_000 + b"!",
    ],
)
def test_a_body_that_is_long_or_no_text_is_made_by_a_short_program(body: bytes) -> None:
    stream = ids_stream([1])
    raw = replace(stream.exchange, request=HttpRequest("POST", "/generate", raw_body=body))
    command = curl(raw, "http://h:1")
    assert len(command) < 2_000
    made, _, sent = command.partition(" | ")
    assert sent.endswith("--data-binary @-")
    words = shlex.split(made)
    assert words[0] == "python3"
    assert subprocess.run([sys.executable, *words[1:]], capture_output=True, check=True).stdout == body


def test_a_body_that_nothing_shortens_is_not_shown() -> None:
    body = "".join(f"{number} " for number in range(5_000)).encode()
    raw = replace(ids_stream([1]).exchange, request=HttpRequest("POST", "/generate", raw_body=body))
    assert curl(raw).endswith(
        f"--data-binary @BODY  # BODY: {len(body):,} bytes; --report writes them to a file"
    )


def test_the_media_type_is_said_once_and_is_no_header_of_the_run(violated) -> None:
    judgement, subject = violated
    (stream,) = judgement.run.streams
    typed = replace(stream.exchange.request, headers=(("content-type", "text/plain"),))
    exchange = replace(stream.exchange, request=typed)
    assert curl(exchange).lower().count("content-type") == 1
    run = replace(judgement.run, streams=(replace(stream, exchange=exchange),))
    assert "content-type" not in again(replace(judgement, run=run), subject)


def test_the_command_that_judges_again_knows_where_the_bytes_are(violated) -> None:
    judgement, subject = violated
    assert again(judgement, replace(subject, recorded="my dir")).startswith("tokenwire replay 'my dir' ")
    captured = replace(judgement, run=replace(judgement.run, name="caps/a.jsonl"))
    assert (
        again(captured, Subject(captures=("caps",))) == "tokenwire replay caps/a.jsonl --requirement made-up"
    )


def test_a_body_that_nothing_shortens_goes_to_a_file_beside_the_report(violated, tmp_path: Path) -> None:
    judgement, subject = violated
    (stream,) = judgement.run.streams
    body = "".join(f"{number} " for number in range(5_000)).encode()
    long = HttpRequest("POST", "/generate", raw_body=body)
    exchange = replace(stream.exchange, request=long)
    judged = replace(judgement, run=Run((replace(stream, exchange=exchange),)))
    folder = Outputs.within(tmp_path).bodies
    assert write_bodies([judged], folder) == []
    shown = document(replace(subject, bodies=str(folder)), [judged], 1)["verdicts"][0]["exhibit"]
    words = shlex.split(shown["curl"])
    assert Path(words[words.index("--data-binary") + 1].removeprefix("@")).read_bytes() == body
    outside = replace(exchange, name="../../etc/passwd")
    assert body_file(outside) == "-etc-passwd.body"
    assert [file.name for file in folder.iterdir()] == ["generate-one.body"]


def test_the_command_that_asks_again_asks_as_was_asked(violated) -> None:
    judgement, subject = violated
    options = {"worker": "http://w:2", "budget": Budget.QUICK, "declare": ("logprobs",), "model": "m"}
    headers = (("x-tokenwire-fault", "event-dropped"), ("Authorization", "Bearer sk-1"), ("x-key", "env:K"))
    plan = planned(Settings(**options, file_headers=headers), {"K": "secret"})
    command = again(
        judgement, replace(subject, asked_with=plan.asked_with, judged_with=("--tokenizer", "dir"))
    )
    assert command == (
        "tokenwire check --target http://h:1 --header 'x-tokenwire-fault: event-dropped' --header "
        "'Authorization: env:MY_KEY' --header 'x-key: env:K' --declare logprobs --model m --worker "
        "http://w:2 --budget quick --tokenizer dir --requirement made-up --scenario one"
    )


def test_what_is_asked_whatever_is_chosen_is_asked_again_with_little(violated) -> None:
    judgement, subject = violated
    assert {preflight.SCENARIO, detokenization.SCENARIO} == ASKED_ANYWAY
    for scenario in ASKED_ANYWAY:
        assert again(replace(judgement, scenario=scenario), subject).endswith("made-up --scenario probe")
    assert again(replace(judgement, scenario=NO_SCENARIO), subject).endswith("--requirement made-up")


def test_curl_sends_the_headers_that_were_sent(violated) -> None:
    (stream,) = violated[0].run.streams
    fault = ("x-tokenwire-fault", "event-dropped")
    exchange = replace(stream.exchange, request=replace(stream.exchange.request, headers=(fault,)))
    assert "x-tokenwire-fault: event-dropped" in shlex.split(curl(exchange))


def test_the_document_fits_its_schema(violated, tmp_path: Path) -> None:
    judgement, subject = violated
    inconclusive = judge([subject.runs[0]], [made_up_row(id="other", applies_when=("usage",))])
    judgements = [judgement, *inconclusive]
    report = document(subject, judgements, 1)
    jsonschema.Draft202012Validator(load_schema("report")).validate(report)
    assert list(report)[-1] == "footer"
    assert report["summary"]["FAIL"] == 1
    assert report["summary"]["UNSUPPORTED"] == 1
    assert report["verdicts"][0]["evidence"][0]["event"] == 4
    assert report["target"]["server"]["name"] == "srv"
    path = tmp_path / "deep" / "report.json"
    write_whole(path, as_json(report))
    assert json.loads(path.read_text("utf-8")) == report
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]


def test_the_document_holds_what_json_cannot(violated) -> None:
    judgement, subject = violated
    odd = judgement.violations[0]._replace(
        expected=(1, {"a": float("nan")}), actual=frozenset({"b", "a"}), message=""
    )
    report = document(subject, [replace(judgement, violations=(odd,))], 1)
    jsonschema.Draft202012Validator(load_schema("report")).validate(report)
    evidence = report["verdicts"][0]["evidence"][0]
    assert (evidence["expected"], evidence["actual"]) == ([1, {"a": "nan"}], ["a", "b"])
    json.dumps(report, allow_nan=False)


def test_evidence_is_bounded(violated) -> None:
    judgement, subject = violated
    many = replace(judgement, violations=judgement.violations * 50)
    assert len(document(subject, [many], 1)["verdicts"][0]["evidence"]) == 20


def printed(judgements, subject: Subject, **options) -> str:
    out = StringIO()
    status = exit_status(judgement.verdict for judgement in judgements)
    report = document(subject, judgements, status)
    print_report(Console(file=out, width=100, highlight=False), report, **options)
    return out.getvalue()


def test_the_terminal_shows_the_failure_and_one_last_line(violated) -> None:
    judgement, subject = violated
    text = printed([judgement], replace(subject, left_out={"x-chat": "no record"}, remarks=("mind this",)))
    assert text.startswith("FAIL  made-up  in one\n")
    assert "FAIL  made-up  in one" in text
    assert "asked: none of 1 kinds of endpoints (-v tells why)" in text
    assert "no record" not in text
    assert "not asked: x-chat: no record" in printed(
        [judgement], replace(subject, left_out={"x-chat": "no record"}), verbosity=1
    )
    assert "remark: mind this" in text
    assert text.splitlines()[-1] == "http://h:1: does not conform (1 FAIL)"


@pytest.mark.parametrize(
    ("twin", "status", "words"),
    [
        ("another model", 1, "conforms, as far as this run could see; the twin: another model (1 PASS)"),
        ("undecided", 4, "conforms, as far as this run could see; the twin: undecided (1 PASS)"),
        ("the same", 0, "conforms, as far as this run could see; the twin: the same (1 PASS)"),
    ],
)
def test_the_last_line_names_the_verdict_on_the_twin(violated, twin: str, status: int, words: str) -> None:
    judgement, subject = violated
    passed = replace(judgement, verdict=Verdict.PASS, violations=())
    report = document(subject, [passed], status, twin={"outcome": twin})
    assert overview(report).last_line == f"http://h:1: {words}"
    report = document(subject, [judgement], 1, twin={"outcome": twin})
    assert overview(report).last_line == f"http://h:1: does not conform; the twin: {twin} (1 FAIL)"


def test_a_profile_says_which_fields_the_server_refuses(violated) -> None:
    judgement, subject = violated
    missing = standing("metadata", {"logprobs-whole": Verdict.UNSUPPORTED}, {"sglang"})
    assert missing.missing == ("data of each token",)

    def words(*streams: Stream) -> str:
        about = replace(subject, runs=(Run(streams),))
        report = document(about, [judgement], 4, profiles=[missing])
        jsonschema.Draft202012Validator(load_schema("report")).validate(report)
        terminal = profile_in_words(report["profiles"][0]).partition(": ")[2]
        assert terminal.removeprefix("not shown: ") in unescape(page(report))
        return terminal

    bare = "not shown: no verdict on data of each token"
    refused, answered = refusal(logprobs=True), whole(logprobs=True)
    assert words(refused) == f"{bare} (the server refused the request with logprobs)"
    assert words(refused, named(refused, "again")) == (
        f"{bare} (the server refused each of the 2 requests with logprobs)"
    )
    assert words(refused, answered) == bare
    assert words(refusal(status=404, logprobs=True)) == bare


def test_stale_entries_are_counted_with_their_requirements(violated) -> None:
    judgement, subject = violated
    fault = {"kind": "stale", "requirement": "row-1", "scenario": "", "message": "gone"}
    faults = [fault, fault, {**fault, "requirement": "row-2"}]
    report = document(subject, [judgement], 1, baseline={"file": "k.toml", "faults": faults, "flaky": []})
    out = StringIO()
    print_report(Console(file=out, width=100), report)
    assert "stale: no longer failing: 2 requirements, 3 entries: row-1, row-2\n" in out.getvalue()


def test_of_many_causes_the_gravest_are_shown_and_the_others_listed(violated) -> None:
    judgement, subject = violated
    causes = [replace(judgement, requirement=made_up_row(id=f"row-{n}")) for n in range(30)]
    text = printed(causes, subject)
    assert text.startswith("start here: the 3 gravest of 30 causes\n\nFAIL  row-0  in one\n")
    assert text.count("  found  ") == 3
    assert text.count("\nFAIL  row-") == 23
    assert "\nFAIL  row-22  in one: " in text
    assert "and 7 more; -v shows each with its events" in text
    assert len(text.splitlines()) <= 80
    assert printed(causes, subject, verbosity=1).count("  found  ") == 30
    assert printed(causes[:5], subject).count("  found  ") == 5


def test_rules_of_the_numbers_are_shown_on_request(violated) -> None:
    judgement, subject = violated
    seen = replace(subject, rules=("generate: output logprobs are divided by the temperature",))
    assert "divided by" not in printed([judgement], seen)
    assert "rule: generate: output logprobs are divided" in printed([judgement], seen, verbosity=1)


def test_a_report_tells_what_share_of_the_requirements_was_judged(violated) -> None:
    judgement, subject = violated
    other = Judgement(made_up_row(id="other"), "-", Verdict.UNSUPPORTED)
    report = document(subject, [judgement, replace(judgement, scenario="two"), other], 1)
    jsonschema.Draft202012Validator(load_schema("report")).validate(report)
    assert report["judged"] == {"requirements": 1, "of": 2}
    assert "judged 1 of 2 requirements" in printed([judgement, other], subject).splitlines()


def test_the_terminal_can_be_quiet(violated) -> None:
    judgement, subject = violated
    text = printed([judgement], subject, verbosity=-1)
    assert text.startswith("FAIL  made-up  in one")


def test_text_from_the_target_is_no_markup(violated) -> None:
    judgement, subject = violated
    evil = judgement.violations[0]._replace(actual="[red]gotcha[/nope]")
    assert "[red]gotcha[/nope]" in printed([replace(judgement, violations=(evil,))], subject)


def test_nothing_judged_says_so() -> None:
    assert printed([], Subject(url="http://h:1")).strip() == (
        "http://h:1: nothing could be tested (no verdict)"
    )


def test_what_was_seen_weighs_more_than_what_was_not() -> None:
    assert overall([Verdict.INCONCLUSIVE, Verdict.PASS]) is Verdict.PASS
    assert overall([Verdict.PASS, Verdict.FAIL, Verdict.WARN]) is Verdict.FAIL
    assert overall([Verdict.UNSUPPORTED]) is Verdict.UNSUPPORTED


def test_names_of_further_answers_are_not_cut_at_their_hyphens(violated) -> None:
    judgement, subject = violated
    made = row(judgement, subject)
    names = [f"a-label-of-{'some-' * n}length" for n in range(9)]
    made["exhibit"] = {**made["exhibit"], "others": f"and 9 more like it; also: {', '.join(names)}"}
    assert all(name in failure(made, 80) for name in names)


def test_values_are_readable() -> None:
    assert value("four entries") == "four entries"
    assert value("") == '""'
    assert value([1, None]) == "[1, null]"
    assert value('{"city": "Paris"}') == """'{"city": "Paris"}'"""
    assert value(['is not of type "object"', "b"]) == """['is not of type "object"', "b"]"""
    assert value("a\nb") == '"a\\nb"'
    assert len(value(list(range(500)))) <= 200
    assert cut("a" * 50 + "b" * 50, 21) == "a" * 9 + " … " + "b" * 9


def test_a_place_is_told_in_words(violated) -> None:
    judgement, _ = violated
    place = judgement.violations[0].place
    assert where(place) == f"generate/one, event 4, at 0.500 s, bytes {place.start}-{place.end}, /output_ids"


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Judgement], Subject]:
    """One requirement that passes in two scenarios, of which the second has the longer stream."""
    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", observe=at_most_two_ids))
    short = ids_stream([1], [2], name="generate/short", scenario="short")
    long = ids_stream(*([n] for n in range(9)), name="generate/long", scenario="long")
    run = Run((short, long))
    return judge([run], [made_up_row()]), Subject(url="http://h:1", runs=(run,))


def test_a_pass_shows_the_witness_that_lies_furthest_into_a_stream(passed) -> None:
    judgements, subject = passed
    report = document(subject, judgements, 0)
    jsonschema.Draft202012Validator(load_schema("report")).validate(report)
    first, second = report["verdicts"]
    assert "witness" not in first
    witness = second["witness"]
    assert witness["first_seen"].startswith("generate/long, event 8, at 0.900 s, bytes ")
    assert (witness["expected"], witness["actual"]) == ("at most 2", "1")
    (event,) = witness["events"]
    assert (event["index"], event["excerpt"], event["mark"]) == (8, 'data: {"output_ids":[8]}', [20, 23])
    assert witness["curl"].startswith("curl -sN")
    assert "--scenario long" in witness["again"]


def test_a_witness_shows_the_events_that_it_relates_and_no_more_than_a_few(passed) -> None:
    (_, judgement), subject = passed
    seen = judgement.witness
    places = [event.place for event in judgement.run.streams[1].events]
    related = replace(judgement, witness=seen._replace(related=tuple(places[2:7])))
    (shown,) = [row["witness"] for row in document(subject, [related], 0)["verdicts"]]
    assert [event["index"] for event in shown["events"]] == [5, 6, 8]
    assert len(shown["related"]) == 3
    everywhere = replace(judgement, witness=seen._replace(place=places[0]._replace(event=None)))
    (shown,) = [row["witness"] for row in document(subject, [everywhere], 0)["verdicts"]]
    assert [event["index"] for event in shown["events"]] == [0, 1, 2]


def test_a_witness_of_a_long_request_leaves_its_body_out(passed) -> None:
    (_, judgement), subject = passed
    (_, stream) = judgement.run.streams
    long = HttpRequest("POST", "/generate", {"input_ids": list(range(1000))})
    asked = replace(stream, exchange=replace(stream.exchange, request=long))
    (shown,) = document(subject, [replace(judgement, run=Run((asked,)))], 0)["verdicts"]
    assert shown["witness"]["curl"].endswith(
        "--data-binary @BODY  # BODY: 3,905 bytes; --report writes them to a file"
    )
    assert len(json.dumps(shown["witness"])) < 1500


def test_only_a_pass_has_a_witness(violated, passed) -> None:
    failed, subject = violated
    assert failed.witness is None
    assert "witness" not in document(subject, [failed], 1)["verdicts"][0]
    assert all(judgement.witness for judgement in passed[0])


def test_what_fails_somewhere_is_summed_up_without_its_witness(passed) -> None:
    (first, other), subject = passed
    failed = replace(
        first, verdict=Verdict.FAIL, witness=None, violations=(first.witness._replace(holds=False),)
    )
    report = document(subject, [failed, other], 1)
    assert [("witness" in row) for row in report["verdicts"]] == [False, True]
    assert [summary.witness for summary in summaries(report)] == [None]
    assert summaries(document(subject, [first, other], 0))[0].witness is not None


def test_a_full_table_tells_one_witness(passed) -> None:
    judgements, subject = passed
    output = " ".join(printed(judgements, subject, verbosity=1).split())
    assert "short, long; one of them: generate/long, event 8, at 0.900 s" in output
    assert "one of them" not in printed(judgements, subject)


def judged(requirement: str, verdict: Verdict, message: str = "", **changes) -> Judgement:
    return Judgement(made_up_row(id=requirement, **changes), "one", verdict, 3, message)


def test_by_default_what_needs_a_reader_is_told_and_the_undecided_are_counted(violated) -> None:
    judgement, subject = violated
    every = [
        judged("a", Verdict.PASS),
        judged("b", Verdict.INCONCLUSIVE, "ask for more"),
        judged("c", Verdict.UNSUPPORTED, "nobody asked", chapter="delivery"),
        judged("d", Verdict.INCONCLUSIVE, "ask for more", chapter="delivery"),
        judged("e", Verdict.INCONCLUSIVE, "ask for more", chapter="delivery"),
        judgement,
    ]
    lines = printed(every, subject).splitlines()
    assert lines[0].startswith("FAIL  ")
    assert "3 inconclusive: -v says why" in lines
    text = "\n".join(lines)
    assert "ask for more" not in text
    assert "nobody asked" not in text
    assert "inconclusive: b: ask for more" in printed(every[:2], subject)
    assert {"ask for more", "nobody asked"} <= {
        words for line in printed(every, subject, verbosity=1).splitlines() for words in [line.strip()]
    }


def test_what_a_baseline_knows_is_a_line_for_each_reason(violated) -> None:
    judgement, subject = violated
    every = [replace(judgement, scenario=f"s{n}", known="being mended (https://h/1)") for n in range(9)]
    text = printed(every, subject)
    assert text.count("known:") == 1
    assert "known: made-up in 9 scenarios: being mended (https://h/1)" in text
    assert "known:" not in printed(every, subject, verbosity=-1)


def test_of_many_scenarios_some_are_named(violated) -> None:
    judgement, subject = violated
    every = [replace(judgement, scenario=f"s{n}") for n in range(30)]
    assert "also in s1, s2, s3, s4, s5, s6, … (-v lists all)" in printed(every, subject)
    assert "FAIL  made-up  in s29" in printed(every, subject, verbosity=1)
