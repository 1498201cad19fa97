"""What chance explains and what it does not, on recorded answers and on such as are made for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control_calls import abort
from live_captures import live_run
from stream_builder import (
    ABORT,
    IDS,
    STOP,
    Reply,
    incremental,
    logprobs,
    named,
    top_logprobs,
    whole,
    with_exchange,
)

from tokenwire.checks.reading.chance import goes_apart
from tokenwire.judging.beside import side_by_side
from tokenwire.judging.chance import determinism, doubt_between
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements
from tokenwire.target.alike import ROUNDING, alike, apart
from tokenwire.target.determinism import PROBE
from tokenwire.target.noise import Noise

RECORDINGS = Path(__file__).parent / "recordings"
APART = [*IDS[:3], 94, 95, 96]
"""Ids that go another way from the fourth on."""


def judged(requirement: str, *streams: Stream) -> list[Judgement]:
    return judge([Run(streams)], [load_requirements()[requirement]])


def verdicts(requirement: str, *streams: Stream) -> set[Verdict]:
    return {judgement.verdict for judgement in judged(requirement, *streams)}


def copies(stream: Stream, names: Iterable[str]) -> list[Stream]:
    return [named(stream, f"generate/{name}") for name in names]


def of_ids(ids: Sequence[int], text: str = "abcxyz", **found: object) -> Reply:
    return replace(Reply(ids=ids, text=text), **found)  # type: ignore[arg-type]  # fields of Reply


# Recorded answers.


@pytest.mark.parametrize("name", ["sglang_forgets_the_seed", "llamacpp_moves_with_its_cache"])
def test_a_server_that_does_not_repeat_itself_here_is_not_failed(name: str) -> None:
    found = judge(replay([RECORDINGS / f"{name}.jsonl"]).runs)
    assert [judgement.name for judgement in found if judgement.verdict is Verdict.FAIL] == []


# Two answers to one greedy request.


@pytest.mark.parametrize("series", [False, True])
def test_a_near_tie_is_a_violation_only_where_both_answers_were_repeated(series: bool) -> None:
    """The stream goes another way. With logprobs, the two ids are as good as equally likely."""
    found = {"series": {"output_token_logprobs": logprobs()}} if series else {}
    ours = whole(Reply(**found))  # type: ignore[arg-type]  # fields of Reply
    apart = {"series": {"output_token_logprobs": logprobs(APART)}} if series else {}
    theirs = incremental(of_ids(APART, **apart))
    for requirement in ("stream-ids-equal-whole", "stream-text-equals-whole", "stream-is-legal-delivery"):
        once = [*copies(ours, "ab"), *copies(theirs, "c")]
        assert verdicts(requirement, once[0], once[2]) == {Verdict.INCONCLUSIVE}, requirement
        assert verdicts(requirement, *once) == {Verdict.WARN}, requirement
        assert verdicts(requirement, *once, *copies(theirs, "d")) == {Verdict.FAIL}, requirement
        flipping = [*once, *copies(theirs, "d"), *copies(incremental(Reply(**found)), "e")]  # type: ignore[arg-type]
        assert verdicts(requirement, *flipping) == {Verdict.WARN}, requirement
        in_two_ways = whole(of_ids(APART, **apart))
        assert verdicts(requirement, *once, *copies(in_two_ways, "d")) == {Verdict.INCONCLUSIVE}, requirement


def test_the_doubt_names_the_whole_answers() -> None:
    other = whole(of_ids(APART))
    third = incremental(of_ids([*IDS[:3], 84, 85, 86]))
    streams = [*copies(whole(), "ab"), *copies(other, "c"), *copies(third, "d")]
    (judgement,) = judged("stream-ids-equal-whole", *streams)
    assert "generate/b and generate/c are one request" in judgement.message
    assert [observation.place.exchange for observation in judgement.doubted] == ["generate/d"]


def test_a_race_among_streams_is_told_and_more_than_chance_is_a_failure() -> None:
    """Streams that differ from each other do not excuse that they differ from what is repeated."""
    answers = [copy for key in "abcdefgh" for copy in copies(whole(key=key), (f"{key}{n}" for n in range(6)))]
    right = [named(incremental(key=key), f"generate/s{key}") for key in "abcdefgh"]
    wrong = [
        named(incremental(of_ids([*IDS[:3], 80 + n, 95, 96]), key=key), f"generate/s{key}")
        for n, key in enumerate("abcdefgh")
    ]
    once = judged("stream-ids-equal-whole", *answers, *right[1:], wrong[0])
    assert {judgement.verdict for judgement in once} == {Verdict.WARN}
    assert "1 of 8 answers differ from one that was repeated, and 0 of 40 repetitions" in once[0].message
    assert {judgement.verdict for judgement in judged("stream-ids-equal-whole", *answers, *wrong)} == {
        Verdict.FAIL
    }


def test_chance_explains_as_many_differences_as_whole_answers_show() -> None:
    answers = [copy for key in "abcd" for copy in copies(whole(key=key), (f"{key}{n}" for n in range(3)))]
    flipping = copies(whole(of_ids(APART), key="d"), ["d3"])
    stream = named(incremental(of_ids(APART), key="a"), "generate/s")
    (judgement,) = judged("stream-ids-equal-whole", *answers, *flipping, stream)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "1 of 1 answers differ from one that was repeated, and 1 of 9 repetitions" in judgement.message


def test_one_answer_that_many_are_held_against_differs_once() -> None:
    """It went another way at a near tie, and was given once; each of the forty was repeated."""
    repeated = [
        answer
        for n in range(40)
        for answer in copies(whole(key=f"k{n}", ids_key="same"), (f"{n}-a", f"{n}-b"))
    ]
    flipping = [*copies(whole(key="z"), ["za", "zb"]), *copies(whole(of_ids(APART), key="z"), ["zc"])]
    other = whole(of_ids(APART), key="other", ids_key="same", dialect="vllm-completions")
    found = judged("same-ids-on-every-endpoint", named(other, "completions/a"), *repeated, *flipping)
    assert {judgement.verdict for judgement in found} == {Verdict.INCONCLUSIVE}
    assert "completions/a was answered once" in found[0].message
    assert "1 of 1 answers differ from one that was repeated, and 1 of 42 repetitions" in found[0].message


def test_an_answer_from_the_cache_does_not_contradict_one_that_is_not() -> None:
    cold, warm = whole(), whole(of_ids(APART, counters={"prompt_tokens": 2, "cached_tokens": 2}))
    seen = determinism([*copies(cold, "ab"), *copies(warm, "cd")])
    assert (seen.contradicted, seen.repetitions, seen.contradictions) == (set(), 2, 0)


def test_what_was_paused_does_not_contradict_what_was_not() -> None:
    streams = [*copies(whole(), "ab"), *copies(whole(of_ids(APART)), "c")]
    assert determinism(streams).contradicted == {"key"}
    seen = determinism(streams, {"generate/c"})
    assert (seen.contradicted, seen.differing("generate/a")) == (set(), None)
    doubt = doubt_between(["generate/a", "generate/c"], [seen])
    assert doubt is not None
    assert doubt.counted


def test_an_answer_among_others_that_came_again_alone_was_repeated() -> None:
    """Confirmations are asked one at a time, whatever was beside the first answer."""
    conditions = {"generate/a": "among others", "generate/c": "behind a refusal"}
    streams = [*copies(whole(), "ab"), *copies(whole(of_ids(APART)), "c")]
    seen = determinism(streams, conditions=conditions)
    assert [seen.alike(f"generate/{name}") for name in "abc"] == [1, 1, 0]
    assert seen.contradicted == set()


@pytest.mark.parametrize(
    ("numbers", "ids", "verdict"),
    [(logprobs, (*IDS[:2], 99), Verdict.WARN), (lambda ids: logprobs(IDS[:3]), IDS[:3], Verdict.PASS)],
    ids=["another last id", "the same"],
)
def test_an_abort_excuses_no_other_id(numbers: Any, ids: Sequence[int], verdict: Verdict) -> None:
    """Undisturbed answers agree, and the last id of the one that was aborted is none of theirs."""
    cut = Reply(ids=ids, text="abc", finish=ABORT, series={"output_token_logprobs": numbers(ids)})
    aborted = incremental(cut, request_id="r", prompt_key="p", max_new_tokens=6)
    full = whole(Reply(series={"output_token_logprobs": logprobs()}), prompt_key="p")
    run = Run((*copies(full, "ab"), *copies(aborted, "cd")), calls=(abort(0.05, "r"),))
    (judgement,) = judge([run], [load_requirements()["aborted-answer-is-a-prefix"]])
    assert judgement.verdict is verdict, judgement.message


def _aborted(key: str, *, differs: bool, ids: int = 3, text: str | None = "abc") -> list[Stream]:
    """A whole answer that came once, and one to the same request that was aborted, with another last id."""
    told = tuple(range(20, 20 + ids))
    cut = Reply(ids=(*told[:-1], 99) if differs else told, text=text, finish=ABORT)
    whole_ids = (*told, *range(60, 63))
    full = Reply(ids=whole_ids, text=None)
    wanted = {"prompt_key": key, "key": key}
    return [
        *copies(whole(full, **wanted), [f"{key}-whole"]),
        *copies(
            incremental(replace(cut, text=None), request_id=key, max_new_tokens=400, **wanted), [f"{key}-cut"]
        ),
    ]


@pytest.mark.parametrize(
    ("differing", "ids", "verdict"),
    [
        (6, 3, Verdict.FAIL),
        (1, 3, Verdict.INCONCLUSIVE),
        (6, 300, Verdict.INCONCLUSIVE),
        (0, 3, Verdict.PASS),
    ],
    ids=["all", "one of them", "far behind what was repeated", "none"],
)
def test_aborted_answers_do_not_excuse_each_other_where_their_whole_ones_came_once(
    differing: int, ids: int, verdict: Verdict
) -> None:
    """18 aborted answers had another id, and each was excused: its whole answer had not been repeated."""
    repeated = [copy for n in range(20) for copy in copies(whole(key=f"k{n}"), (f"{n}-a", f"{n}-b"))]
    answers = [answer for n in range(6) for answer in _aborted(f"p{n}", differs=n < differing, ids=ids)]
    row = load_requirements()["aborted-answer-is-a-prefix"]
    run = Run((*repeated, *answers), calls=tuple(abort(0.05, f"p{n}") for n in range(6)))
    (judgement,) = judge([run], [row])
    assert judgement.verdict is verdict, judgement.message
    if verdict is Verdict.FAIL:
        assert (
            "6 of 6 aborted answers differ, within 18 ids, and 0 repetitions of whole answers within 120"
            in (judgement.message)
        )


_SAID = "a quick fox jumps over the lazy dog, and another one runs behind it through the wood"
FAR = {"output_token_logprobs": [[-0.5, token, None] for token in IDS]}
FARTHER = {"output_token_logprobs": [[-0.5, t, None] if t in IDS else [-7.5, t, None] for t in APART]}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(Reply(), Reply(text="abcxyz"), id="the same ids, another text"),
        pytest.param(Reply(), Reply(ids=IDS[:5], text="abcde"), id="an early end"),
        pytest.param(Reply(ids=None), Reply(ids=None, text="abef"), id="text with a hole"),
        pytest.param(Reply(ids=None), Reply(ids=None, text="abcdabcdef"), id="text said twice"),
        pytest.param(
            Reply(ids=None, text=_SAID, counted=False),
            Reply(ids=None, text="".join(_SAID.split(" ")[::2]), counted=False, finish=STOP),
            id="every second word lost",
        ),
        pytest.param(Reply(), Reply(finish=STOP), id="the same ids, another finish"),
        pytest.param(Reply(series=FAR), of_ids(APART, series=FARTHER), id="ids that are far from a tie"),
    ],
)
def test_what_chance_does_not_explain_needs_no_repetition(ours: Reply, theirs: Reply) -> None:
    first, second = whole(ours), incremental(theirs)
    assert not goes_apart((first.choices[0], second.choices[0]))


@pytest.mark.parametrize(
    "asked", [{"other_sampling": '{"frequency_penalty":2.0,"logit_bias":{"90":40}}'}, {"greedy": False}]
)
def test_logprobs_tell_of_no_tie_where_more_than_they_decides(asked: dict[str, object]) -> None:
    """Penalties outweigh a bias at some id: the two that tie there lie far apart in the logprobs told."""
    first, second = whole(Reply(series=FAR), **asked), incremental(of_ids(APART, series=FARTHER), **asked)
    assert goes_apart((first.choices[0], second.choices[0]))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(Reply(), of_ids(APART), id="other ids to the end"),
        pytest.param(Reply(), Reply(ids=IDS[:4], text="abcd", finish=STOP), id="a stop that may have won"),
        pytest.param(Reply(ids=None), Reply(ids=None, text="abcxyz"), id="another text to the end"),
        pytest.param(
            Reply(ids=None, finish=STOP),
            Reply(ids=None, text="abef", finish=STOP),
            id="another, shorter text",
        ),
    ],
)
def test_what_chance_explains(ours: Reply, theirs: Reply) -> None:
    first, second = whole(replace(ours, counted=False)), incremental(replace(theirs, counted=False))
    assert goes_apart((first.choices[0], second.choices[0]))


def in_texts(ids: Sequence[int], beside: float) -> Reply:
    """As OpenAI's completions tell of the likeliest: by their texts. The second one lies so far behind."""
    top = [{"own": -1.0, "other": -1.0 - beside, "third": -9.0} for _ in ids]
    numbers = {"token_logprobs": [-1.0 for _ in ids], "top_logprobs": top, "tokens": ["own" for _ in ids]}
    return of_ids(ids, series=numbers)


