"""The chapter on channels: what is legal is no finding, what no document settles gates nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from channel_answers import (
    BODY,
    CALL,
    FORMS,
    HERMES,
    PING,
    THOUGHT,
    TOOLS,
    call,
    piece,
    streamed,
    text,
    thought,
    whole,
)
from channel_pairs import ARGUMENTS, FILLED, GOOD, OPENED, SAID, WHOLE, against
from letter_tokenizer import LetterTokenizer
from stream_builder import change, incremental
from test_checks_pairs import observe
from test_live_answers import violated
from wire_answers import answered

from tokenwire.checks.check import Target
from tokenwire.checks.reading.channels import fits, say, seen_markup
from tokenwire.dialects.markup import Markup
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.requirement import load_requirements

COMPARED = ("stream-channels-equal-whole", "disputed-markup-may-differ")
SECOND = call(piece("ping", "{}", 1))
ALONE = {"parallel_tool_calls": False}
RICH = {
    "q": {
        "a": {"b": [1, {"c": "}]{"}]},
        "s": 'he said "hi" \\ back\nnext',
        "u": "Köln 日本 😀👩\u200d👩\u200d👧",
    }
}


def found(baseline: Stream, other: Stream) -> list[str]:
    """Which requirements see that two answers differ, and which see a fault in either."""
    compared = [name for name in COMPARED if violated(name, against(baseline, other), HERMES)]
    alone = (
        "channels-hold-all-text",
        "channels-hold-no-markers",
        "arguments-are-json",
        "spent-budget-is-told",
    )
    return compared + [n for n in alone if violated(n, baseline, HERMES) or violated(n, other, HERMES)]


def test_white_space_and_another_spelling_of_arguments_are_no_difference() -> None:
    assert found(WHOLE, GOOD) == []
    words = FORMS["hermes"].spelled(("get_weather", RICH))
    escaped = json.dumps(RICH, separators=(",", ":"))
    verbatim = words[words.index('{"q"') : words.rindex("}")]
    stream = streamed(words, OPENED, *(call(piece(arguments=item)) for item in verbatim), text("\n"))
    assert found(whole(words, None, piece("get_weather", escaped)), stream) == []


def test_content_may_stand_before_a_call_and_white_space_between_two() -> None:
    words = f"I will look.\n{CALL}\n{PING}"
    both = (piece("get_weather", ARGUMENTS), piece("ping", "{}", 1))
    stream = streamed(words, text("I will look.\n"), OPENED, FILLED, text("\n"), call(piece("ping", "{}", 1)))
    assert found(whole(words, "I will look.", *both), stream) == []
    lost = streamed(words, text("I"), OPENED, FILLED, call(piece("ping", "{}", 1)))
    assert found(whole(words, "I will look.", *both), lost) == [COMPARED[0], "channels-hold-all-text"]


@pytest.mark.parametrize(
    ("words", "content", "calls", "deltas", "body"),
    [
        (f"{CALL}\nDone.", "", (piece("get_weather", ARGUMENTS),), (OPENED, FILLED, text("\nDone.")), {}),
        (f"<think>\n{PING} so\n</think>\n\nNo.", "No.", (), (call(piece("ping", "{}")), text("so")), {}),
        (PING.replace(": {}", ": {]"), PING, (), (call(piece("ping", "{]")),), {}),
        (PING.replace("ping", "nope"), "", (), (call(piece("nope", "{}")),), {}),
        (PING.removesuffix("</tool_call>"), "", (), (call(piece("ping", "{}")),), {}),
        (f"{CALL}\n{PING}", "", (piece("get_weather", ARGUMENTS),), (OPENED, FILLED, SECOND), ALONE),
    ],
    ids=["behind a call", "in reasoning", "malformed", "unknown tool", "unclosed", "one call wanted"],
)
def test_what_is_disputed_gates_nothing(
    words: str, content: str, calls: tuple[Any, ...], deltas: tuple[Any, ...], body: dict[str, Any]
) -> None:
    assert found(whole(words, content, *calls, **body), streamed(words, *deltas, **body)) == [COMPARED[1]]


def without_logprobs(stream: Stream) -> Stream:
    choices = [
        replace(choice, emissions=[replace(emission, series={}) for emission in choice.emissions])
        for choice in stream.choices
    ]
    return replace(stream, choices=tuple(choices))


def test_without_logprobs_a_stream_does_not_excuse_itself_by_what_it_alone_holds() -> None:
    """Arguments of the second call were appended to the first: the stream's malformed call was "disputed"."""
    words = f"{CALL}\n{PING}"
    both = (piece("get_weather", ARGUMENTS), piece("ping", "{}", 1))
    crossed = streamed(words, OPENED, FILLED, call(piece("ping", "", 1)), call(piece(arguments="{}")))
    pair = [without_logprobs(item) for item in (whole(words, "", *both), crossed)]
    compared = against(*pair)
    assert [name for name in COMPARED if violated(name, compared, HERMES)] == [COMPARED[0]]
    broken = whole(words, "", piece("get_weather", ARGUMENTS + "{}"), piece("ping", "", 1))
    compared = against(without_logprobs(broken), pair[0])
    assert [name for name in COMPARED if violated(name, compared, HERMES)] == []
    compared = against(without_logprobs(broken), without_logprobs(streamed(words, OPENED, FILLED)))
    assert [name for name in COMPARED if violated(name, compared, HERMES)] == [COMPARED[1]]


