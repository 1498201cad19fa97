"""The engine: the ids of an answer, and what each step of a schedule brings."""

import pytest

from tokenwire.parrot.law import Parrot
from tokenwire_engine.engine import (
    PATIENCE_STEPS,
    Emitted,
    Engine,
    EngineDiedError,
    Outcome,
    Running,
    Sampling,
    answer,
    rank,
)
from tokenwire_engine.front_end import UncomputedError, refusal
from tokenwire_engine.schedule import parse_schedule

LAW = Parrot(768, 64)
PROMPT = tuple(range(100, 164))
"""As long as the largest lag: it is said again from its beginning."""


def running(schedule: str, budget: int = 6, name: str = "r") -> Running:
    return Running(name, PROMPT, answer(LAW, PROMPT, Sampling(budget=budget)), parse_schedule(schedule))


def played(*requests: Running, most: int = 40) -> list[list[Emitted]]:
    """What each step brings until all requests ended."""
    engine = Engine()
    for request in requests:
        engine.add(request)
    steps = []
    while engine.requests:
        assert len(steps) < most, "the schedule does not end"
        steps.append([emitted for _, emitted in engine.step()])
    return steps


def counts(schedule: str, budget: int = 6) -> list[list[int]]:
    """The tokens of each output, step by step."""
    return [[len(emitted.ids) for emitted in step] for step in played(running(schedule, budget))]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("", [[1]] * 6),
        ("steps=2,1,4", [[2], [1], [3]]),
        ("steps=1,0,2", [[1], [], [2], [2], [1]]),
        ("steps=8", [[6]]),
        ("wait=2;steps=3", [[], [], [3], [3]]),
        ("steps=3;late", [[3], [3], [0]]),
        ("hold=4", [[], [], [], [1, 1, 1, 1], [], [1, 1]]),
        ("steps=2;retract=2", [[2], [], [], [], [], [], [2], [2]]),
        ("steps=4;abort=5", [[4], [1]]),
        ("steps=4;abort=5;late", [[4], [1], [0]]),
        ("steps=4;error=4", [[4]]),
        ("abort=0", [[0]]),
    ],
)
def test_steps_bring_what_the_schedule_says(schedule: str, expected: list[list[int]]) -> None:
    assert counts(schedule) == expected


@pytest.mark.parametrize(
    ("schedule", "outcome"),
    [
        ("", Outcome("length")),
        ("abort=3", Outcome("abort")),
        ("error=3:503", Outcome("error", status=503)),
        ("repeat=3;late", Outcome("repeat")),
    ],
)
def test_the_last_output_has_the_outcome_and_no_other(schedule: str, outcome: Outcome) -> None:
    emitted = [one for step in played(running(schedule)) for one in step]
    assert [one.outcome for one in emitted[:-1]] == [None] * (len(emitted) - 1)
    assert emitted[-1].outcome == outcome


@pytest.mark.parametrize(
    "schedule", ["", "steps=5", "steps=2,0,1;hold=2", "retract=1;late", "wait=3;steps=4,1"]
)
def test_the_ids_do_not_depend_on_the_schedule(schedule: str) -> None:
    emitted = [one for step in played(running(schedule)) for one in step]
    assert tuple(token for one in emitted for token in one.ids) == PROMPT[:6]
    assert [one.start for one in emitted] == [
        sum(len(e.ids) for e in emitted[:i]) for i in range(len(emitted))
    ]
    assert [one.is_first for one in emitted] == [True, *[False] * (len(emitted) - 1)]


def test_a_batch_starts_once_it_is_there() -> None:
    engine = Engine()
    engine.add(running("join=2:pair", name="a"))
    engine.add(running("join=2:other", name="x"))
    assert list(engine.step()) == []
    assert engine.requests
    engine.add(running("join=2:pair;steps=2", name="b"))
    assert [(request.name, len(emitted.ids)) for request, emitted in engine.step()] == [("a", 1), ("b", 2)]


