"""The token view of a failure: what is computed for the page, and that the page only shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hand_made_stream import ids_stream, made_up_row
from stream_builder import Reply, change, cumulative, incremental, named, whole

from tokenwire.checks.evidence import expect
from tokenwire.judging.judge import Judgement
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.report.document import document
from tokenwire.report.excerpt import indented
from tokenwire.report.files import Outputs, write_reports
from tokenwire.report.page import page
from tokenwire.report.playback import gaps, playback_of, played
from tokenwire.report.plot import plot
from tokenwire.report.ribbon import Cell, RibbonRow, State, align, align_parts, ribbon, words_of
from tokenwire.report.subject import Subject
from tokenwire.report.trace import trace
from tokenwire.wire.exchange import Read

EVIL = "</script><script>alert(1)</script><!--\x1b[2J\u202e\u2028&amp;"


def letters(cells) -> str:
    short = {State.SAME: "=", State.SHIFT: ">", State.HOLE: "o", State.LATER: ".", State.DIFFERS: "x"}
    return "".join(short[cell.state] for cell in cells)


@pytest.mark.parametrize(
    ("entries", "expected", "before"),
    [
        ([1, 2, 3, 4], "====", {}),
        ([1, 2, 4], "==o>", {}),
        ([1, 2, 2, 3, 4], "==>>", {2: [State.DOUBLE]}),
        ([1, 9, 2, 3, 4], "=>>>", {1: [State.EXTRA]}),
        ([1, 9, 3, 4], "=x==", {}),
        ([1, 2], "==oo", {}),
        ([], "oooo", {}),
        ([1, 2, 3, 4, 4], "====", {4: [State.DOUBLE]}),
    ],
)
def test_an_entry_lost_is_one_hole_and_one_too_many_is_one_cell(entries, expected, before):
    aligned = align([1, 2, 3, 4], entries)
    assert letters(aligned.cells) == expected
    assert {place: [cell.state for cell in cells] for place, cells in aligned.before.items()} == before
    found = [cell.index for cell in aligned.cells if cell.index is not None]
    found += [cell.index for cells in aligned.before.values() for cell in cells]
    assert sorted(found) == list(range(len(entries)))


def test_what_is_not_delivered_yet_is_no_hole():
    assert letters(align([1, 2, 3, 4], [1, 2], ended=False).cells) == "==.."
    assert letters(align([1, 2, 3, 4], [2, 3], ended=False).cells) == "o>>."


def test_numbers_are_one_but_for_their_last_digits_and_truth_is_no_number():
    reference = [[-0.12345, 5, None], [-2.5, 6, None]]
    assert letters(align(reference, [[-0.12344, 5, None], [-2.5, 6, None]]).cells) == "=="
    assert letters(align([1, 0], [True, 0]).cells) == "x="
    # Also where the rows have to be aligned first.
    assert letters(align([-0.12345, -2.5, -3.5, 9], [8, -2.5, -3.50004, 7]).cells) == "x==x"
    lost = align([[-0.5, 5], [-1.5, 6], [-2.12341, 7], [-3.5, 8]], [[-9.0, 4], [-2.12344, 7], [-9.0, 3]])
    assert lost.cells[2] == Cell(State.SHIFT, 1)


def test_long_rows_that_differ_everywhere_are_held_against_each_other_in_short_time():
    aligned = align(list(range(20_000)), list(range(7, 20_007)))
    assert len(aligned.cells) == 20_000


def test_parts_of_a_series_are_held_against_the_ids_that_came_with_them():
    aligned = align_parts([7, 8, 9], [(1, [7]), (1, [7, 8]), (1, [7, 8, 9])])
    assert letters(aligned.cells) == "==="
    assert {place: [cell.state.value for cell in cells] for place, cells in aligned.before.items()} == {
        1: ["double"],
        2: ["double", "double"],
    }
    assert [cell.index for cell in aligned.cells] == [0, 2, 5]
    assert letters(align_parts([7, 8, 9], [(1, [7]), (2, [9])]).cells) == "=o="


def test_a_row_says_in_words_what_is_wrong_in_it():
    assert RibbonRow("ids", [1, 2, 4], align([1, 2, 3, 4], [1, 2, 4])).faults == (
        "1 missing (position 2); 1 at another index (position 3)"
    )
    assert RibbonRow("ids", [1, 2], align([1, 2], [1, 2])).faults == ""


def test_rows_share_their_columns():
    reference = [1, 2, 3]
    rows = [
        RibbonRow("whole", reference, align(reference, reference)),
        RibbonRow("stream", [1, 1, 2], align(reference, [1, 1, 2]), [0, 0, 4]),
    ]
    made = ribbon("token", rows, 0)
    assert made["columns"] == [0, None, 1, 2]
    assert made["rows"][0]["cells"] == [["1", "same"], None, ["2", "same"], ["3", "same"]]
    assert made["rows"][1]["cells"] == [["1", "same", 0], ["1", "double", 0], ["2", "shift", 4], ["", "hole"]]


def test_of_a_long_ribbon_the_columns_around_what_is_wrong_are_kept():
    reference = list(range(1000))
    lost = [*reference[:500], *reference[501:]]
    made = ribbon("token", [RibbonRow("ids", lost, align(reference, lost))], 3)
    assert made["before"] + len(made["columns"]) + made["after"] == 1000
    assert len(made["columns"]) == 120
    assert made["columns"][40] == 500
    kept = ribbon("token", [RibbonRow("ids", reference, align(reference, reference))], 990)
    assert kept["columns"][-1] == 999


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (5, "5"),
        ([-0.5, 7, None], "-0.500"),
        ([[-1.25, 7, None], [-2.0, 8, None]], "-1.250"),
        ({"token": "a", "logprob": -2.0}, "-2.000"),
        (" ", '" "'),
        ("a\x1b", "a\\x1b"),
        (None, "null"),
    ],
)
def test_an_entry_in_a_few_letters(entry, words):
    assert words_of(entry) == words


def test_the_value_of_the_pointer_is_marked_and_what_lies_beside_its_way_is_short():
    document = {"id": "x" * 400, "list": [{"n": n} for n in range(50)], "tail": 1}
    before, value, behind = indented(document, "/list/30/n").parts
    assert value == "30"
    assert "… 28 before" in before
    assert "… 17 more" in behind
    assert len(before) + len(behind) < 600
    assert before + value + behind == indented(document, "/list/30/n/absent/further").parts[0] + "30" + behind


def test_without_a_pointer_nothing_is_marked():
    text, value, behind = indented({"a": [1, 2]}, "").parts
    assert json.loads(text) == {"a": [1, 2]}
    assert (value, behind) == ("", "")
    assert indented({"a": 1}, "no pointer").mark is None


def test_a_marked_value_that_a_server_wrote_is_inert():
    before, value, _ = indented({EVIL: {"b": EVIL}}, f"/{EVIL.replace('/', '~1')}/b").parts
    assert "\x1b" not in before + value
    assert "\u202e" not in before + value
    assert "alert(1)" in value


def test_gaps_are_long_and_longer_than_the_others():
    assert list(gaps([0.1, 0.11, 0.12, 2.12, 2.13])) == [(0.12, 2.12)]
    assert not list(gaps([0.1, 0.3, 0.5, 0.7]))
    assert not list(gaps([0.1, 0.101, 0.15]))
    assert list(gaps([0.1, 2.1])) == [(0.1, 2.1)]


def test_a_pause_is_drawn_and_leaves_room_for_the_events():
    points = [{"event": n, "time": 2 + 0.001 * n, "total": n, "least": None} for n in range(10)]
    drawn = plot({"unit": "tokens", "points": points, "budget": None}, [], [(0.1, 2.0)])
    assert drawn is not None
    (pause,) = drawn.pauses
    assert pause.words == "nothing was read for 1.900 s"
    assert pause.x == 48
    assert pause.width < 0.3 * 640
    assert drawn.marks[-1].x == 640 - 12
    assert drawn.marks[0].x == pytest.approx(pause.x + pause.width, abs=0.2)


def violated(
    stream: Stream, *others: Stream, event: int, pointer: str = "/output_ids", texts=("x", EVIL), **row
) -> Judgement:
    """A made-up violation at an event of a stream."""
    place = next(item for item in stream.events if item.index == event).place.at(pointer)
    seen = expect(place, *texts, "wrong", holds=False)
    run = Run((stream, *others))
    return Judgement(made_up_row(**row), "one", Verdict.FAIL, 1, "wrong", (seen,), run=run)


def test_the_ribbon_holds_the_stream_against_the_whole_answer_to_the_same_request():
    answer = named(whole(Reply(series={"mirror": list("abcdef")})), "generate/whole")
    stream = incremental(Reply(series={"mirror": list("abcdef")}))
    lost = change(stream, position=2, output_ids=[])
    played = playback_of(violated(lost, answer, event=2))
    assert played is not None
    (tokens,) = played.ribbons
    assert [row["name"] for row in tokens["rows"]] == [
        "ids, the whole answer",
        "ids, the stream",
        "mirror, the whole answer",
        "mirror, the stream",
    ]
    assert tokens["rows"][1]["faults"].startswith("1 missing (position 2)")
    assert [cell[2] for cell in tokens["rows"][3]["cells"]] == [0, 1, 2, 3, 4, 5]
    assert played.beside == "held against the whole answer generate/whole"
    assert played.first == 2
    assert [point.total for point in played.timeline.points] == [1, 2, 2, 3, 4, 5, 5]
    assert played.steps[2].held[0] == ("ids", "2: 11, 12")
    assert played.steps[5].held[-1] == ("finish", "length")


@pytest.mark.parametrize(("expected", "drawn"), [("the parrot", True), ("another text", False), (3, False)])
def test_a_finding_on_a_text_is_drawn_letter_by_letter(expected, drawn):
    *_, last = playback_of(violated(incremental(), event=2, texts=(expected, "the parrot QZ"))).ribbons
    assert (last["unit"] == "character") is drawn
    if drawn:
        assert [row["name"] for row in last["rows"]] == ["text, expected", "text, actual"]
        assert "2 too many (position 10)" in last["rows"][1]["faults"]


def test_no_other_stream_is_taken_for_the_whole_answer_and_no_answer_to_another_request():
    other = named(incremental(), "generate/other")
    elsewhere = named(whole(key="another"), "generate/whole")
    played = playback_of(violated(incremental(), other, elsewhere, event=2))
    assert played is not None
    assert played.beside.startswith("no whole answer to the same request was recorded")


def test_of_a_cumulative_stream_the_ribbon_shows_what_the_illegal_event_left():
    answer = named(whole(), "generate/whole")
    stream = change(cumulative(), position=3, output_ids=[11, 13, 14])
    played = playback_of(violated(stream, answer, event=3))
    assert played is not None
    row = played.ribbons[0]["rows"][1]
    assert [cell[1] for cell in row["cells"]] == ["same", "hole", "shift", "shift", "later", "later"]


def test_without_a_whole_answer_a_series_is_held_against_the_ids():
    entries = [[-0.5, 11, None], [-0.6, 13, None], [-0.7, 14, None]]
    stream = incremental(Reply(ids=(11, 12, 13), text="abc", series={"logprobs": entries}))
    played = playback_of(violated(stream, event=1))
    assert played is not None
    assert played.ribbons[0]["rows"][1]["faults"] == (
        "1 missing (position 1); 1 too many (position 3); 1 at another index (position 2)"
    )
    unnamed = incremental(Reply(series={"mirror": [1, 2, 3]}), sizes=[3, 3])
    short = playback_of(violated(unnamed, event=1))
    assert short is not None
    assert short.ribbons[0]["rows"][1]["faults"] == "3 missing (positions 3, 4, 5)"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("named_ids", [True, False])
def test_entries_that_come_again_are_shown_where_they_come(known, named_ids):
    entries = [[-0.5, item, None] for item in (11, 12, 13)] if named_ids else [1, 2, 3]
    reply = Reply(ids=(11, 12, 13), text="abc", series={"mirror": entries})
    stream = incremental(reply)
    for index in (1, 2):
        stream = change(stream, position=index, series={"mirror": entries[: index + 1]})
    others = [named(whole(reply), "generate/whole")] if known else []
    played = playback_of(violated(stream, *others, event=1, pointer="/mirror"))
    assert played is not None
    row = played.ribbons[0]["rows"][-1]
    shown = [
        (position, cell and cell[1:])
        for position, cell in zip(played.ribbons[0]["columns"], row["cells"], strict=True)
    ]
    again = "double" if known or named_ids else "extra"
    expected = [(0, ["same", 0]), (None, [again, 1]), (1, ["same", 1])]
    expected += [(None, [again, 2]), (None, [again, 2]), (2, ["same", 2])]
    assert sorted(shown, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("delivered", [incremental, cumulative])
def test_text_that_is_held_back_is_shown_by_its_bytes_or_by_the_number_of_its_ids(delivered):
    stream = delivered()
    for position, text in (
        ((2, ""), (3, ""), (4, "cde")) if delivered is incremental else ((2, "ab"), (3, "ab"))
    ):
        stream = change(stream, position=position, text=text)
    letters_of = dict(zip(range(11, 17), b"abcdef", strict=True))
    for spell, known in (
        (lambda _: None, ["no text yet for the last 1 ids", "no text yet for the last 2 ids"]),
        (lambda ids: bytes(letters_of[token] for token in ids), ["'c'", "'cd'"]),
        (lambda _: b"of another model", ["no text yet for the last 1 ids", "no text yet for the last 2 ids"]),
    ):
        shown = played(stream, {}, spell=spell)
        assert shown is not None
        assert [dict(step.held).get("held back") for step in shown.steps] == [
            None,
            None,
            *known,
            None,
            None,
            None,
        ]


def test_an_answer_without_a_violation_is_played_to_its_last_event():
    long = incremental(Reply(ids=tuple(range(500)), text="x" * 500))
    shown = played(long, {}, most=30)
    assert shown is not None
    assert len(shown.steps) == 30
    assert shown.steps[-1].event == long.events[-1].index
    assert not any(step.illegal for step in shown.steps)
    assert shown.plot is not None


def test_a_server_without_ids_is_shown_by_its_text():
    answer = named(whole(Reply(ids=None)), "generate/whole")
    stream = change(incremental(Reply(ids=None)), position=3, text="")
    played = playback_of(violated(stream, answer, event=3))
    assert played is not None
    assert played.timeline.unit == "characters"
    (text,) = played.ribbons
    assert text["unit"] == "character"
    assert [cell[0] for cell in text["rows"][1]["cells"]] == ["a", "b", "c", "", "e", "f"]


def test_each_choice_is_told_apart():
    two = incremental(Reply(), Reply(ids=(21, 22), text="yz"))
    played = playback_of(violated(two, event=3))
    assert played is not None
    assert [cell[0] for cell in played.ribbons[0]["rows"][0]["cells"]] == ["21", "22"]
    assert played.steps[1].held[:2] == (("choice", "1"), ("ids", "1: 21"))


def test_what_is_long_is_cut_around_the_first_illegal_event():
    reply = Reply(ids=tuple(range(500)), text="x" * 500)
    played = playback_of(violated(incremental(reply), event=250))
    assert played is not None
    assert len(played.steps) == 60
    assert played.steps[played.first].event == 250
    assert played.timeline.points[played.first].total == 251
    assert played.left_out == "events 220 to 279 of 501 are shown; the others are left out of this page"
    assert len(json.dumps(played.embedded())) < 40_000
    row = played.ribbons[0]["rows"][0]
    by_id = {cell[0]: cell[2] for cell in row["cells"]}
    assert by_id["250"] == 30
    assert {by_id[item] for item in by_id if int(item) < 220} == {0}
    assert {by_id[item] for item in by_id if int(item) > 280} == {59}


def test_a_page_holds_no_more_than_it_has_room_for(monkeypatch):
    stream = incremental()
    every = [violated(stream, event=2, id=f"row-{n}") for n in range(4)]
    report = document(Subject(runs=(every[0].run,)), every, 1)
    assert "have no token view here" not in page(report, every)
    monkeypatch.setattr("tokenwire.report.page._MOST_LETTERS", 4000)
    text = page(report, every)
    kept = text.count('<section class="player"')
    assert 0 < kept < 4
    assert f"{4 - kept} of these failures have no token view here" in text


def test_captures_that_fail_the_same_row_in_the_same_scenario_are_played_each_by_its_own_stream(tmp_path):
    every = [violated(incremental(), event=2), violated(cumulative(), event=3)]
    report = document(Subject(runs=tuple(judgement.run for judgement in every)), every, 1)
    write_reports(report, Outputs(html=tmp_path / "report.html"), every)
    data, _ = Scripts((tmp_path / "report.html").read_text("utf-8")).held
    assert [playback["first"] for playback in json.loads(data[1])] == [2, 3]


def test_what_belongs_to_no_answer_is_not_played():
    nowhere = violated(incremental(), event=2)
    (seen,) = nowhere.violations
    elsewhere = seen._replace(place=seen.place._replace(exchange="the whole run"))
    assert playback_of(replace(nowhere, violations=(elsewhere,))) is None


class Scripts(HTMLParser):
    """The scripts of a page and what they hold, its policy, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.held: list[tuple[dict[str, str | None], str]] = []
        self.policy = ""
        self.attributes: set[str] = set()
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._open = tag == "script"
        if self._open:
            self.held.append((dict(attrs), ""))
        self.attributes |= {name for name, _ in attrs}
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"]

    def handle_endtag(self, tag):
        self._open = False

    def handle_data(self, data):
        if self._open:
            given, text = self.held.pop()
            self.held.append((given, text + data))