def test_arguments_that_cross_to_another_choice_are_found_without_logprobs() -> None:
    opened = [call(piece("get_weather", ""), choice=index) for index in (0, 1)]
    filled = [call(piece(arguments=ARGUMENTS), choice=index) for index in (0, 1)]
    right = streamed(CALL, *opened, *filled, second=CALL)
    crossed = streamed(CALL, *opened, filled[1], filled[1], second=CALL)
    for stream, found in ((right, []), (crossed, [COMPARED[0]])):
        both = whole(CALL, "", piece("get_weather", ARGUMENTS), n=2)
        (choice,) = both.choices
        both = replace(both, choices=(choice, replace(choice, index=1)))
        compared = against(without_logprobs(both), without_logprobs(stream))
        assert [name for name in COMPARED if violated(name, compared, HERMES)] == found


def test_text_behind_a_call_may_be_left_out_and_not_moved() -> None:
    words = f"{CALL}\nAnd then\n{PING}"
    moved = streamed(words, OPENED, FILLED, text("d then\n"), call(piece("ping", "{}", 1)), text("\nAn"))
    assert violated("channels-hold-all-text", moved, HERMES)
    for between in ((), (text("\nAnd then"),)):
        kept = streamed(words, OPENED, FILLED, *between, call(piece("ping", "{}", 1)))
        assert not violated("channels-hold-all-text", kept, HERMES)


def test_a_stop_within_reasoning_or_a_call_is_disputed_and_one_in_the_content_is_not() -> None:
    cut = SAID[: SAID.index("ris")]
    inside = whole(cut, "Look.", reasoning="hm", matched="Pa", finish="stop", stop=["Pa"])
    assert violated("channels-hold-all-text", inside, HERMES) == []
    for content, faults in (("Look", 0), ("Look out", 1), ("L", 1)):
        words = f"{THOUGHT}Look out"
        stopped = whole(words, content, reasoning="hm", matched=" out", stop=[" out"])
        assert len(violated("channels-hold-all-text", stopped, HERMES)) == faults, content


def test_a_request_may_have_no_parser() -> None:
    """Without tools, or with reasoning left where it is, the markup stays, and nothing is lost."""
    assert violated("channels-hold-all-text", whole(SAID, SAID), HERMES) == []
    assert violated("channels-hold-all-text", whole(SAID, f"Look.\n{CALL}", reasoning="hm"), HERMES) == []
    assert violated("channels-hold-all-text", whole(CALL, ""), HERMES), "all of it vanished"
    assert violated("channels-hold-no-markers", whole(SAID, SAID), HERMES) == []


def test_a_closing_marker_that_closes_nothing_is_text() -> None:
    """A text that begins within a call has its closing marker, which no parser takes out."""
    begun = f's": 1}}}}\n</tool_call>\n{CALL}'
    before = begun.removesuffix(CALL)
    made = piece("get_weather", '{"city": "Paris"}')
    for good in (whole(begun, before, made), whole(begun, "", made, reasoning=before)):
        assert violated("channels-hold-no-markers", good, HERMES) == []
        assert violated("channels-hold-all-text", good, HERMES) == []
    leaked = whole(f"{THOUGHT}{begun}", f"</think>{before}", made, reasoning="hm")
    assert len(violated("channels-hold-no-markers", leaked, HERMES)) == 1