@pytest.mark.parametrize(("beside", "chance"), [(0.03, True), (3.0, False)])
def test_candidates_without_ids_may_be_the_id_that_won_elsewhere(beside: float, chance: bool) -> None:
    """None of them tells its id: the second may be the one that won, and a third is no bound."""
    pair = whole(in_texts(IDS, beside)).choices[0], whole(of_ids(APART)).choices[0]
    assert goes_apart(pair) is chance


# Numbers.


def moved(by: float) -> Reply:
    return Reply(series={"output_token_logprobs": [[entry[0] - by, *entry[1:]] for entry in logprobs()]})


SERIES = ("stream-series-equal-whole", "stream-is-legal-delivery")


@pytest.mark.parametrize("requirement", SERIES)
def test_numbers_are_held_to_what_repetitions_show(requirement: str) -> None:
    """A server whose logprobs vary by 0.002 is not held to 0.001; one that repeats every digit is."""
    theirs = copies(incremental(moved(0.0026)), "cd")
    steady = [*copies(whole(moved(0.0)), "ab"), *theirs]
    assert verdicts(requirement, *steady) == {Verdict.FAIL}
    assert verdicts(requirement, *steady[:-1]) == {Verdict.INCONCLUSIVE}
    varying = [*copies(whole(moved(0.0)), "a"), *copies(whole(moved(0.002)), "b"), *theirs]
    assert verdicts(requirement, *varying) == {Verdict.PASS}


