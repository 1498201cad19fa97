"""The forms of the report that are made from the JSON one: page, SARIF, badge, and what GitHub shows."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import jsonschema
import pytest
from hand_made_stream import ids_stream, made_up_row

from tokenwire.checks.check import CHECKS, Check
from tokenwire.checks.evidence import expect
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.profile import VERSION, dated_levels, load_profiles
from tokenwire.report import exhibit
from tokenwire.report.badge import badge
from tokenwire.report.document import document
from tokenwire.report.files import Outputs, append_step_summary, workflow_lines, write_reports
from tokenwire.report.github import step_summary, workflow_commands
from tokenwire.report.overview import kept, levels_in_words
from tokenwire.report.page import page
from tokenwire.report.plot import plot
from tokenwire.report.sarif import sarif
from tokenwire.report.subject import Subject
from tokenwire.requirement import Level, load_requirements
from tokenwire.spec_files import load_schema
from tokenwire.target.advertised import Advertised

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>|`::error::%0A`\n::error::no"


def at_most_two_ids(stream, target):
    for emission in stream.emissions():
        count = len(emission.output_ids or ())
        yield expect(emission.at("output_ids"), "at most 2", EVIL, EVIL, holds=count <= 2)


@pytest.fixture
def subject() -> Subject:
    run = Run((ids_stream([1], [2], [3], [4], [5, 6, 7], [8, 9, 10], [11]),), Advertised(name=EVIL))
    return Subject(
        url=f"http://h:1/{EVIL}",
        runs=(run,),
        dialects=("sglang-generate",),
        remarks=(EVIL,),
        left_out={EVIL: EVIL},
        not_asked={EVIL: EVIL},
    )


@pytest.fixture
def judgements(monkeypatch, subject) -> list[Judgement]:
    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", observe=at_most_two_ids))
    monkeypatch.setattr(exhibit, "looks_like", lambda judgement: judgement.requirement.upstream)
    row = made_up_row(upstream=("sgl-project/sglang PR #27205", "a thread elsewhere"))
    (violated,) = judge([subject.runs[0]], [row])
    crashed = replace(
        violated,
        requirement=made_up_row(id="crashed"),
        verdict=Verdict.HARNESS_ERROR,
        violations=(),
        reason=EVIL,
    )
    passed = replace(
        violated,
        requirement=made_up_row(id="passed"),
        verdict=Verdict.PASS,
        violations=(),
        reason="",
        witness=expect(subject.runs[0].streams[0].events[6].place, EVIL, EVIL, holds=True),
    )
    return [violated, passed, crashed]


@pytest.fixture
def report(subject, judgements):
    return document(subject, judgements, 1)


class Elements(HTMLParser):
    """All elements of a page, with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_a_page_runs_nothing_and_loads_nothing_whatever_the_server_wrote(report):
    elements = Elements(page(report))
    assert {tag for tag, _ in elements.tags} & {"script", "img", "iframe", "object", "link", "base"} == set()
    attributes = {name for _, given in elements.tags for name in given}
    assert not {name for name in attributes if name.startswith("on") or name == "src"}
    assert elements.text.count("<script>alert(1)</script>") >= 5
    policies = [given["content"] for tag, given in elements.tags if given.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_a_page_leads_only_to_itself_and_to_threads(report):
    links = [given["href"] for tag, given in Elements(page(report)).tags if tag == "a"]
    assert set(links) == {
        "#made-up",
        "#crashed",
        "https://github.com/sgl-project/sglang/pull/27205",
    }


def test_a_page_shows_the_failure_with_its_events_its_plot_and_its_commands(report):
    text = page(report)
    elements = Elements(text)
    marks = [given for tag, given in elements.tags if tag == "circle"]
    assert len(marks) == 7
    assert [position for position, given in enumerate(marks) if "illegal" in given["class"]] == [4, 5]
    shown = [
        given["class"] for tag, given in elements.tags if tag == "tr" and "illegal" in given.get("class", "")
    ]
    assert shown == ["illegal"]
    assert "curl -sN -X POST" in elements.text
    assert "sizes of the reads" in elements.text
    ids = [given["id"] for _, given in elements.tags if "id" in given]
    assert len(ids) == len(set(ids))


def test_a_page_shows_a_witness_behind_the_count_of_a_pass(report):
    text = page(report)
    shown = text[text.index('<div class="witness">') :].partition("</details>")[0]
    assert "generate/one, event 6, at 0.700 s" in shown
    assert "[11]" in shown
    assert "tokenwire check --target" in shown
    assert "--requirement passed" in shown
    assert text.count('<summary class="line">') == 1


def test_a_report_of_before_there_were_witnesses_is_still_a_page(report):
    old = {
        **report,
        "verdicts": [{k: v for k, v in row.items() if k != "witness"} for row in report["verdicts"]],
    }
    assert '<div class="witness">' not in page(old)


def test_a_report_without_a_verdict_is_still_a_page():
    report = document(Subject(url="http://h:1"), [], 4)
    assert "nothing could be tested" in Elements(page(report)).text
    assert badge(report)["message"] == "not evaluated"


def timeline(*totals: int, least: int | None = None, budget: int | None = 8):
    points = [
        {"event": n, "time": 0.5 + n / 100, "total": total, "least": least} for n, total in enumerate(totals)
    ]
    return {"unit": "tokens", "points": points, "budget": budget}


def test_a_plot_rises_as_the_tokens_do():
    drawn = plot(timeline(1, 3, 7), illegal=[1])
    assert drawn is not None
    heights = [mark.y for mark in drawn.marks]
    assert heights == sorted(heights, reverse=True)
    assert drawn.budget is not None
    assert drawn.budget < heights[-1]
    assert [mark.illegal for mark in drawn.marks] == [False, True, False]
    assert drawn.marks[1].words == "event 1 at 0.510 s: 3 tokens"
    assert drawn.least == ""
    assert plot(timeline(1, 3, least=1), illegal=[]).least.startswith("M48.0 ")


def test_a_budget_that_is_far_away_does_not_press_the_plot_flat():
    drawn, without = (plot(timeline(1, 3, 7, budget=tokens), illegal=[]) for tokens in (29, None))
    assert drawn == without
    assert plot(timeline(1, 3, 7, budget=28), illegal=[]).budget is not None


def test_a_plot_of_one_event_and_of_none():
    assert plot(timeline(0, budget=None), illegal=[]).marks[0].x == 48.0
    assert plot(timeline(), illegal=[]) is None
    assert plot(None, illegal=[]) is None


def test_sarif_holds_a_rule_for_each_requirement_and_a_result_for_each_violation(report):
    (run,) = sarif(report)["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["made-up", "passed", "crashed"]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "made-up"
    place = result["locations"][0]["physicalLocation"]
    evidence = report["verdicts"][0]["evidence"][0]
    assert place["region"]["byteOffset"] == evidence["start"]
    assert place["region"]["byteOffset"] + place["region"]["byteLength"] == evidence["end"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert [notice["descriptor"]["id"] for notice in invocation["toolExecutionNotifications"]] == ["crashed"]


def test_a_result_keeps_its_fingerprint_from_run_to_run(report, subject, judgements):
    def fingerprint(of):
        return sarif(of)["runs"][0]["results"][0]["partialFingerprints"]

    elsewhere = [replace(judgements[0], scenario="two")]
    other = [replace(judgements[0], requirement=made_up_row(id="other"))]
    assert fingerprint(report) == fingerprint(document(subject, judgements, 1))
    assert fingerprint(report) == fingerprint(document(subject, elsewhere, 1)), "which is first may vary"
    assert fingerprint(report) != fingerprint(document(subject, other, 1))
    known, known_elsewhere = ([replace(item, known="why")] for item in (judgements[0], elsewhere[0]))
    assert fingerprint(document(subject, known, 0)) != fingerprint(document(subject, known_elsewhere, 0))


@pytest.mark.parametrize(
    ("verdicts", "status", "shown"),
    [
        ([Verdict.PASS, Verdict.PASS], 0, ("1 passed", "brightgreen")),
        ([Verdict.PASS, Verdict.FAIL], 1, ("1 violated, 0 passed", "red")),
        ([Verdict.UNSUPPORTED], 4, ("not evaluated", "lightgrey")),
    ],
)
def test_a_badge(subject, judgements, verdicts, status, shown):
    every = [replace(judgements[1], verdict=verdict) for verdict in verdicts]
    made = badge(document(subject, every, status))
    assert made == {"schemaVersion": 1, "label": "tokenwire v1", "message": shown[0], "color": shown[1]}


def test_levels_count_the_musts_that_hold_of_those_that_apply(subject):
    """A server without streams of any kind: what it shows of each profile is counted, and nothing else."""
    rows = [row for row in load_requirements().values() if row.id in load_profiles()["metadata"]]
    musts = [row.id for row in rows if row.level_for("sglang") is Level.MUST]
    verdicts = dict.fromkeys((row.id for row in rows), Verdict.PASS)
    verdicts[musts[0]], verdicts[musts[1]], verdicts[musts[2]] = (
        Verdict.FAIL,
        Verdict.UNSUPPORTED,
        Verdict.INCONCLUSIVE,
    )
    report = document(subject, [Judgement(row, "one", verdicts[row.id]) for row in rows], 1)
    jsonschema.validate(report, load_schema("report"))
    (level,) = report["levels"]
    assert (level["holds"], level["of"], level["violated"]) == (len(musts) - 3, len(musts) - 1, [musts[0]])
    assert (level["undecided"], level["version"], report["tool"]["profiles"]) == (
        [musts[2]],
        VERSION,
        VERSION,
    )
    words = f"Metadata {len(musts) - 3} of {len(musts) - 1} MUSTs (1 violated, 1 undecided)"
    assert levels_in_words(report) == f"Tokenwire {level['date']} v{VERSION}: {words}"
    assert f"{len(musts) - 3} of {len(musts) - 1}</td>" in page(report)
    assert f"1 violated</b>: {musts[0]}" in page(report)
    assert words in step_summary(report)
    made = badge(report)
    assert made["label"] == f"tokenwire {level['date']} v{VERSION}"
    assert made["message"] == f"1 violated, Metadata {len(musts) - 3}/{len(musts) - 1} (1 undecided)"
    unsupported = [Judgement(row, "one", Verdict.UNSUPPORTED) for row in rows]
    assert levels_in_words(document(subject, unsupported, 4)).endswith(": not shown: Metadata")


def test_every_profile_is_a_level_with_a_sentence():
    levels = dated_levels(dict.fromkeys(load_requirements(), Verdict.PASS), {"sglang"})
    assert [item.name for item in levels] == list(load_profiles())
    assert all(observation.holds == observation.of > 0 and observation.shown for observation in levels)
    assert all(item.means.endswith(".") and item.title.lower() == item.name for item in levels)


def test_the_contract_of_a_family_is_shown_by_its_dialects_and_others_have_fewer_musts():
    every = dict.fromkeys(load_requirements(), Verdict.PASS)
    of = {
        family: {level.name: level for level in dated_levels(every, {family})}
        for family in ("sglang", "vllm")
    }
    assert of["sglang"]["sglang"].shown
    assert not of["vllm"]["sglang"].shown
    assert of["vllm"]["openai"].shown
    assert of["vllm"]["core"].of < of["sglang"]["core"].of


def test_a_promise_is_printed_beside_a_level_that_holds_alone():
    level = {"shown": True, "holds": 3, "of": 3}
    assert kept(level)
    assert not kept({**level, "of": 4})
    assert not kept({**level, "shown": False})


def test_an_annotation_is_one_line_that_the_server_cannot_break_out_of(report):
    lines = workflow_commands(report)
    assert len(lines) == 2
    for line in lines:
        assert "\n" not in line
        assert re.match(r"::error title=(FAIL made-up|HARNESS_ERROR crashed)::", line)


def test_no_more_annotations_than_the_page_shows(subject, judgements):
    many = [replace(judgements[0], requirement=made_up_row(id=f"row-{n}")) for n in range(13)]
    lines = workflow_commands(document(subject, many, 1))
    assert len(lines) == 11
    assert lines[-1] == "::notice title=tokenwire::3 more are in the summary of the step"


def test_of_many_causes_page_and_summary_begin_with_the_gravest(subject, judgements):
    judgement = judgements[0]
    many = [replace(judgement, requirement=made_up_row(id=f"row-{n}")) for n in range(9)]
    made = document(subject, many, 1)
    text = step_summary(made)
    first, _, others = text.partition("### The other causes\n")
    assert "### Start here: the 3 gravest of 9 causes\n" in first
    assert (first.count("<details open>"), others.count("<details open>")) == (3, 0)
    html = page(made)
    first, _, others = html.partition("<h2>The other 6 causes</h2>")
    assert "<h2>Start here: the 3 gravest of 9 causes</h2>" in first
    assert (first.count('<section id="row-'), others.count('<section id="row-')) == (3, 6)
    assert others.count('<details class="cause"><summary>') == 6
    few = page(document(subject, many[:5], 1))
    assert "Start here" not in few
    assert "<details class" not in few


def test_a_step_summary_shows_what_is_wrong_and_cannot_be_broken_out_of(report):
    text = step_summary(report)
    assert text.startswith("## Tokenwire: does not conform\n")
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in outside
    assert "<img" not in outside
    assert "<b>made-up</b>" in outside
    assert "| ❌ FAIL | made-up |" in outside


def test_reports_are_written_where_they_are_wanted(report, tmp_path):
    outputs = Outputs(html=tmp_path / "mine.html").or_else(Outputs.within(tmp_path / "all"))
    write_reports(report, outputs)
    assert (tmp_path / "mine.html").read_text("utf-8") == page(report)
    assert not (tmp_path / "all" / "report.html").exists()
    assert json.loads((tmp_path / "all" / "report.json").read_text("utf-8"))["footer"] is True
    assert json.loads((tmp_path / "all" / "report.sarif").read_text("utf-8")) == sarif(report)
    assert json.loads((tmp_path / "all" / "badge.json").read_text("utf-8")) == badge(report)


def test_a_workflow_is_told_and_nobody_else(report, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", "utf-8")
    workflow = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    assert workflow_lines(report, workflow) == workflow_commands(report)
    assert append_step_summary(report, workflow) == []
    assert summary.read_text("utf-8") == "before\n" + step_summary(report)
    assert workflow_lines(report, {}) == append_step_summary(report, {}) == []


def test_the_drawing_is_well_formed(report):
    drawing = re.search(r"<svg.*?</svg>", page(report), re.DOTALL)
    assert drawing is not None
    assert ET.fromstring(drawing.group()).tag == "svg"