def evil_page() -> str:
    stream = incremental(Reply(series={EVIL: list(range(6))}, details={}))
    stream = change(stream, position=2, text=EVIL)
    hostile = ids_stream([1], [2], [3], name=f"generate/{EVIL}")
    event = replace(hostile.events[1], data={EVIL: [EVIL]})
    hostile = replace(hostile, events=(hostile.events[0], event, hostile.events[2]))
    every = [violated(stream, event=2), violated(hostile, event=1, pointer=f"/{EVIL}", id="other")]
    return page(document(Subject(runs=(every[0].run,)), every, 1), every)


def test_a_page_runs_its_own_script_alone_whatever_the_server_wrote():
    text = evil_page()
    (data, script) = Scripts(text).held
    assert data[0] == {"type": "application/json", "id": "playbacks"}
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert Scripts(text).policy == policy
    assert not {name for name in Scripts(text).attributes if name.startswith("on") or name == "src"}
    assert "innerHTML" not in script[1]
    assert not re.search(r"[<>&]", data[1])
    assert not re.search(r"[^\x20-\x7e]", data[1])
    shown = json.loads(data[1])
    assert "\x1b" not in json.dumps(shown, ensure_ascii=False)
    assert not any(item in json.dumps(shown, ensure_ascii=False) for item in "\u202e\u2028")
    assert "alert(1)" in json.dumps(shown)


