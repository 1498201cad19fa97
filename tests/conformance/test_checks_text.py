"""What the checks of text and stops promise beyond their pairs: what they let pass, and on what they keep
silent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from letter_tokenizer import HALF, OTHER_HALF, SPECIAL, LetterTokenizer
from stream_builder import Reply, append, change, cumulative, incremental, named, whole

from tokenwire.checks import stops
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.dialects.dialect import load_dialects
from tokenwire.dialects.policy import Policy
from tokenwire.record import CallPiece, Choice, Finish, Stream
from tokenwire.scenarios.stop import first_token_text, stop_inside_a_token
from tokenwire.scenarios.text import ends_within_a_character
from tokenwire.wire.exchange import HttpRequest

LETTERS = Target(tokenizer=LetterTokenizer())
BROKEN = "\ufffd"


def seen(requirement: str, stream: Stream) -> list[Observation]:
    check = CHECKS[requirement].on_stream
    assert check is not None
    return list(check(stream, LETTERS))


def holds(requirement: str, stream: Stream) -> bool:
    """Whether all is well with a stream, of which the check saw something."""
    observations = seen(requirement, stream)
    assert observations
    return all(observation.holds for observation in observations)


def related(*streams: Stream) -> list[Observation]:
    check = CHECKS["stop-string-ends-generation"].on_run
    assert check is not None
    return list(check(streams, LETTERS))


class CleaningTokenizer(LetterTokenizer):
    cleans_up = True

    def decode(self, ids: Any, **flags: bool) -> str | None:
        text = super().decode(ids, **flags)
        return None if text is None else text.replace("z", " .")


def test_without_a_tokenizer_nothing_is_seen() -> None:
    check = CHECKS["text-is-what-its-ids-say"].on_stream
    assert check is not None
    assert list(check(whole(), Target())) == []


def test_ids_that_nobody_can_read_are_not_judged() -> None:
    assert seen("text-is-what-its-ids-say", whole(Reply(ids=(11, 999), text="ab"))) == []


@pytest.mark.parametrize(
    "stream",
    [
        whole(Reply(text="other!"), echo=True),
        change(whole(Reply(text="other!")), reasoning="I think"),
        change(whole(Reply(text="other!")), calls=(CallPiece("/tool_calls/0", 0),)),
        whole(Reply(text="other!", finish=Finish("abort"))),
    ],
    ids=["echo", "reasoning", "tool calls", "abort"],
)
def test_text_that_is_not_only_the_ids_text_is_not_judged(stream: Stream) -> None:
    assert seen("text-is-what-its-ids-say", stream) == []


def test_a_prompt_that_ends_within_a_character_may_be_completed_or_not() -> None:
    reply = whole(Reply(ids=(OTHER_HALF, 12), text="-"), input_ids=((11, HALF),))
    for text, legal in {f"{BROKEN}b": True, "éb": True, "b": True, "aéb": False}.items():
        assert holds("text-is-what-its-ids-say", change(reply, text=text)) is legal, text


def test_a_stop_nobody_named_may_have_been_an_id_or_a_string() -> None:
    stream = whole(Reply(ids=(11, 12, 13), finish=Finish("stop")), stop=("c",))
    assert holds("text-is-what-its-ids-say", change(stream, text="ab"))
    assert holds("text-is-what-its-ids-say", change(stream, text="abc"))
    assert not holds("text-is-what-its-ids-say", change(stream, text="a"))


def test_the_text_may_be_cut_at_any_place_of_the_stop_that_is_named() -> None:
    stream = whole(Reply(ids=(11, 12, 11, 12), finish=Finish("stop", matched="b")), stop=("b",))
    for text, legal in {"a": True, "aba": True, "ab": False, "abab": False}.items():
        assert holds("text-is-what-its-ids-say", change(stream, text=text)) is legal, text


def test_an_id_that_is_named_as_the_stop_is_cut_off_only_where_it_stands_last() -> None:
    stream = whole(Reply(ids=(11, 12, 13), finish=Finish("stop", matched=12)))
    for text, legal in {"abc": True, "ab": False, "a": False}.items():
        assert holds("text-is-what-its-ids-say", change(stream, text=text)) is legal, text


def test_what_a_pattern_matched_may_stay() -> None:
    stream = whole(Reply(ids=(11, 12, 13), finish=Finish("stop", matched="b.")), stop_regex=("b.",))
    for text, legal in {"abc": True, "a": True, "ab": False}.items():
        assert holds("text-is-what-its-ids-say", change(stream, text=text)) is legal, text


def test_spaces_that_a_tokenizer_cleans_up_are_not_compared() -> None:
    check = CHECKS["text-is-what-its-ids-say"].on_stream
    assert check is not None
    stream = whole(Reply(ids=(11, 36), text="-"))
    target = Target(tokenizer=CleaningTokenizer())
    verdicts = {
        text: [observation.holds for observation in check(change(stream, text=text), target)]
        for text in ("a .", "a.", "a")
    }
    assert verdicts == {"a .": [True], "a.": [True], "a": [False]}


def test_a_tail_that_is_whole_has_nothing_to_show() -> None:
    assert seen("incomplete-tail-is-shown", whole()) == []


def test_text_may_wait_for_a_character_and_for_what_begins_a_stop_string() -> None:
    waiting = change(change(incremental(), 1, text=""), 2, text="bc")
    assert not holds("text-keeps-up-with-its-ids", waiting)
    assert holds("text-keeps-up-with-its-ids", replace(waiting, asked=replace(waiting.asked, stop=("zz",))))
    waits_longer = change(change(waiting, 2, text=""), 3, text="bcd")
    for stop, may_wait in (("zz", False), ("zzz", True)):
        asked = replace(waits_longer.asked, stop=(stop,))
        assert holds("text-keeps-up-with-its-ids", replace(waits_longer, asked=asked)) is may_wait, stop
    halves = incremental(Reply(ids=(11, HALF, OTHER_HALF, 12), text="-----"))
    halves = change(change(change(change(halves, 0, text="a"), 1, text=""), 2, text="é"), 3, text="b")
    assert holds("text-keeps-up-with-its-ids", halves)


def test_text_keeps_up_in_cumulative_streams_too() -> None:
    assert holds("text-keeps-up-with-its-ids", cumulative())
    assert not holds("text-keeps-up-with-its-ids", change(cumulative(), 3, text="abc"))


def test_shown_text_is_held_against_the_text_before_the_stop() -> None:
    reply = Reply(ids=(11, 12, 13, 14), text="ab  ", finish=Finish("stop", matched="cd"))
    stream = incremental(reply, sizes=(2, 2), stop=("cd",))
    assert holds("shown-text-stays", change(stream, 1, text=""))
    early = change(change(stream, 0, text="abc"), 1, text="")
    assert [
        observation.place.event for observation in seen("shown-text-stays", early) if not observation.holds
    ] == [0, 1]


def test_special_tokens_are_judged_where_there_are_some() -> None:
    assert seen("special-tokens-as-asked", whole()) == []
    ended = whole(Reply(ids=(11, SPECIAL), text="a", finish=Finish("stop", matched=SPECIAL)))
    assert seen("special-tokens-as-asked", ended) == []


@pytest.mark.parametrize(
    ("finish", "asked"),
    [
        (Finish("stop", matched=13), {"stop_token_ids": (13,)}),
        (Finish("stop"), {"stop_token_ids": (13,)}),
        (Finish("stop", matched="c"), {"stop": ("c",)}),
    ],
    ids=["stop id", "stop id without a name", "stop string"],
)
def test_the_finish_may_come_alone_behind_the_ids_of_a_stop(finish: Finish, asked: dict[str, Any]) -> None:
    """As gateways send it: the stop is complete in the ids, and never shown."""
    reply = Reply(ids=(11, 12, 13), text="ab", finish=None)
    stream = incremental(reply, **asked)
    alone = append(stream, lambda e: replace(e, output_ids=None, text=None, finish=finish))
    assert holds("text-keeps-up-with-its-ids", alone)
    late = change(alone, 1, text="")
    assert not holds("text-keeps-up-with-its-ids", late)


def test_what_stands_behind_a_stop_in_its_token_is_not_waited_for() -> None:
    asked = {"stop": ("<",), "skip_special_tokens": False}
    stream = incremental(Reply(ids=(11, 12, SPECIAL), text="ab", finish=None), **asked)
    finish = Finish("stop", matched="<")
    alone = append(stream, lambda e: replace(e, output_ids=None, text=None, finish=finish))
    assert holds("text-keeps-up-with-its-ids", alone)
    assert not holds("text-keeps-up-with-its-ids", change(alone, 1, text=""))


def test_a_stop_in_the_second_half_may_come_with_the_last_token() -> None:
    free = whole(Reply(text="aaaabc"))
    assert related(free, named(whole(Reply(text="aaaabc"), stop=("bc",)), "g/stop")) == []


def test_a_kept_stop_ends_the_text() -> None:
    reply, finish = Reply(text="bcaaaa"), Finish("stop", matched="bc")
    kept = change(whole(reply, stop=("bc",), no_stop_trim=True), text="bc", finish=finish)
    assert [observation.holds for observation in related(whole(reply), named(kept, "g/kept"))] == [True]
    cut = change(kept, text="")
    assert [observation.holds for observation in related(whole(reply), named(cut, "g/cut"))] == [True], (
        "told by another row"
    )
    rest_of_the_token = change(kept, text="bca")
    assert [
        observation.holds for observation in related(whole(reply), named(rest_of_the_token, "g/rest"))
    ] == [True]
    ran_on = change(kept, text=f"bc{'a' * 40}")
    assert [observation.holds for observation in related(whole(reply), named(ran_on, "g/on"))] == [False]


def test_requests_that_differ_in_what_shapes_tokens_are_not_compared() -> None:
    free = whole(Reply(text="bcaaaa"))
    for other in ({"stop_regex": ("x",)}, {"skip_special_tokens": False}, {"echo": True}):
        ignored = named(whole(Reply(text="bcaaaa"), stop=("bc",), **other), "g/stop")
        assert related(free, ignored) == []
    assert related(free, named(whole(Reply(text="bcaaaa"), stop=("bc",), min_new_tokens=2), "g/stop")) == []


def test_a_stop_string_is_not_judged_under_a_least_number_of_tokens() -> None:
    late = whole(stop=("b",))
    assert not holds("nothing-follows-a-stop-string", late)
    assert (
        seen("nothing-follows-a-stop-string", replace(late, asked=replace(late.asked, min_new_tokens=4)))
        == []
    )


def test_a_character_that_is_not_whole_yet_spells_no_stop_string() -> None:
    reply = Reply(ids=[11, 50, 51], text="aé")
    assert holds("nothing-follows-a-stop-string", whole(reply, stop=("\ufffd",)))
    gone_on = Reply(ids=[11, 50, 11, 11], text="a\ufffdaa")
    assert not holds("nothing-follows-a-stop-string", whole(gone_on, stop=("\ufffd",)))


@pytest.mark.parametrize("pattern", ["^b", "b$", r"\bb", "(?=b)", "b(", ""])
def test_patterns_that_look_around_are_not_judged(pattern: str) -> None:
    late = whole(stop_regex=("b",))
    assert not holds("nothing-follows-a-stop-pattern", late)
    other = replace(late, asked=replace(late.asked, stop_regex=(pattern,) if pattern else ()))
    assert seen("nothing-follows-a-stop-pattern", other) == []


def test_a_stop_id_is_not_judged_where_ends_are_ignored_or_too_early() -> None:
    late = whole(stop_token_ids=(13,))
    assert not holds("nothing-follows-a-stop-id", late)
    assert seen("nothing-follows-a-stop-id", replace(late, asked=replace(late.asked, ignore_eos=True))) == []
    assert seen("nothing-follows-a-stop-id", replace(late, asked=replace(late.asked, min_new_tokens=3))) == []


def test_whether_a_stop_id_stays_is_the_dialects_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    stays, left_out = (whole(Reply(finish=Finish("stop", matched=id_))) for id_ in (16, 17))
    assert holds("stop-id-stays-as-declared", stays)
    assert not holds("stop-id-stays-as-declared", left_out)
    monkeypatch.setattr(stops, "policy_of", lambda stream: Policy(stop_id_in_output_ids=False))
    assert not holds("stop-id-stays-as-declared", stays)
    assert holds("stop-id-stays-as-declared", left_out)


def test_a_template_may_bring_stops_of_its_own() -> None:
    reply = Reply(ids=(11, 12), text="a", finish=Finish("stop", matched="b"))
    assert not holds("named-stop-was-asked-and-spelled", whole(reply))
    assert seen("named-stop-was-asked-and-spelled", whole(reply, input_ids=None, text_prompt=True)) == []


def test_what_a_server_names_beside_another_end_is_no_stop() -> None:
    reply = Reply(ids=(11, 12), text="ab", finish=Finish("length", matched="b"))
    assert seen("named-stop-was-asked-and-spelled", whole(reply)) == []


def test_an_item_of_a_batch_is_held_to_its_own_parameters() -> None:
    """SGLang takes a list of sampling parameters, one object for each prompt."""
    stream = whole(Reply(ids=(11, 12), text="a", finish=Finish("stop", matched="b")))
    assert not holds("named-stop-was-asked-and-spelled", stream)
    asked = replace(stream.asked, by_prompt=(replace(stream.asked, stop=("b",)),))
    assert holds("named-stop-was-asked-and-spelled", replace(stream, asked=asked))
    late = replace(stream, asked=replace(stream.asked, by_prompt=(replace(stream.asked, stop=("a",)),)))
    assert not holds("nothing-follows-a-stop-string", late)


def test_openai_shapes_of_sglang_take_stop_patterns() -> None:
    body = {"model": "m", "prompt": [1], "messages": [], "stop_regex": "Q.", "temperature": 0}
    for name, path in (("sglang-completions", "completions"), ("sglang-chat", "chat/completions")):
        asked = load_dialects()[name].read_asked(HttpRequest("POST", f"/v1/{path}", body))
        assert asked.stop_regex == ("Q.",)


def spoken(*pieces: str) -> Choice:
    """A choice that was streamed in pieces, one id each."""
    stream = incremental(Reply(ids=tuple(range(11, 11 + len(pieces))), text="x" * len(pieces)))
    for position, piece in enumerate(pieces):
        stream = change(stream, position, text=piece)
    return stream.choices[0]


def test_a_stop_is_found_inside_a_token_and_nowhere_before() -> None:
    assert stop_inside_a_token(spoken("ab", "c", "defg", "hijklmnop")) == "ef"
    assert stop_inside_a_token(spoken("xef", "defg", "hij")) is None
    assert stop_inside_a_token(spoken("a", "b", "c", "de", "fghi")) is None
    assert stop_inside_a_token(None) is None


def test_the_first_token_is_a_stop_where_it_is_plain() -> None:
    assert first_token_text(spoken(" a", "b")) == " a"
    assert first_token_text(spoken(" ", "b")) is None
    assert first_token_text(spoken("\n", "b")) is None
    assert first_token_text(None) is None


def test_a_token_without_text_may_be_half_a_character() -> None:
    assert ends_within_a_character(spoken("a", "", "é", "b")) == 2
    assert ends_within_a_character(spoken("a", "b", "")) is None
    assert ends_within_a_character(None) is None


def test_what_ended_otherwise_was_ended_by_no_stop_string() -> None:
    check = CHECKS["unmatched-stop-changes-nothing"].on_run
    assert check is not None
    spent = named(whole(stop=("c",)), "g/spent")
    stopped = change(spent, finish=Finish("stop"))
    assert all(observation.holds for observation in check((whole(), spent), LETTERS))
    assert list(check((whole(), spent), LETTERS))
    assert list(check((whole(), stopped), LETTERS)) == []


def test_what_was_delivered_in_another_way_shows_only_that_a_stop_changed_nothing() -> None:
    """An endpoint whose whole answers differ from its streams (transformers) was told of its stop strings."""
    check = CHECKS["unmatched-stop-changes-nothing"].on_run
    assert check is not None
    stopped = named(incremental(stop=("zz",)), "g/stopped")
    assert [observation.holds for observation in check((whole(), stopped), LETTERS)].count(True) > 1
    (left,) = check((whole(), change(stopped, 2, text="e")), LETTERS)
    assert (left.condition_only, left.message) == (
        True,
        "the answer without stop strings has another delivery mode",
    )


def test_where_a_stop_stands_is_not_judged_by_ids_that_nobody_can_read() -> None:
    late = whole(Reply(ids=(11, 12, 13), text="abc"), stop=("b",))
    assert not holds("nothing-follows-a-stop-string", late)
    assert seen("nothing-follows-a-stop-string", change(late, output_ids=[11, 12, 999, 13])) == []


def test_an_id_behind_a_stop_is_shown_where_the_last_ids_stand() -> None:
    late = incremental(Reply(ids=(11, 12, 13), text="abc"), stop=("b",))
    with_ids = [
        emission.event.index for emission in late.choices[0].emissions if "output_ids" in emission.pointers
    ]
    [found] = seen("nothing-follows-a-stop-string", late)
    assert (found.holds, found.place.event) == (False, with_ids[-1])
    [choice] = late.choices
    without = tuple(replace(emission, pointers={}) for emission in choice.emissions)
    [found] = seen(
        "nothing-follows-a-stop-string", replace(late, choices=(replace(choice, emissions=without),))
    )
    assert found.place.event == without[-1].event.index


def test_what_is_named_beside_another_finish_is_no_stop() -> None:
    reply = Reply(ids=(11, SPECIAL), text="a", finish=Finish("length", matched="b"))
    assert not holds("special-tokens-as-asked", whole(reply, skip_special_tokens=False))


class DroppingTokenizer(LetterTokenizer):
    """Drops a space at the head of a text, as SentencePiece does."""

    def decode(self, ids: Any, **flags: bool) -> str | None:
        text = super().decode(ids, **flags)
        return None if text is None else text.replace("z", " ").removeprefix(" ")


def test_text_is_not_ahead_by_the_space_that_stands_between_prompt_and_output():
    check = CHECKS["text-waits-for-its-ids"].on_stream
    assert check is not None
    stream = incremental(Reply(ids=(36, 12, 13), text="---"), input_ids=((11,),))
    target = Target(tokenizer=DroppingTokenizer())
    without_space = {("", "b", "c"): True, ("b", "", "c"): False}
    with_space = {(" ", "b", "c"): True, (" b", "", "c"): False, (" bc", "", ""): False}
    for pieces, legal in {**with_space, **without_space}.items():
        shown = stream
        for index, piece in enumerate(pieces):
            shown = change(shown, index, text=piece)
        assert all(observation.holds for observation in check(shown, target)) is legal, pieces


def test_an_incomplete_character_may_be_shown_with_the_ids_that_begin_it():
    stream = incremental(Reply(ids=(11, HALF, 12), text="---"))
    for pieces, legal in {("a", BROKEN, "b"): True, ("a", f"{BROKEN}b", ""): False}.items():
        shown = stream
        for index, piece in enumerate(pieces):
            shown = change(shown, index, text=piece)
        assert holds("text-waits-for-its-ids", shown) is legal, pieces