def moved_beside(by: float) -> dict[str, Reply]:
    """Numbers that move by so much, where those of the sampled ids, which are as good as certain, do not."""
    sure = [[-0.001, token, None] for token in IDS]
    entries = [{"token": "a", "logprob": -0.001, "top_logprobs": [{"token": "b", "logprob": -7.0 - by}]}]
    return {
        "the likeliest": Reply(
            series={
                "output_token_logprobs": sure,
                "output_top_logprobs": [[[-0.001, token, None], [-7.0 - by, 90, None]] for token in IDS],
            }
        ),
        "chosen ids": Reply(
            series={
                "output_token_logprobs": sure,
                "output_token_ids_logprobs": [[[-7.0 - by, 5, None], [-9.0, 7, None]] for _ in IDS],
            }
        ),
        "chat": Reply(series={"logprobs_content": entries * len(IDS)}),
        "completions": Reply(series={"top_logprobs": [{"a": -0.001, "b": -7.0 - by} for _ in IDS]}),
        "the prompt": Reply(
            series={"output_token_logprobs": sure},
            prompt_series={"input_token_logprobs": [[None, 1, None], [-3.0 - by, 2, None], [-4.0, 3, None]]},
        ),
    }


@pytest.mark.parametrize("where", moved_beside(0.0))
def test_candidates_and_prompts_show_how_far_numbers_lie_apart(where: str) -> None:
    """Where ids are as good as certain, their own logprobs hardly move: the others are measured as well."""
    row = "stream-prompt-series-equal-whole" if where == "the prompt" else "stream-series-equal-whole"
    theirs = copies(incremental(moved_beside(0.0026)[where]), "cd")
    first, second = (whole(moved_beside(by)[where]) for by in (0.0, 0.002))
    assert verdicts(row, *copies(first, "ab"), *theirs) == {Verdict.FAIL}
    assert verdicts(row, *copies(first, "a"), *copies(second, "b"), *theirs) == {Verdict.PASS}


