"""Ends of the model: other answers show if an answer that spent its budget was ended by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stream_builder import LENGTH, STOP, Reply, named, whole
from test_checks_pairs import observe

from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Finish, Stream
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements

ROW = "stop-wins-within-the-budget"
FIXTURES = Path(__file__).parents[2] / "fixtures"
END, OTHER = 2, 7


def answer(name: str, ids: tuple[int, ...], finish: Finish, budget: int, **asked: object) -> Stream:
    """An answer to a prompt of its own, which only the model or the budget may end."""
    wanted = {"ignore_eos": False, "stop": (), "prompt_key": name, "key": name} | asked
    reply = Reply(ids=ids, text="abcdefgh"[: len(ids)], finish=finish)
    return named(whole(reply, max_new_tokens=budget, **wanted), f"generate/{name}")


ENDED = [answer(f"ended-{n}", (5, 6 + n, END), STOP, 9) for n in range(2)]
GOES_ON = answer("goes-on", (5, OTHER, 5, 6), LENGTH, 4)


def seen(*streams: Stream) -> list[Observation]:
    return [found for found in observe(ROW, streams) if found.place.exchange == "generate/spent"]


@pytest.mark.parametrize(("finish", "holds"), [(STOP, True), (LENGTH, False)])
def test_an_end_that_spends_the_budget_is_a_stop(finish: Finish, holds: bool) -> None:
    (found,) = seen(*ENDED, answer("spent", (5, END), finish, 2))
    assert (found.holds, found.expected) == (holds, "stop")
    assert seen(ENDED[0], answer("spent", (5, END), finish, 2)) == [], "one stop may be of another cause"


def test_an_id_that_others_go_on_behind_is_no_end() -> None:
    """The finish of 2 of 630 answers was another, and nothing of their requests knew where they end."""
    (found,) = seen(GOES_ON, answer("spent", (5, OTHER), STOP, 2))
    assert (found.holds, found.expected) == (False, "length")
    assert (
        found.message == "finished with stop at its budget of 2; its last id, 7, does not end other answers"
    )
    assert seen(GOES_ON, answer("spent", (5, OTHER), LENGTH, 2)) == [], "that shows no end"
    assert seen(answer("spent", (5, OTHER), STOP, 2)) == []


@pytest.mark.parametrize(
    "asked",
    [{"stop": ("b",)}, {"stop_token_ids": (OTHER,)}, {"stop_regex": ("b",)}, {"ignore_eos": True}],
    ids=lambda asked: next(iter(asked)),
)
def test_what_its_request_may_have_ended_is_not_held_to_the_ends_of_the_model(
    asked: dict[str, object],
) -> None:
    assert seen(GOES_ON, answer("spent", (5, OTHER), STOP, 2, **asked)) == []


def test_what_ignored_its_end_or_is_another_endpoint_shows_no_ends() -> None:
    spent = answer("spent", (5, OTHER), STOP, 2)
    for asked in ({"ignore_eos": True}, {"min_new_tokens": 3}):
        assert seen(answer("goes-on", (5, OTHER, 5, 6), LENGTH, 4, **asked), spent) == []
    assert seen(replace(GOES_ON, dialect="vllm-generate"), spent) == []


def test_a_finish_that_was_exchanged_in_a_recorded_run_is_seen() -> None:
    (run,) = replay([FIXTURES / "sglang" / "0.5.23" / "A_base.jsonl.gz"]).runs
    row = [load_requirements()[ROW]]
    assert Verdict.FAIL not in {judgement.verdict for judgement in judge([run], row)}
    spent = [
        number
        for number, stream in enumerate(run.streams)
        if len(stream.choices) == 1
        and stream.asked.key
        and not stream.asked.ignore_eos
        and (finish := stream.choices[0].finish) is not None
        and finish.type == "length"
        and stream.choices[0].output_ids
    ]
    found = 0
    for number in spent[:6]:
        stream = run.streams[number].load()
        choice = stream.choices[0]
        last = replace(choice.emissions[-1], finish=STOP)
        other = replace(stream, choices=(replace(choice, emissions=(*choice.emissions[:-1], last)),))
        streams = (*run.streams[:number], other, *run.streams[number + 1 :])
        found += Verdict.FAIL in {
            judgement.verdict for judgement in judge([Run(streams, run.advertised, calls=run.calls)], row)
        }
    assert found == 5, "the last id of the sixth stands nowhere else"