def test_a_batch_that_stays_incomplete_starts_after_some_patience() -> None:
    """The requests of a batch that killed a front end are repeated one by one."""
    engine = Engine()
    engine.add(running("join=2:pair", name="a"))
    assert [list(engine.step()) for _ in range(PATIENCE_STEPS)] == [[]] * PATIENCE_STEPS
    assert [request.name for request, _ in engine.step()] == ["a"]
    engine.add(running("join=2:pair", name="b"))
    assert [request.name for request, _ in engine.step()] == ["a"], "the next one waits for another"


def test_a_request_is_taken_from_wherever_it_is() -> None:
    engine = Engine()
    engine.add(running("join=2:pair", name="a"))
    engine.add(running("", name="b"))
    assert engine.take("a") is not None
    engine.add(running("join=2:pair", name="c"))
    assert set(engine.running) == {"b"}, "a batch whose other half left would start alone"
    assert engine.take("b") is not None
    assert engine.take("b") is None


def test_an_order_to_end_comes_before_the_schedule() -> None:
    request = running("wait=9")
    request.end(Outcome("abort"))
    assert request.step() == [Emitted(0, (), Outcome("abort"), is_first=True)]


def test_a_schedule_ends_the_engine_itself() -> None:
    request = running("steps=2;die=3")
    assert len(request.step()) == 1
    with pytest.raises(EngineDiedError, match="r"):
        request.step()


def test_drafts_are_counted_as_accepted() -> None:
    request = running("steps=3,1,2;drafts=2")
    while not (request.step() or [None])[-1].outcome:  # type: ignore[union-attr]
        pass
    assert request.accepted == [2, 0, 1]


def test_a_law_of_biases_penalties_and_bars() -> None:
    plain = answer(LAW, PROMPT, Sampling(budget=3))
    assert (plain.ids, plain.likeliest) == (PROMPT[:3], PROMPT[:3])
    biased = answer(LAW, PROMPT, Sampling(budget=3, bias={700: 100.0}))
    assert (biased.ids, biased.likeliest) == ((700,) * 3, PROMPT[:3])
    allowed = answer(LAW, PROMPT, Sampling(budget=2, allowed=frozenset({5})))
    assert allowed.ids == (5, 5)
    same = (100,) * 64
    assert answer(LAW, same, Sampling(budget=3, presence=10.0)).ids == (100, 101, 102)
    assert answer(LAW, same, Sampling(budget=3, frequency=3.0)).ids == (100, 100, 101)
    assert answer(LAW, same, Sampling(budget=1, repetition=6.0)).ids == (101,)
    stopped = answer(LAW, PROMPT, Sampling(budget=6, ends=frozenset({102})))
    assert (stopped.ids, stopped.outcome) == (PROMPT[:3], Outcome("stop", 102))
    ends = frozenset({100, 101})
    barred = answer(LAW, PROMPT, Sampling(budget=3, least=2, ends=ends, barred=ends))
    assert not ends.intersection(barred.ids)
    assert barred.likeliest == PROMPT[:3]
    with pytest.raises(UncomputedError, match="does not compute an answer for which all ids are excluded"):
        answer(LAW, PROMPT, Sampling(budget=1, allowed=frozenset()))


@pytest.mark.parametrize("prompt", [(), (100, -1), (100, LAW.vocab_size)])
def test_a_prompt_of_other_ids_than_the_parrots_is_refused(prompt: tuple[int, ...]) -> None:
    with pytest.raises(UncomputedError, match="ids outside of the vocabulary"):
        answer(LAW, prompt, Sampling(budget=1))


def test_a_failure_is_told_as_its_kind() -> None:
    assert refusal(UncomputedError("a bias")) == ("this engine does not compute a bias", 400)
    assert refusal(ValueError("7 is not a name")) == ("7 is not a name", 400)
    assert refusal(TypeError("no number")) == ("TypeError: no number", 500)


def test_the_answer_is_that_of_the_law() -> None:
    for length in (1, 7, 16, 40, 64, 90):
        prompt = tuple((place * 37) % 700 for place in range(length))
        assert answer(LAW, prompt, Sampling(budget=80)).ids == LAW.answer(prompt, 80)


def test_the_rank_of_what_is_said_is_the_first() -> None:
    assert rank(LAW, 200, 200) == 1
    second = LAW.top(200, 2)[1][0]
    assert rank(LAW, 200, second) == 2