def test_a_cut_call_is_shown_as_it_is_or_as_far_as_it_came() -> None:
    cut = CALL[: CALL.index("ris")]
    for answer in (
        whole(cut, cut, finish="length"),
        whole(f"{PING}\n{cut}", cut, piece("ping", "{}"), finish="length"),
        whole(cut, "", piece("get_weather", '{"city": "Pa'), finish="length"),
        streamed(cut, OPENED, call(piece(arguments='{"city')), finish="length"),
    ):
        assert violated("channels-hold-all-text", answer, HERMES) == []
    for answer in (
        whole(cut, "", finish="length"),
        whole(cut, "", piece("get_weather", '{"city": "Paris"}'), finish="length"),
        whole(cut, "", piece("get", ""), finish="length"),
    ):
        assert violated("channels-hold-all-text", answer, HERMES)
    opening = whole("Look.<tool_c", "Look.", finish="length")
    assert violated("channels-hold-all-text", opening, HERMES) == []


def test_markup_is_known_by_an_answer_that_was_taken_apart_by_it() -> None:
    seen = seen_markup([whole("Hello.", "Hello."), GOOD], None)
    assert (seen.thoughts, seen.form) == (HERMES.markup.thoughts, HERMES.markup.form)
    xml = FORMS["qwen3_xml"].spelled(("get_weather", {"city": "Paris"}))
    assert seen_markup([whole(xml, "", piece("get_weather", ARGUMENTS))], None).form == FORMS["qwen3_xml"]
    assert seen_markup([whole(xml, xml)], None).form is None
    assert seen_markup([], None, "pythonic").form == FORMS["pythonic"]


def test_a_server_without_parsers_is_not_asked_for_channels() -> None:
    rows = [
        row
        for row in load_requirements().values()
        if row.chapter == "channels" and {"channels", "reasoning"}.intersection(row.applies_when)
    ]
    plain = (whole("Hello.", "Hello.", tools=None), streamed("Hello.", text("Hello."), tools=None))
    assert {judgement.verdict for judgement in judge([Run(plain)], rows)} == {Verdict.UNSUPPORTED}


def test_what_a_run_shows_of_a_parser_is_judged() -> None:
    rows = [row for row in load_requirements().values() if row.chapter == "channels"]
    lost = streamed(SAID, thought("hm"), text("L"), OPENED, FILLED)
    verdicts = {
        judgement.requirement.id: judgement.verdict for judgement in judge([Run((WHOLE, GOOD, lost))], rows)
    }
    assert verdicts["stream-channels-equal-whole"] is Verdict.FAIL
    assert verdicts["channels-hold-all-text"] is Verdict.FAIL
    assert verdicts["border-space-may-differ"] is Verdict.INFO
    assert verdicts["calls-are-numbered"] is Verdict.PASS


def test_a_request_with_tools_that_was_not_called_is_left_to_the_channels_where_it_says_a_marker() -> None:
    """A call of an unknown tool: the whole answer drops it, the stream shows its tail (SGLang 0.5.23)."""
    words = PING.replace("ping", "nope")
    pair = against(whole(words, ""), streamed(words, text("{}}\n")))
    assert [name for name in (*COMPARED, "stream-text-equals-whole") if violated(name, pair, HERMES)] == [
        "disputed-markup-may-differ"
    ]


def test_a_stop_that_matches_in_a_call_is_matched() -> None:
    """VLLM 0.32.0 finishes with tool_calls then, and the content does not hold the stop."""
    plain = whole(CALL, "", piece("get_weather", ARGUMENTS))
    cut = CALL[: CALL.index("ris")]
    stopped = whole(cut, "", piece("get_weather", '{"city": "'), stop=["Pa"])
    assert violated("unmatched-stop-changes-nothing", (plain, stopped)) == []


def test_the_keys_of_channels_come_and_go() -> None:
    stream = streamed(SAID, thought("hm"), text("Look."), {}, OPENED, FILLED)
    assert violated("keys-do-not-come-and-go", stream) == []


def test_parts_of_characters_that_logprobs_do_not_tell_are_no_text() -> None:
    """Of a character in three tokens, vLLM and its like tell the bytes of none or of U+FFFD."""
    stream = whole("Köln 日本", "Köln 日本")
    for part in ([], [239, 191, 189]):
        entries = [{"token": "", "bytes": part, "logprob": -0.5}] * 3
        emission = stream.choices[0].emissions[0]
        stream = change(stream, series={"logprobs_content": [*emission.series["logprobs_content"], *entries]})
        assert say(stream, stream.choices[0], HERMES.markup) is None