def test_a_dialect_whose_numbers_were_never_repeated_is_held_to_what_the_others_show() -> None:
    """One server computes them all. Answers that were repeated without numbers show nothing."""
    first, second = (named(whole(moved(by)), f"generate/{by}") for by in (0.0, 0.002))
    silent = [replace(copy, dialect="sglang-chat") for copy in copies(whole(), "ab")]
    noise = determinism([first, second, *silent]).noise
    assert noise.rounding(silent[0], "output_token_logprobs") == pytest.approx(0.008)
    assert determinism(silent).noise == Noise()


def test_one_request_whose_numbers_jump_widens_no_other_comparison() -> None:
    """As a penalty of SGLang that depends on the neighbours: 0.5 apart, in one request of the run."""
    jumping = [whole(moved(by), key="penalties") for by in (0.0, 0.5)]
    steady, streamed = whole(moved(0.0)), incremental(moved(0.002))
    streams = [
        *copies(jumping[0], "a"),
        *copies(jumping[1], "b"),
        *copies(steady, "cd"),
        *copies(streamed, "ef"),
    ]
    assert verdicts("stream-series-equal-whole", *streams) == {Verdict.FAIL}
    noise = determinism(streams).noise
    name = "output_token_logprobs"
    assert noise.rounding(steady, name) == ROUNDING
    assert noise.rounding(jumping[0], name) > 0.5