def test_a_page_without_anything_to_play_holds_no_script():
    judgement = violated(incremental(), event=2)
    made = Scripts(page(document(Subject(runs=(judgement.run,)), [judgement], 1)))
    assert made.held == []
    assert made.policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_trace_has_a_slice_for_each_request_and_an_instant_for_each_event(tmp_path):
    def timed(stream: Stream, started: str, seconds: float) -> Stream:
        return replace(stream, exchange=replace(stream.exchange, started=started, duration=seconds))

    first = timed(incremental(), "2026-11-22T02:16:55.000+00:00", 2.0)
    second = timed(named(whole(), "generate/whole"), "2026-11-22T02:16:56.000+00:00", 0.5)
    third = timed(named(whole(), "generate/later"), "2026-11-22T02:16:58.000+00:00", 0.5)
    unknown = timed(named(whole(), f"generate/{EVIL}"), "", 0.5)
    too = timed(named(whole(), "generate/unknown-too"), "", 0.5)
    judgement = violated(first, second, third, unknown, too, event=2)
    report = document(Subject(runs=(judgement.run,)), [judgement], 1)
    write_reports(report, Outputs(trace=tmp_path / "trace.json"), [judgement])
    text = (tmp_path / "trace.json").read_text()
    assert text == trace("", [judgement])
    events = json.loads(text)["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert slices["generate/one"] | {"args": 0} == {
        "pid": 1,
        "tid": 1,
        "name": "generate/one",
        "cat": "one",
        "ph": "X",
        "ts": 0,
        "dur": 2_000_000,
        "cname": "terrible",
        "args": 0,
    }
    assert slices["generate/one"]["args"]["violates"] == ["made-up"]
    assert [(span["ts"], span["tid"]) for name, span in slices.items() if name != "generate/one"] == [
        (1_000_000, 2),
        (3_000_000, 1),
        (3_500_000, 1),
        (4_001_000, 1),
    ]
    instants = [event for event in events if event["ph"] == "i" and "ids" in event["args"]]
    assert sum(event["args"]["ids"] for event in instants) == 5 * 6
    assert [instant["ts"] for instant in instants if instant["ts"] >= 3_000_000] == [
        3_000_000,
        3_500_000,
        4_001_000,
    ]
    assert [instant["ts"] for instant in instants if instant["tid"] == 1][:3] == [0, 100_000, 200_000]
    assert [event["name"] for event in events if event.get("cname")] == ["generate/one", "event 2 (illegal)"]
    assert "\x1b" not in json.dumps(events, ensure_ascii=False)
    assert json.loads(trace("", []))["traceEvents"] == []


def test_a_slow_reader_s_pause_is_told():
    stream = ids_stream([1], [2], [3], [4])
    reads = [
        Read(time, read.data)
        for time, read in zip([0.1, 0.11, 2.1, 2.11], stream.exchange.reads, strict=True)
    ]
    events = tuple(
        replace(event, place=event.place._replace(time=read.time))
        for event, read in zip(stream.events, reads, strict=True)
    )
    slow = replace(stream, events=events, exchange=replace(stream.exchange, reads=tuple(reads)))
    played = playback_of(violated(slow, event=1))
    assert played is not None
    assert played.gaps == ((0.11, 2.1),)
