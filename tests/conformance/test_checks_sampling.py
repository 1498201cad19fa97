"""Sampling: what a proof takes, and where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from live_captures import judged, live_run
from sampling_pairs import GREEDY, OTHER_IDS, SURE, answer, biased, scored, truncated, warm
from stream_builder import IDS, STOP, Reply, named, whole

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.scenarios.batch import stops_apart


def seen(requirement: str, *streams: Stream) -> list[Observation]:
    check = CHECKS[requirement]
    if check.on_run is not None:
        found = check.on_run(streams, Target())
        return [item for item in found if not (item.condition_only and item.message)]
    assert check.on_stream is not None
    return [item for stream in streams for item in check.on_stream(stream, Target())]


def test_what_is_drawn_as_the_greedy_answer_shows_neither_seed_nor_temperature() -> None:
    """The seed was kept by greedy answers, and a temperature that was asked for `did not happen`."""
    run = live_run("hf-temperature")
    for requirement, why in (
        ("seed-is-kept", "the output is the same greedily or without the seed"),
        (
            "temperature-is-kept",
            "all 3 answers at temperature 1 are the greedy one, and its probability is not reported",
        ),
    ):
        (judgement,) = judged(run, requirement)
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert why in judgement.message


def test_a_model_that_is_sure_of_its_tokens_proves_nothing() -> None:
    sure = scored(logprob=SURE)
    greedy = answer("one/greedy", sure)
    assert seen("temperature-is-kept", greedy, warm("one/warm", sure), warm("two/warm", sure)) == []
    assert seen("samples-are-drawn-apart", warm("one/samples", sure, sure)) == []


def test_without_logprobs_answers_that_are_alike_prove_nothing() -> None:
    untold = Reply()
    assert seen("temperature-is-kept", answer("one/greedy", untold), warm("one/warm", untold)) == []
    assert seen("samples-are-drawn-apart", warm("one/samples", untold, untold)) == []


def test_ids_and_a_text_are_not_another_output() -> None:
    """One of two requests asked for ids; what both tell is the text."""
    asked: dict[str, Any] = {"seed": 7, "key": "seeded"}
    with_ids, in_words = warm("one/ids", Reply(), **asked), warm("one/words", Reply(ids=None), **asked)
    other = warm("one/other", Reply(ids=None, text="another"), **asked)
    assert [found.holds for found in seen("seed-is-kept", with_ids, in_words)] == [True]
    assert [found.holds for found in seen("seed-is-kept", with_ids, other)] == [False]


def test_a_fixed_seed_of_the_server_makes_no_greedy_answers() -> None:
    """Answers that depend on each other are alike, and need not be the greedy one."""
    fixed = scored(OTHER_IDS)
    assert all(
        observation.holds
        for observation in seen(
            "temperature-is-kept", GREEDY, warm("one/warm", fixed), warm("two/warm", fixed)
        )
    )


def test_a_seed_a_bias_and_a_truncation_are_left_aside() -> None:
    asides: list[dict[str, Any]] = [
        {"seed": 7},
        {"top_k": 2},
        {"other_sampling": "bias"},
        {"temperature": 0.5},
    ]
    for asked in asides:
        stream = warm("one/warm", scored(), **asked)
        assert seen("temperature-is-kept", GREEDY, stream) == []


def test_ids_that_nearly_tie_may_have_changed_places() -> None:
    rows = [[[-0.70, 90, None], [-0.72, 11, None]]]
    tied = Reply(
        ids=IDS[:1],
        text="a",
        series={"output_token_logprobs": [[-0.72, 11, None]], "output_top_logprobs": rows},
    )
    assert all(observation.holds for observation in seen("truncation-is-kept", truncated(tied, top_k=1)))


def test_an_excluded_id_that_would_not_have_come_is_no_witness() -> None:
    assert seen("logit-bias-is-kept", answer("one/natural", Reply()), biased(Reply(), _99=-100.0)) == []


def test_a_text_that_repeats_itself_anyway_tells_nothing_of_a_bias() -> None:
    loop = Reply(ids=None, text="xxxxxx")
    assert seen("logit-bias-is-kept", answer("one/natural", loop), biased(loop, _40=100.0)) == []


def test_a_stop_string_may_end_a_choice_before_its_least_tokens() -> None:
    early = whole(Reply(finish=STOP), min_new_tokens=7, stop_token_ids=(16,), stop=("f",), max_new_tokens=9)
    assert seen("min-new-tokens-are-kept", named(early, "one/early")) == []


def test_stops_end_the_last_answer_early_and_others_later() -> None:
    answers = [(1, 2, 3, 4, 5, 6), (1, 2, 3, 9, 9, 9), (7, 8, 1, 2, 3, 4)]
    assert stops_apart(answers) == (8, 5)
    assert stops_apart([(1, 2, 3)] * 2) == ()


def test_an_endpoint_that_repeats_itself_has_to_keep_seeds_though_another_does_not() -> None:
    asked = {"greedy": False, "temperature": 1.0, "seed": 7, "key": "seeded"}
    seeded = [named(whole(**asked), "one"), named(whole(Reply(ids=OTHER_IDS), **asked), "two")]
    unsteady = named(whole(key="unsteady"), "greedy")
    target = Target(contradicted=frozenset({"unsteady"}))
    check = CHECKS["seed-is-kept"].on_run
    assert check is not None
    elsewhere = replace(unsteady, dialect="sglang-chat")
    assert [observation.holds for observation in check((*seeded, elsewhere), target)] == [False]
    left_out = list(check((*seeded, unsteady), target))
    assert {observation.condition_only for observation in left_out} == {True}
    assert "answers one greedy request differently" in left_out[0].message