def test_noise_of_one_kind_or_endpoint_is_not_that_of_another() -> None:
    first, second = (whole(moved(by)) for by in (0.0, 0.002))
    there = [replace(copy, dialect="sglang-chat") for copy in (*copies(first, "c"), *copies(first, "d"))]
    noise = determinism([*copies(first, "a"), *copies(second, "b"), *there]).noise
    assert noise.rounding(first, "output_token_logprobs") == pytest.approx(0.008)
    assert noise.rounding(there[0], "output_token_logprobs") == ROUNDING


def test_candidates_under_one_name_are_not_taken_for_each_other() -> None:
    """Halves of characters are all written alike."""
    several = [[{"token": "\ufffd", "logprob": -7.0}, {"token": "\ufffd", "logprob": -8.0}]]
    turned = [several[0][::-1]]
    entries = [
        Reply(series={"logprobs_content": [{"token": "a", "logprob": -0.5, "top_logprobs": row}]})
        for row in (*several, *turned)
    ]
    found = determinism([*copies(whole(entries[0]), "a"), *copies(whole(entries[1]), "b")])
    assert not any(found.noise.furthest.values())


def test_numbers_that_vary_like_those_of_different_positions_tell_nothing() -> None:
    varying = [*copies(whole(moved(0.0)), "a"), *copies(whole(moved(0.3)), "b")]
    streams = [*varying, *copies(incremental(moved(1.0)), "cd")]
    assert verdicts("stream-series-equal-whole", *streams) == {Verdict.INCONCLUSIVE}


