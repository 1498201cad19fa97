"""Comparisons: what differs is named with its place, and what may differ is not held against anybody."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import IDS, document, streamed, whole, write_folder

from tokenwire.asking.scenario import load_scenarios
from tokenwire.disk import write_whole
from tokenwire.judging.verdict import ExitStatus
from tokenwire.replay import replay
from tokenwire.report.console import make_console
from tokenwire.report.document import as_json as in_json
from tokenwire.target.death import DIED
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire_twin.answers import ABORTING, RACING
from tokenwire_twin.difference import Gravity
from tokenwire_twin.difference_report import (
    DifferenceReport,
    Side,
    as_json,
    compare_sides,
    read_side,
    side_of,
)
from tokenwire_twin.families import Family
from tokenwire_twin.terminal import print_difference
from tokenwire_twin.verdicts import verdict_differences


def test_scenarios_that_hang_on_the_moment_are_called_by_their_names() -> None:
    assert load_scenarios().keys() >= ABORTING | RACING


def side(folder: Path, *exchanges: Exchange) -> Side:
    """A side that repeats itself: a whole answer twice, and what is given."""
    return side_of(
        folder.name, replay([write_folder(folder, whole("p1", "probe"), whole("p2", "probe"), *exchanges)])
    )


def answered(name: str) -> Exchange:
    """A whole answer to a request that the probe does not ask."""
    body = {"input_ids": [1, 9], "sampling_params": {"temperature": 0, "max_new_tokens": 6}, "stream": False}
    return replace(whole(name), request=HttpRequest("POST", "/generate", body))


def compared(tmp_path: Path, first: tuple[Exchange, ...], other: tuple[Exchange, ...]) -> DifferenceReport:
    return compare_sides(side(tmp_path / "one", *first), side(tmp_path / "other", *other))


def answering(exchange: Exchange, change: Callable[[dict[str, Any]], None]) -> Exchange:
    """A whole answer with a changed document."""
    body = document(IDS, finished=True)
    change(body)
    return replace(exchange, reads=(Read(0.1, json.dumps(body).encode()),))


def deciding(report: DifferenceReport) -> dict[str, Family]:
    return {family.kind: family for family in report.families if family.decides}


def test_two_runs_of_one_server_are_the_same(tmp_path: Path) -> None:
    report = compared(tmp_path, (streamed("s"),), (streamed("s"),))
    assert not report.differ
    assert report.exit_status == ExitStatus.CONFORMS
    assert (report.exchanges, report.repeated) == (3, 3)
    assert report.families == ()
    assert report.verdicts == ()


def test_how_a_stream_is_cut_is_a_remark(tmp_path: Path) -> None:
    joined = streamed("s")
    kept = (*joined.reads[:2], *joined.reads[4:])
    report = compared(tmp_path, (joined,), (replace(joined, reads=kept),))
    assert not report.differ
    assert [family.example.message for family in report.families] == ["cut into 7 and 5 events"]


@pytest.mark.parametrize(
    ("scenario", "differ"),
    [*((name, False) for name in sorted(ABORTING)), ("greedy-stream", True)],
)
def test_how_far_an_abort_let_it_come_is_no_difference(tmp_path: Path, scenario: str, differ: bool) -> None:
    def aborted(count: int) -> Exchange:
        body = document(IDS[:count], finished=True)
        body["meta_info"]["finish_reason"] = {"type": "abort", "message": "Aborted"}
        return replace(whole("a", scenario), reads=(Read(0.1, json.dumps(body).encode()),))

    assert compared(tmp_path, (aborted(2),), (aborted(4),)).differ is differ


def test_every_scenario_that_is_about_aborts_aborts_its_requests() -> None:
    named = {name for name in load_scenarios() if "abort" in name}
    assert named == ABORTING


@pytest.mark.parametrize(("scenario", "differ"), [("id-in-use", False), ("request-id", True)])
def test_which_of_two_with_one_id_was_first_is_no_difference(
    tmp_path: Path, scenario: str, differ: bool
) -> None:
    refused = replace(whole("a", scenario), status=400, reads=(Read(0.1, b'{"error": "in use"}'),))
    assert compared(tmp_path, (whole("a", scenario),), (refused,)).differ is differ


def test_an_answer_may_repeat_what_its_request_said_in_its_own_way(tmp_path: Path) -> None:
    def asked_as(rid: str, named: str) -> Exchange:
        request = answered("a").request
        asked = HttpRequest("POST", "/generate", {**request.body, "rid": rid})
        return replace(answering(answered("a"), _set("meta_info/note", f"{named} is fine")), request=asked)

    assert not compared(tmp_path / "own", (asked_as("r-1", "r-1"),), (asked_as("r-2", "r-2"),)).differ
    assert compared(tmp_path / "other", (asked_as("r-1", "r-1"),), (asked_as("r-2", "r-1"),)).differ


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *parents, last = path.split("/")

    def change(holder: dict[str, Any]) -> None:
        for parent in parents:
            holder = holder[parent]
        if value is None:
            del holder[last]
        else:
            holder[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "kind", "subject", "words"),
    [
        (_set("text", "hellO!"), "text", "", 'from character 4: "hello!" in A, "hellO!" in B'),
        (_set("output_ids", [*IDS[:5], 9]), "output ids", "", "from output id 5: [33] in A, [9] in B"),
        (_set("meta_info/finish_reason/type", "stop"), "finish", "", "'stop'"),
        (_set("meta_info/completion_tokens", 7), "counter", "completion_tokens", "6 in A, 7 in B"),
        (_set("meta_info/weight_version", "2"), "value", "/meta_info/weight_version", "default in A, 2 in B"),
        (_set("meta_info/weight_version", None), "field", "/meta_info/weight_version", "only in A"),
        (_set("meta_info/new", 1), "field", "/meta_info/new", "only in B"),
    ],
)  # fmt: skip
def test_a_difference_is_named_with_its_field(tmp_path: Path, change, kind, subject, words) -> None:
    report = compared(tmp_path, (answered("w"),), (answering(answered("w"), change),))
    finding = deciding(report)[kind]
    assert finding.subject == subject
    assert words in finding.example.message
    assert finding.exchanges == ("w",)
    assert report.exit_status == ExitStatus.VIOLATION


def test_the_first_event_that_differs_is_named_with_its_field(tmp_path: Path) -> None:
    report = compared(tmp_path, (streamed("s"),), (streamed("s", forgets_an_id=True),))
    assert "output ids" in deciding(report)
    (remark,) = [family.example for family in report.families if family.kind == "events"]
    assert remark.message.startswith("event 5, /output_ids/3: 108 and 111")


@pytest.mark.parametrize("name", ["id", "cached_tokens", "e2e_latency", "response_sent_to_client_ts"])
def test_what_differs_from_answer_to_answer_is_no_difference(tmp_path: Path, name: str) -> None:
    change = _set(f"meta_info/{name}", 5)
    answer = answering(answered("w"), _set(f"meta_info/{name}", 4))
    report = compared(tmp_path, (answer,), (answering(answer, change),))
    assert report.families == ()


def test_servers_that_do_not_repeat_themselves_are_compared_by_shape_only(tmp_path: Path) -> None:
    unlike = answering(whole("p2", "probe"), _set("text", "jello!"))
    change = _set("text", "hellO!")
    sides = [
        side_of(name, replay([write_folder(tmp_path / name, whole("p1", "probe"), unlike, answer)]))
        for name, answer in (("one", answered("w")), ("other", answering(answered("w"), change)))
    ]
    report = compare_sides(*sides)
    assert (report.exchanges, report.repeated) == (3, 0)
    assert deciding(report) == {}


def test_a_status_that_differs_is_all_that_is_said_of_the_answer(tmp_path: Path) -> None:
    refused = replace(answered("w"), status=400, reads=(Read(0.1, b'{"error":{"message":"no"}}'),))
    report = compared(tmp_path, (answered("w"),), (refused,))
    assert [family.name for family in report.families] == ["status: 200 in A, 400 in B: no"]
    assert [family.example.message for family in report.families] == [
        "A answers, B refuses with 400: B says: no"
    ]


def test_unlike_requests_are_not_held_against_each_other(tmp_path: Path) -> None:
    body = {"input_ids": [1, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 6}, "stream": False}
    other = answering(
        replace(answered("w"), request=HttpRequest("POST", "/generate", body)), _set("text", "x")
    )
    report = compared(tmp_path, (answered("w"),), (other,))
    assert [family.example.message for family in report.families] == [
        "asked differently at /input_ids/1: 9 and 3"
    ]
    assert not report.differ


def test_one_difference_in_many_exchanges_is_one_finding(tmp_path: Path) -> None:
    change = _set("meta_info/new", 1)
    report = compared(
        tmp_path,
        (answered("w"), answered("v")),
        tuple(answering(answered(name), change) for name in ("w", "v")),
    )
    assert deciding(report)["field"].exchanges == ("v", "w")


def test_a_verdict_that_differs_decides_where_both_sides_could_see(tmp_path: Path) -> None:
    good, bad = (streamed("s"),), (streamed("s", forgets_an_id=True),)
    report = compared(tmp_path, good, bad)
    (row,) = [verdict for verdict in report.verdicts if verdict.requirement == "cumulative-ids-extend"]
    assert (row.one, row.other, row.decides) == ("PASS", "FAIL", True)
    assert row.why_other.startswith("s: ")
    never_asked = compare_sides(
        side(tmp_path / "g", answered("t")), side(tmp_path / "b", streamed("s", forgets_an_id=True))
    )
    (row,) = [verdict for verdict in never_asked.verdicts if verdict.requirement == "cumulative-ids-extend"]
    assert not row.decides
    assert never_asked.only_one == ("t",)
    assert never_asked.only_other == ("s",)


def test_reports_are_compared_by_verdict(tmp_path: Path) -> None:
    first, other = (
        side(tmp_path / "one", streamed("s")),
        side(tmp_path / "other", streamed("s", forgets_an_id=True)),
    )
    for name, compared_side in (("one.json", first), ("other.json", other)):
        write_whole(tmp_path / name, in_json(compared_side.report))
    reports = [read_side(str(tmp_path / name)) for name in ("one.json", "other.json")]
    for mixed in (reports, [first, reports[1]], [reports[0], other]):
        report = compare_sides(*mixed)
        assert report.exit_status == ExitStatus.VIOLATION
        assert report.exchanges == 0
        assert "cumulative-ids-extend" in {row.requirement for row in report.verdicts if row.decides}
    assert not compare_sides(reports[0], reports[0]).differ


def test_nothing_in_common_is_no_success(tmp_path: Path) -> None:
    empty = Side("x", {"verdicts": [], "target": {}})
    assert compare_sides(empty, empty).exit_status == ExitStatus.NOTHING_EVALUATED


@pytest.mark.parametrize("content", ["[]", "{", '{"verdicts": 1}', '{"verdicts": [], "footer": true}'])
def test_what_is_no_report_is_said_to_be_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content, "utf-8")
    with pytest.raises(UsageError, match=r"r\.json is"):
        read_side(str(tmp_path / "r.json"))


def test_json_and_terminal_tell_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = compared(tmp_path, (streamed("s"),), (streamed("s", forgets_an_id=True),))
    compared_json = json.loads(json.dumps(as_json(report)))
    assert compared_json["same"] is False
    assert compared_json["footer"] is True
    assert {difference["kind"] for difference in compared_json["differences"]} == {
        family.kind for family in report.families
    }
    print_difference(make_console(), report)
    printed = capsys.readouterr().out
    assert "output ids: differ; the request has input_ids" in printed
    assert "\n      s: from output id 3: " in printed
    assert "cumulative-ids-extend" in printed
    assert "\nA and B: different in 1 of 3 exchanges (" in printed


def test_a_new_object_is_one_difference(tmp_path: Path) -> None:
    new = {"a": 1, "b": 2, "c": 3, "d": 4}
    report = compared(tmp_path, (answered("w"),), (answering(answered("w"), _set("meta_info/new", new)),))
    fields = [family.example for family in report.families if family.kind == "field"]
    assert [(field.subject, field.message) for field in fields] == [("/meta_info/new", "only in B")]
    few = compared(
        tmp_path / "few",
        (answered("w"),),
        (answering(answered("w"), _set("meta_info/new", {"a": 1, "b": 2})),),
    )
    subjects = [family.subject for family in few.families if family.kind == "field"]
    assert subjects == ["/meta_info/new"]
    known = answering(answered("w"), _set("meta_info/new", {"a": 1}))
    more = answering(answered("w"), _set("meta_info/new", {"a": 1, "b": 2}))
    report = compared(tmp_path / "known", (known,), (more,))
    subjects = [family.subject for family in report.families if family.kind == "field"]
    assert subjects == ["/meta_info/new/b"]


def test_what_every_run_asks_of_every_endpoint_is_not_missing_on_a_side(tmp_path: Path) -> None:
    looked = replace(answered("preflight/door"), scenario="preflight")
    report = compared(tmp_path, (), (looked, answered("w")))
    assert (report.only_one, report.only_other) == ((), ("w",))


def test_sides_that_were_asked_differently_or_broken_off_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other = side(tmp_path / "one"), side(tmp_path / "other")
    assert compare_sides(first, other).hints == ()
    target = {**other.report["target"], "dialects": ["openai-chat"], "broken_off": "it died"}
    report = compare_sides(first, replace(other, report={**other.report, "target": target}))
    assert report.hints == (
        "B was broken off: it died",
        "the sides were asked differently, A in sglang-generate and B in openai-chat: "
        "--dialect NAME asks both alike",
    )
    print_difference(make_console(), report)
    assert "mind: B was broken off: it died\n" in capsys.readouterr().out
    assert json.loads(json.dumps(as_json(report)))["hints"] == list(report.hints)


def test_a_recording_that_ends_with_a_death_says_so(tmp_path: Path) -> None:
    alive, dead = side(tmp_path / "one"), side(tmp_path / "other")
    row = {
        "requirement": "requests-do-not-break-the-server",
        "level": "MUST",
        "scenario": "unknown-ids",
        "verdict": "FAIL",
        "witnesses": 1,
        "message": "the server died of this request",
        "evidence": [{"exchange": "x", "message": "the server died of this request", "actual": DIED}],
    }
    dead = replace(dead, report={**dead.report, "verdicts": [*dead.report["verdicts"], row]})
    assert compare_sides(alive, dead).hints == ("B was broken off: the server died of this request",)


def test_the_last_line_counts_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = compared(tmp_path, (streamed("s"),), (streamed("s", forgets_an_id=True),))
    verdicts = sum(row.decides for row in report.verdicts)
    print_difference(make_console(), report)
    last = " ".join(capsys.readouterr().out.rpartition("\n\n")[2].split())
    assert len(deciding(report)) == 1
    counts = f"1 kind of difference, {verdicts} requirements"
    assert last.startswith(f"A and B: different in 1 of 3 exchanges ({counts}); ")
    assert f"{report.requirements} requirements were decided by both, the values of 3 answers" in last


def batch(*texts: str) -> Exchange:
    """An answer to a batch of four prompts, with as many choices as texts."""
    choices = [
        {"index": index, "text": text, "finish_reason": "stop", "logprobs": None}
        for index, text in enumerate(texts)
    ]
    body = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": choices}
    asked = {"model": "m", "prompt": [[1], [2], [3], [4]], "temperature": 0, "max_tokens": 6}
    request = HttpRequest("POST", "/v1/completions", asked)
    return replace(whole("b"), request=request, reads=(Read(0.1, json.dumps(body).encode()),))


def test_choices_that_one_side_lacks_are_one_difference(tmp_path: Path) -> None:
    report = compared(tmp_path, (batch("a", "b", "c", "d"),), (batch("a"),))
    family = deciding(report)["choices"]
    assert family.name == "choices: only in A"
    assert [member.message for member in family.members] == [f"choice {n}: only in A" for n in (1, 2, 3)]


def unanswered(exchange: Exchange, ending: Ending) -> Exchange:
    return replace(exchange, status=None, reads=(), ending=ending, duration=60.0)


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending.TRUNCATED, "the connection was closed"),
        (Ending.UNREACHABLE, "the connection failed"),
        (Ending.TIMEOUT, "the time limit was reached after 60 s"),
    ],
)
def test_a_missing_answer_is_shown_with_its_request_and_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: Ending, words: str
) -> None:
    report = compared(tmp_path, (answered("w"),), (unanswered(answered("w"), ending),))
    [family] = [family for family in report.families if family.decides]
    assert family.gravity is Gravity.FAILED
    print_difference(make_console(), report)
    printed = capsys.readouterr().out
    assert f"A answers, B does not answer:\n    {words} [1 at sglang-generate]\n" in printed
    assert "      w: POST /generate with input_ids, sampling_params, stream\n" in printed


def test_an_answer_for_which_the_suite_did_not_wait_is_not_missing(tmp_path: Path) -> None:
    left = unanswered(answered("w"), Ending.HUNG_UP)
    assert compared(tmp_path, (answered("w"),), (left,)).families == ()


def test_violations_of_both_sides_add_up() -> None:
    """Violations of one requirement: six of A alone, one of B alone, and two with other messages."""
    ours = {f"a{n}": "wrong" for n in range(6)} | {"x": "one", "y": "one"}
    theirs = {"b": "wrong", "x": "another", "y": "another"}
    rows = [
        {"requirement": "r", "level": "MUST", "scenario": "s", "verdict": "FAIL", "message": "m"}
        | {"witnesses": 1, "evidence": [{"exchange": name, "message": "m"} for name in found]}
        for found in (ours, theirs)
    ]
    reports = [{"verdicts": [row], "target": {}} for row in rows]
    names = {*ours, *theirs}
    [row] = verdict_differences(
        (reports[0], reports[1]), (names, names), ({"r": ours}, {"r": theirs}), beside=()
    )
    assert row.count == 9
    assert row.message == "A alone in 6, B alone in 1, both differently in 2; wrong in A"
    del theirs["x"], theirs["y"], theirs["b"]
    theirs["a0"] = "wrong"
    [row] = verdict_differences(
        (reports[0], reports[1]), (names, names), ({"r": ours}, {"r": theirs}), beside=()
    )
    assert row.count == 7
    assert row.message.startswith("A breaks it in 7 more answers; ")


def test_a_missing_field_comes_before_an_additional_one(tmp_path: Path) -> None:
    names = [f"w{number}" for number in range(3)]
    ours = [answered(name) for name in names]
    theirs = [answering(answered(name), _set("meta_info/new", 1)) for name in names[:2]]
    theirs.append(answering(answered(names[2]), _set("meta_info/weight_version", None)))
    report = compared(tmp_path, tuple(ours), tuple(theirs))
    fields = [(family.subject, family.count) for family in report.families if family.kind == "field"]
    assert fields == [("/meta_info/weight_version", 1), ("/meta_info/new", 2)]


def test_refused_requests_without_a_common_field_are_named_by_their_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a/greedy/0", "a/greedy/1", "a/sampled/0"]
    refused = [
        replace(answered(name), status=400, reads=(Read(0.1, b'{"error":{"message":"no"}}'),))
        for name in names
    ]
    report = compared(tmp_path, tuple(map(answered, names)), tuple(refused))
    print_difference(make_console(), report)
    assert "    in greedy, sampled: B says: no [3 at sglang-generate]\n" in capsys.readouterr().out
    print_difference(make_console(), report, verbose=True)
    assert "    in greedy, sampled: B says: no [3 at sglang-generate]\n" in capsys.readouterr().out