def test_text_may_lag_where_it_could_become_a_marker() -> None:
    stream = change(change(incremental(dialect="sglang-chat"), 1, text=""), 2, text="bc")
    late = Target(tokenizer=LetterTokenizer())
    assert violated("text-keeps-up-with-its-ids", stream, late)
    asked = replace(stream.exchange.request, body={"tools": TOOLS})
    stream = replace(stream, exchange=replace(stream.exchange, request=asked))
    assert violated("text-keeps-up-with-its-ids", stream, late) == []


def test_a_parser_that_was_not_seen_at_work_may_have_taken_a_marker() -> None:
    """The reasoning is empty here (vLLM 0.32.0): nothing shows that a parser read the marker."""
    unseen = Target(markup=Markup(form=FORMS["hermes"]))
    assert violated("channels-hold-all-text", whole("</think>\n\nHello.", "Hello."), unseen) == []
    assert violated("channels-hold-all-text", whole("Hello, you.", "Hello."), unseen)


def test_a_call_without_a_marker_behind_text_is_disputed() -> None:
    """The whole answer leaves it where it is, and the stream makes a call of it (SGLang 0.5.23)."""
    llama = Target(markup=Markup(form=FORMS["llama3"]))
    words = f"Look.\n{FORMS['llama3'].spelled(('ping', {}))}"
    pair = against(whole(words, words), streamed(words, text("Look.\n"), call(piece("ping", "{}"))))
    assert [name for name in COMPARED if violated(name, pair, llama)] == ["disputed-markup-may-differ"]


def test_a_marker_that_the_budget_cuts_may_be_held_back() -> None:
    llama = Target(markup=Markup(form=FORMS["llama3"]))
    for words, faults in (("<|python_tag", 0), ("Look.", 1)):
        assert len(violated("channels-hold-all-text", whole(words, "", finish="length"), llama)) == faults


def test_reasoning_that_the_prompt_opened_may_fill_the_answer() -> None:
    """A budget ends it: nothing of the text is content, and no marker stands in it."""
    for channels, faults in (
        ((None, "hm, hm"), 0),
        (("hm, hm", None), 0),
        ((None, "hm"), 1),
        (("hm", "hm"), 1),
    ):
        content, reasoning = channels
        answer = whole("hm, hm", content, reasoning=reasoning, finish="length")
        assert len(violated("channels-hold-all-text", answer, HERMES)) == faults, channels
    called = whole("hm, hm", None, piece("ping", "{}"), reasoning="hm, hm", finish="length")
    assert violated("channels-hold-all-text", called, HERMES)


def test_a_call_ends_the_reasoning_that_the_prompt_opened() -> None:
    """As the parsers of Qwen3 do in SGLang and vLLM; what was said before it is held, in either channel."""
    filled = piece("get_weather", ARGUMENTS)
    for content, reasoning, faults in ((None, "Look.", 0), ("Look.", None, 0), (None, "Lo", 1), ("", "", 1)):
        answer = whole(f"Look.\n{CALL}", content, filled, reasoning=reasoning)
        assert len(violated("channels-hold-all-text", answer, HERMES)) == faults, (content, reasoning)


@pytest.mark.parametrize(("content", "faults"), [("hm ", 0), ("hm hm", 1), ("h", 1)])
def test_the_token_of_a_stop_id_is_in_no_channel(content: str, faults: int) -> None:
    stopped = whole("hm hm", content, stop_token_ids=[7])
    (choice,) = stopped.choices
    assert choice.finish is not None
    by_id = change(stopped, finish=replace(choice.finish, matched=7))
    assert len(violated("channels-hold-all-text", by_id, HERMES)) == faults


def test_reasoning_that_vanishes_is_missed_without_tools() -> None:
    assert violated("channels-hold-all-text", whole(f"{THOUGHT}Yes.", "Yes.", tools=None), HERMES)
    assert not violated(
        "channels-hold-all-text", whole(f"{THOUGHT}Yes.", "Yes.", reasoning="hm", tools=None), HERMES
    )


def test_a_call_in_tags_that_is_cut_is_named_or_not_there() -> None:
    tags = Target(markup=Markup(form=FORMS["qwen3_xml"]))
    words = FORMS["qwen3_xml"].spelled(("get_weather", {"city": "Paris"}))
    in_value, in_name = words[: words.index("ris")], words[: words.index("_weather")]
    for cut, calls, faults in (
        (in_value, (piece("get_weather", '{"city": "Pa'),), 0),
        (in_value, (), 1),
        (in_name, (), 0),
        (in_name, (piece("get", "{}"),), 1),
    ):
        answer = whole(cut, "", *calls, finish="length")
        assert len(violated("channels-hold-all-text", answer, tags)) == faults, cut