def test_entries_of_another_position_are_no_noise() -> None:
    late = Reply(series={"output_token_logprobs": [logprobs()[0], *logprobs()[:-1]]})
    streams = [*copies(whole(moved(0.0)), "a"), *copies(incremental(late), "c")]
    assert verdicts("stream-series-equal-whole", *streams) == {Verdict.FAIL}


# Candidates as good as equally likely.

COLD = [[-9.5481, 1876, None], [-9.567481994628906, 741, None]]
WARM = [[-9.5481, 1876, None], [-9.567498207092285, 289, None]]
"""What SGLang 0.5.23 answered to one prompt, cold and from its cache."""


def test_tied_candidates_may_change_places_and_the_last_with_one_that_is_not_listed() -> None:
    assert alike(COLD, WARM, 1e-4)
    slow = [[-9.548023, 1876], [-9.548024, 535], [-9.548025, 1712]]
    assert alike(slow, [[-9.548028, 1876], [-9.548029, 1712], [-9.548029, 535]], 1e-4)
    assert alike({"a": -1.0, "b": -2.0, "c": -2.00001}, {"a": -1.0, "b": -2.0, "d": -2.0}, 1e-4)


def test_a_name_of_several_candidates_may_hide_the_one_that_another_answer_lists() -> None:
    hidden, listed = {"\ufffd": -2.0026817}, {"\ufffd": -2.0029108, "ion": -3.0297052}
    assert alike(hidden, listed, 1e-3), "halves of characters have one name"
    assert alike(listed, hidden, 1e-3)
    assert alike({"\ufffd": -3.0297}, listed, 1e-3), "and either of the two logprobs"
    ours, theirs = {"ay": -1.5568, "": -2.9390}, {"ay": -1.5568, "": -2.9391, " o": -3.4746}
    assert alike(ours, theirs, 1e-3), "or no name"


def test_a_name_of_several_candidates_shows_no_rounding() -> None:
    for name in ("\ufffd", ""):
        assert apart({name: -2.0, "a": -1.0}, {name: -3.0, "a": -1.001}) == pytest.approx(0.001)


def test_what_no_shared_name_hides_is_no_chance() -> None:
    listed = {"\ufffd": -2.0, "ion": -3.0}
    assert not alike({"\ufffd": -3.5}, {"\ufffd": -3.5, "ion": -3.0}, 1e-3), "the likelier is listed"
    assert not alike({"\ufffd": -2.0, "a": -2.5}, {**listed, "a": -2.6}, 1e-3), "another number"
    assert not alike({"a": -2.0}, {"a": -2.0, "ion": -3.0}, 1e-3), "one id has this name"
    assert not alike({}, listed, 1e-3)


def test_candidates_that_are_not_tied_may_not() -> None:
    assert not alike(COLD, [WARM[0], [-9.5685, 289, None]], 1e-4)
    assert not alike(COLD, [[-9.5481, 741, None], [-9.567481994628906, 1876, None]], 1e-4)
    assert not alike(COLD, [[-9.5481, 777, None], COLD[1]], 1e-4)
    assert not alike({"a": -1.0, "b": -2.0}, {"a": -1.0, "b": -2.0, "c": -2.0}, 1e-4)


# One answer alone.


def budgeted(budget: int, reply: Reply, name: str) -> Stream:
    return named(whole(reply, max_new_tokens=budget, prompt_key="p"), f"generate/{name}")


def test_one_answer_alone_does_not_say_where_a_choice_stops() -> None:
    """An answer that was aborted, and says stop, is the one with the largest budget."""
    cut = budgeted(440, Reply(ids=IDS[:3], text="abc", finish=STOP), "aborted")
    others = [budgeted(6, Reply(), "a"), budgeted(6, Reply(), "b")]
    assert Verdict.FAIL not in verdicts("stop-wins-within-the-budget", cut, *others)
    known = [budgeted(440, Reply(ids=IDS[:3], text="abc", finish=STOP), f"stops-{i}") for i in range(2)]
    assert verdicts("stop-wins-within-the-budget", *known, budgeted(3, of_ids(IDS[:3], "abc"), "a")) == {
        Verdict.FAIL
    }


def test_a_delivery_that_is_not_legal_names_the_whole_answer_too() -> None:
    streams = [*copies(whole(), "a"), *copies(incremental(Reply(ids=IDS[:5], text="abcde")), "c")]
    (judgement,) = judged("stream-is-legal-delivery", *streams)
    assert judgement.verdict is Verdict.FAIL
    assert [place.exchange for place in judgement.violations[0].related] == ["generate/a"]


def test_a_side_that_answers_in_two_ways_elsewhere_is_no_measure_for_what_differs_by_chance() -> None:
    elsewhere = [whole(item, key="other") for item in (Reply(), of_ids(APART), of_ids(APART))]
    flips = [named(item, f"generate/elsewhere-{number}") for number, item in enumerate(elsewhere)]
    ours, theirs = (copies(whole(item), "x1234567") for item in (Reply(), of_ids(APART)))
    (calm, *_) = side_by_side(ours[:1], theirs[:1])
    (known, *_) = side_by_side([*ours, *flips], theirs)
    assert (calm.steady, known.steady) == (True, True)
    (few, *_) = side_by_side([*ours[:2], *flips], theirs)
    (also_few, *_) = side_by_side([*ours, *flips], theirs[:2])
    assert (few.steady, also_few.steady) == (False, False)


def test_a_probe_that_was_repeated_counts_wherever_it_stands_among_repeated_requests() -> None:
    probe, other = [
        [named(with_exchange(whole(key=key), scenario=key), f"generate/{key}-{number}") for number in "ab"]
        for key in (PROBE, "other")
    ]
    assert determinism([*probe, *other]).probed
    assert determinism([*other, *probe]).probed
    assert not determinism([*other, probe[0]]).probed


def test_numbers_that_lie_exactly_the_tolerance_apart_are_one() -> None:
    for first, other in ((1.0, 1.25), (1.25, 1.0), (-1.0, -1.25), (1, 1.25), (1.25, 1)):
        assert alike(first, other, 0.25)
        assert not alike(first, other, 0.24)
    assert not alike(1, 2, 5.0), "integers are not measured"


def test_two_of_three_streams_that_agree_are_a_repetition_and_whole_answers_must_all_agree() -> None:
    for build, repeated, contradicted in ((incremental, {"key"}, set()), (whole, set(), {"key"})):
        three = [*copies(build(), "ab"), *copies(build(of_ids(APART)), "c")]
        found = determinism(three)
        assert (found.repeated, found.contradicted) == (repeated, contradicted)


def test_an_id_that_is_not_among_the_listed_is_less_likely_than_all_of_them() -> None:
    """With the runners-up told, two ids with the same logprob in two answers are seen to be no tie."""

    def found(ids: Sequence[int], *, listed: bool) -> dict[str, object]:
        top = {"output_top_logprobs": top_logprobs(ids)} if listed else {}
        return {"series": {"output_token_logprobs": logprobs(ids), **top}}

    for listed in (False, True):
        first = whole(of_ids(IDS, "abcdef", **found(IDS, listed=listed)))
        second = incremental(of_ids(APART, **found(APART, listed=listed)))
        assert goes_apart((first.choices[0], second.choices[0])) is not listed


@pytest.mark.parametrize("wrong", [[13], {"id": 13}, "13"])
def test_an_id_that_is_none_tells_nothing_of_a_near_tie(wrong: Any) -> None:
    """Unhashable ones among them: a check that raised for them would be a fault of ours."""
    odd = [*IDS[:2], wrong, *IDS[3:]]
    series = {"output_token_logprobs": logprobs(odd), "output_top_logprobs": top_logprobs(odd)}
    first, second = whole(Reply(series=series)), whole(Reply(ids=odd, series=series))
    assert goes_apart((first.choices[0], second.choices[0]))