def test_samples_of_which_nothing_tells_what_they_say_are_not_held_against_each_other() -> None:
    both = (text("Yes."), thought("Yes.", choice=1))
    known = streamed("Yes.", *both, second="Yes.", temperature=1.0, seed=3)
    assert violated("choices-are-parsed-alone", known, HERMES)
    untold = change(known, series={"logprobs_content": []})
    assert violated("choices-are-parsed-alone", untold, HERMES) == []
    other = streamed("Yes.", *both, second="No, yes.", temperature=1.0, seed=3)
    assert violated("choices-are-parsed-alone", other, HERMES) == []


def test_a_choice_that_was_aborted_is_not_judged_by_its_text() -> None:
    assert violated("channels-hold-all-text", whole(SAID, "", finish="abort"), HERMES) == []


def test_reasoning_is_counted_otherwise_by_chance_where_one_of_two_samples_went_apart() -> None:
    """The stream counts another number because the server sampled other tokens, in one choice of two."""

    def two(stream: Stream, more: str = "") -> Stream:
        """Twice the choice; the second goes on with more text."""
        (choice,) = stream.choices
        other = choice if not more else change(stream, text=more).choices[0]
        return replace(stream, choices=(choice, replace(other, index=1)))

    ours = two(whole(f"{THOUGHT}Yes.", "Yes.", reasoning="hm", counted=4))
    for more, by_chance in ((" Or no.", True), ("", False)):
        theirs = two(streamed(f"{THOUGHT}Yes.", thought("hm"), text("Yes."), counted=9), more)
        (found,) = violated("reasoning-tokens-equal-whole", against(ours, theirs), HERMES)
        assert found.by_chance is by_chance


def test_a_piece_of_arguments_or_of_reasoning_is_something_new() -> None:
    """All ids of a call may come with its first piece, and the arguments behind them, as from vLLM."""
    letters = (call(piece(None, letter)) for letter in ARGUMENTS)
    first = call(piece("get_weather", ""))
    for deltas in ((first, *letters), ({"reasoning": "h"}, {"reasoning": "m"})):
        stream = streamed(CALL, *deltas, dialect="vllm-chat")
        with_ids = change(stream, 1, output_ids=[1, 2, 3])
        assert observe("no-idle-emissions", with_ids)
        assert violated("no-idle-emissions", with_ids) == []


@pytest.mark.parametrize("dialect", ["sglang-chat", "vllm-chat", "openai-chat"])
@pytest.mark.parametrize(("city", "held"), [("Köln 日本", True), ("Kln ", False)])
def test_letters_that_arguments_lose_are_missed_in_every_dialect(dialect: str, city: str, held: bool) -> None:
    words = FORMS["hermes"].spelled(("get_weather", {"city": "Köln 日本"}))
    call = piece("get_weather", json.dumps({"city": city}, ensure_ascii=False))
    document = json.loads(whole(words, None, call).exchange.body)
    stream = answered(dialect, BODY, document, label="whole")
    assert bool(violated("channels-hold-all-text", stream, HERMES)) is not held


@pytest.mark.parametrize(
    ("contents", "content", "behind", "held"),
    [
        (("a", "b"), "a\n b", False, True),
        (("a", "b"), "a", False, False),
        (("a", "b"), "a", True, True),
        (("a", "x", "xy"), "a xy", True, True),
        (("a", " ", "b "), "ab", False, True),
        (("", "b"), "  b", True, True),
        (("a", "b"), "b", True, False),
        (("x",) * 60, "x" * 30 + "y", True, False),
        (("a", *"bcde" * 15), "a" + " " * 4000 + "f", True, False),
    ],
)
def test_contents_are_told_apart(contents: tuple[str, ...], content: str, behind: bool, held: bool) -> None:
    assert fits(contents, content, behind=behind) is held


def test_what_a_channel_lacks_is_told_by_the_reading_that_it_is_nearest_to() -> None:
    """The prompt had opened the reasoning, and the words were `the tokens say '' for the reasoning`."""
    long = "A client that reads the stream puts the pieces together again."
    stream = streamed(long, thought(f"{long}Q"))
    (seen,) = violated("channels-hold-all-text", stream, HERMES)
    assert seen.message == (
        "the tokens say '…e pieces together again.' for the reasoning, and the channel contains "
        "'…e pieces together again.Q'"
    )