def test_a_stream_is_held_against_the_whole_answer_that_tells_as_much() -> None:
    reply = Reply(details={"request_id": "r-1", "hidden_states": [[0.5]]})
    plain, rich = copies(whole(key="k"), ["plain"])[0], named(whole(reply, key="k"), "generate/rich")
    stream = named(incremental(reply, key="k"), "generate/stream")
    [pair] = Run((plain, rich, stream)).comparisons
    assert (pair.baseline.exchange.name, pair.other.exchange.name) == ("generate/rich", "generate/stream")


# Texts without ids: a loss, or another answer.

TEXT = "stream-text-equals-whole"


def said(text: str, name: str, *, key: str = "k", stream: bool = False) -> Stream:
    reply = Reply(ids=None, text=text, counters={}, counted=False)
    answer = (incremental if stream else whole)(reply, key=key, max_new_tokens=6)
    return named(answer, f"generate/{name}")


def test_texts_of_a_server_that_answers_at_random_are_no_loss() -> None:
    """Dynamo's mocker: most of its texts are empty, and an empty text is a part of each other one."""
    run = live_run("dynamo-random")
    assert run.determinism.random
    for requirement in (TEXT, "endpoints-agree-on-channels"):
        found = judge([run], [load_requirements()[requirement]])
        assert {judgement.verdict for judgement in found} <= {Verdict.INCONCLUSIVE, Verdict.PASS}
        assert any("did not repeat itself" in judgement.message for judgement in found)


@pytest.mark.parametrize(
    ("wholes", "streamed", "verdict"),
    [
        (["prec pass", "log='"], "", Verdict.INCONCLUSIVE),
        (["abcdef", "abcxyz"], "abc", Verdict.INCONCLUSIVE),
        (["abcdef", "abcxyz"], "abef", Verdict.FAIL),
        (["abcdef", "abcxyz"], "", Verdict.FAIL),
        (["abcdef", "abcdef"], "abc", Verdict.FAIL),
    ],
    ids=[
        "all differs",
        "the rest differs",
        "a piece is lost before",
        "all is lost",
        "the whole answers agree",
    ],
)
def test_a_text_that_lacks_a_piece_is_a_loss_unless_whole_answers_part_there(
    wholes: list[str], streamed: str, verdict: Verdict
) -> None:
    answers = [said(text, f"whole-{number}") for number, text in enumerate(wholes)]
    assert verdicts(TEXT, *answers, said(streamed, "stream", stream=True)) == {verdict}


def test_a_few_other_answers_elsewhere_excuse_no_loss() -> None:
    """Near ties: one of ten repetitions is another answer."""
    steady = [said("abcdef", f"steady-{n}", key="steady") for n in range(9)]
    other = [said(text, f"other-{text}", key="other") for text in ("xyz", "uvw")]
    lost = [said("abcdef", "whole"), said("abf", "stream", stream=True)]
    assert verdicts(TEXT, *steady, *other, *lost) == {Verdict.FAIL}


def test_answers_to_other_chosen_ids_are_not_compared() -> None:
    """The logprobs of other ids differ, although all other series are the same."""
    listed = {ids: [[[-1.0 - i, i, None] for i in ids]] * len(IDS) for ids in ((8, 9), (9, 8))}
    options: dict[str, Any] = {"key": "k", "logprobs": True}
    first, second = (
        whole(Reply(series={"output_token_ids_logprobs": rows}), chosen_ids=ids, **options)
        for ids, rows in listed.items()
    )
    reply = Reply(series={"output_token_ids_logprobs": listed[9, 8]})
    stream = incremental(reply, chosen_ids=(9, 8), **options)
    assert Run((named(first, "generate/first"), stream)).comparisons == []
    named_apart = (named(first, "generate/first"), named(second, "generate/second"), stream)
    [pair] = Run(named_apart).comparisons
    assert pair.baseline.asked.chosen_ids == (9, 8)
