"""The acceptor: every legal cut of a record is accepted, every single edit of one is refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokenwire.checks.acceptor import Delivered, Record, Rules, accept
from tokenwire.record import Delivery
from tokenwire.target.alike import alike, apart

INCREMENTAL, CUMULATIVE = Delivery.INCREMENTAL, Delivery.CUMULATIVE


def record_of_length(length: int) -> Record:
    """A record in which no two positions are alike, so that every edit shows."""
    return Record(
        output_ids=tuple(range(100, 100 + length)),
        text="".join(chr(0x4E00 + position) for position in range(length)),
        series={
            "logprobs": tuple([-1.0 - position, 100 + position, None] for position in range(length)),
            "mirror": tuple(100 + position for position in range(length)),
        },
        finish="length",
    )


def deliver(record: Record, cuts: Sequence[int], texts: Sequence[int], mode: Delivery) -> list[Delivered]:
    """The record cut behind the given numbers of ids and characters; the last emission carries the finish."""
    emissions = []
    ids_before = text_before = 0
    assert record.output_ids is not None
    assert record.text is not None
    for ids, text in zip(cuts, texts, strict=True):
        start = ids_before if mode is INCREMENTAL else 0
        emissions.append(
            Delivered(
                output_ids=record.output_ids[start:ids],
                text=record.text[text_before if mode is INCREMENTAL else 0 : text],
                series={name: entries[start:ids] for name, entries in record.series.items()},
                completion_tokens=ids,
            )
        )
        ids_before, text_before = ids, text
    emissions[-1] = replace(emissions[-1], finish=record.finish)
    return emissions


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[Record, list[Delivered], Rules]:
    """A legal delivery: sizes drawn by the interval rule, text that lags behind the ids as it likes."""
    mode = draw(st.sampled_from([INCREMENTAL, CUMULATIVE]))
    interval = draw(st.integers(1, 5))
    sizes = [
        draw(st.integers(1, 6)),
        *draw(st.lists(st.just(0) | st.integers(interval, interval + 4), max_size=5)),
        draw(st.integers(0, 6)),
    ]
    cuts = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    record = record_of_length(cuts[-1])
    texts: list[int] = []
    for cut in cuts[:-1]:
        texts.append(draw(st.integers(texts[-1] if texts else 0, cut)))
    texts.append(cuts[-1])
    known = draw(st.sampled_from([None, interval]))
    return record, deliver(record, cuts, texts, mode), Rules(mode, interval=known)


@given(deliveries())
@settings(deadline=None)
def test_every_legal_cut_is_accepted(delivery: tuple[Record, list[Delivered], Rules]) -> None:
    acceptance = accept(*delivery)
    assert acceptance.legal, acceptance


def _carries_something(emission: Delivered) -> bool:
    return bool(emission.output_ids or emission.text)


@given(deliveries(), st.data())
@settings(deadline=None)
def test_a_dropped_emission_is_refused(
    delivery: tuple[Record, list[Delivered], Rules], data: st.DataObject
) -> None:
    record, emissions, rules = delivery
    index = data.draw(st.integers(0, len(emissions) - 1))
    last = index == len(emissions) - 1
    assume(last or (rules.mode is INCREMENTAL and _carries_something(emissions[index])))
    acceptance = accept(record, emissions[:index] + emissions[index + 1 :], rules)
    assert not acceptance.legal
    assert acceptance.index is not None
    assert acceptance.index >= index, "the emissions before the gap are legal"


@given(deliveries(), st.data())
@settings(deadline=None)
def test_a_repeated_emission_is_refused(
    delivery: tuple[Record, list[Delivered], Rules], data: st.DataObject
) -> None:
    record, emissions, rules = delivery
    index = data.draw(st.integers(0, len(emissions) - 1))
    last = index == len(emissions) - 1
    assume(last or (rules.mode is INCREMENTAL and _carries_something(emissions[index])))
    acceptance = accept(record, [*emissions[: index + 1], *emissions[index:]], rules)
    assert (acceptance.legal, acceptance.index) == (False, index + 1)


@given(deliveries(), st.data())
@settings(deadline=None)
def test_swapped_emissions_are_refused(
    delivery: tuple[Record, list[Delivered], Rules], data: st.DataObject
) -> None:
    record, emissions, rules = delivery
    index = data.draw(st.integers(0, len(emissions) - 2))
    first, second = emissions[index], emissions[index + 1]
    assume(second.finish is not None or (_carries_something(first) and first.output_ids != second.output_ids))
    assume(second.finish is not None or second.output_ids)
    assume(_carries_something(first) or rules.mode is not INCREMENTAL)  # nothing may follow the finish
    acceptance = accept(record, [*emissions[:index], second, first, *emissions[index + 2 :]], rules)
    assert not acceptance.legal
    assert acceptance.index in {index, index + 1}


@given(deliveries(), st.sampled_from(["logprobs", "mirror"]), st.sampled_from([-1, 1]), st.data())
@settings(deadline=None)
def test_a_series_out_of_lockstep_is_refused(
    delivery: tuple[Record, list[Delivered], Rules], name: str, by: int, data: st.DataObject
) -> None:
    record, emissions, rules = delivery
    index = data.draw(st.integers(0, len(emissions) - 1))
    entries = list(emissions[index].series[name])
    assume(entries)
    edited = entries[:-1] if by < 0 else [*entries, entries[-1]]
    emissions[index] = replace(emissions[index], series={**emissions[index].series, name: edited})
    acceptance = accept(record, emissions, rules)
    assert (acceptance.legal, acceptance.index, acceptance.field) == (False, index, name)


@given(deliveries(), st.data())
@settings(deadline=None)
def test_a_series_shifted_by_one_is_refused(
    delivery: tuple[Record, list[Delivered], Rules], data: st.DataObject
) -> None:
    record, emissions, rules = delivery
    index = data.draw(st.integers(0, len(emissions) - 1))
    entries = list(emissions[index].series["mirror"])
    assume(entries)
    emissions[index] = replace(
        emissions[index], series={**emissions[index].series, "mirror": [entry + 1 for entry in entries]}
    )
    acceptance = accept(record, emissions, rules)
    assert (acceptance.legal, acceptance.index, acceptance.field) == (False, index, "mirror")


@given(deliveries(), st.data())
@settings(deadline=None)
def test_a_changed_id_is_refused(
    delivery: tuple[Record, list[Delivered], Rules], data: st.DataObject
) -> None:
    record, emissions, rules = delivery
    index = data.draw(st.integers(0, len(emissions) - 1))
    ids = list(emissions[index].output_ids or ())
    assume(ids)
    position = data.draw(st.integers(0, len(ids) - 1))
    ids[position] = data.draw(st.sampled_from([7, str(ids[position]), float(ids[position]), None]))
    emissions[index] = replace(emissions[index], output_ids=ids)
    acceptance = accept(record, emissions, rules)
    assert (acceptance.legal, acceptance.index, acceptance.field) == (False, index, "output_ids")


@given(deliveries())
@settings(deadline=None)
def test_a_late_or_missing_finish_is_refused(delivery: tuple[Record, list[Delivered], Rules]) -> None:
    record, emissions, rules = delivery
    unfinished = [*emissions[:-1], replace(emissions[-1], finish=None)]
    without = accept(record, unfinished, replace(rules, interval=None))
    assert (without.legal, without.index, without.field) == (False, len(emissions), "finish")
    early = [replace(emission, finish="length") for emission in emissions[:1]] + emissions[1:]
    acceptance = accept(record, early, rules)
    assert not acceptance.legal
    more = next(
        index for index, item in enumerate(emissions[1:], 1) if _carries_something(item) or item.finish
    )
    assert acceptance.index in {0, 1, more}


def rules(mode: Delivery = INCREMENTAL, **options: Any) -> Rules:
    return Rules(mode, **options)


_RECORD = record_of_length(6)
_TEXT = _RECORD.text or ""


@pytest.mark.parametrize(
    ("emissions", "rule", "index", "reason"),
    [
        pytest.param(
            deliver(_RECORD, [1, 3, 6], [1, 3, 6], INCREMENTAL),
            rules(interval=3),
            1,
            "carries 2 new ids under an interval of 3",
            id="too-few",
        ),
        pytest.param(
            deliver(_RECORD, [0, 6], [0, 6], CUMULATIVE),
            rules(CUMULATIVE),
            0,
            "carries no id",
            id="empty-first",
        ),
        pytest.param(
            deliver(_RECORD, [4, 2, 6], [4, 4, 6], CUMULATIVE),
            rules(CUMULATIVE),
            1,
            "goes back to 2 ids",
            id="back",
        ),
        pytest.param(
            deliver(_RECORD, [4, 5, 6], [4, 2, 6], CUMULATIVE),
            rules(CUMULATIVE),
            1,
            "goes back to 2 characters",
            id="text-back",
        ),
        pytest.param(
            [replace(deliver(_RECORD, [6], [6], INCREMENTAL)[0], text=_TEXT + "STOP")],
            rules(stop=("STOP",)),
            0,
            "shows the stop string 'STOP'",
            id="stop-shown",
        ),
        pytest.param(
            [replace(deliver(_RECORD, [6], [6], INCREMENTAL)[0], text=_TEXT + "ST")],
            rules(),
            0,
            "runs ahead",
            id="text-ahead",
        ),
        pytest.param(
            [replace(deliver(_RECORD, [6], [6], INCREMENTAL)[0], text="x" + _TEXT)],
            rules(),
            0,
            "from character 0",
            id="other-text",
        ),
        pytest.param(
            [replace(deliver(_RECORD, [6], [6], INCREMENTAL)[0], text=_TEXT[:4])],
            rules(),
            0,
            "finishes after 4 of 6 characters",
            id="text-short",
        ),
        pytest.param(
            [replace(deliver(_RECORD, [6], [6], INCREMENTAL)[0], finish="stop")],
            rules(),
            0,
            "is 'stop', expected 'length'",
            id="other-finish",
        ),
        pytest.param(
            [replace(deliver(_RECORD, [6], [6], INCREMENTAL)[0], completion_tokens=5)],
            rules(),
            0,
            "is 5 after 6 output ids",
            id="counter",
        ),
        pytest.param(
            [*deliver(_RECORD, [6], [6], INCREMENTAL), Delivered(output_ids=(7,))],
            rules(),
            1,
            "before the rest of the output",
            id="after-finish",
        ),
        pytest.param([], rules(), 0, "without a finish", id="nothing"),
    ],
)
def test_why_it_is_illegal(emissions: list[Delivered], rule: Rules, index: int, reason: str) -> None:
    acceptance = accept(_RECORD, emissions, rule)
    assert (acceptance.legal, acceptance.index) == (False, index)
    assert reason in acceptance.reason


def test_an_emission_of_nothing_may_follow_the_finish() -> None:
    stream = [*deliver(_RECORD, [6], [6], INCREMENTAL), Delivered(output_ids=(), text="")]
    assert accept(_RECORD, stream, rules()).legal


def test_the_answer_to_a_budget_of_zero() -> None:
    record = Record((), "", {"logprobs": ([-1.0, 5, None],)}, "length")
    emission = Delivered((), "", {"logprobs": [[-1.0, 5, None]]}, 0, "length")
    assert accept(record, [emission], rules(interval=4)).legal
    assert not accept(record, [replace(emission, finish=None), emission], rules()).legal


def test_text_alone_can_be_delivered() -> None:
    """A chat stream carries no ids; its role chunk carries nothing at all."""
    emissions = [
        Delivered(text=""),
        Delivered(text=_TEXT[:2]),
        Delivered(text=_TEXT[2:]),
        Delivered(finish="length"),
    ]
    assert accept(_RECORD, emissions, rules(interval=4)).legal
    assert accept(_RECORD, [*emissions[:2], emissions[3]], rules()).field == "text"


def test_an_emission_before_the_ids_is_not_the_first_with_ids() -> None:
    emissions = [Delivered(text=""), *deliver(_RECORD, [1, 6], [1, 6], INCREMENTAL)]
    assert accept(_RECORD, emissions, rules(interval=5)).legal


def test_the_finish_may_come_alone_behind_the_last_ids() -> None:
    *inner, last = deliver(_RECORD, [1, 4, 6], [1, 4, 6], INCREMENTAL)
    alone = Delivered((), "", dict.fromkeys(last.series, ()), last.completion_tokens, last.finish)
    assert accept(_RECORD, [*inner, replace(last, finish=None), alone], rules(interval=3)).legal
    assert accept(_RECORD, [*inner, replace(last, finish=None), alone], rules(interval=4)).index == 1


def test_a_series_that_only_one_side_has() -> None:
    (emission,) = deliver(_RECORD, [6], [6], INCREMENTAL)
    extra = replace(emission, series={**emission.series, "other": [0] * 6})
    assert accept(_RECORD, [extra], rules()).legal
    assert accept(_RECORD, [replace(extra, series={"other": [0] * 5})], rules()).field == "other"
    assert accept(_RECORD, [replace(emission, series={})], rules()).legal


def test_ids_that_never_came() -> None:
    emissions = deliver(_RECORD, [2, 5], [2, 6], INCREMENTAL)
    acceptance = accept(_RECORD, emissions, rules())
    assert (acceptance.index, acceptance.field) == (1, "output_ids")
    assert acceptance.reason == "finishes after 5 of 6 output ids"


def test_a_logprob_of_another_run_may_round_differently() -> None:
    (emission,) = deliver(_RECORD, [6], [6], INCREMENTAL)
    rounded = [[entry[0] - 5e-4, *entry[1:]] for entry in emission.series["logprobs"]]
    emissions = [replace(emission, series={**emission.series, "logprobs": rounded})]
    assert accept(_RECORD, emissions, rules(logprob_tolerance=1e-3)).legal
    assert accept(_RECORD, emissions, rules(logprob_tolerance=1e-4)).field == "logprobs"


def test_rounding_is_tolerated_in_fractions_only() -> None:
    assert alike([-1.0, 5, None], [-1.0005, 5, None], 1e-3)
    assert not alike([-1.0, 5, None], [-1.002, 5, None], 1e-3)
    assert not alike(5, 6, 10.0)
    assert alike(5, 5.0, 0.0)
    assert not alike(True, 1, 10.0)
    assert not alike({"a": 1.0}, {"b": 2.0}, 0.5)


@pytest.mark.parametrize("zero", [0.0, 0])
def test_candidates_that_are_as_good_may_change_places_however_a_logprob_of_zero_is_written(zero):
    """Go writes 0.0 as 0; SGLang's entries, vLLM's objects and those of chat."""
    assert alike([[zero, 1], [-3.0, 2], [-3.0, 3]], [[zero, 1], [-3.0, 3], [-3.0, 2]])
    assert alike({"a": zero, "b": -3.0}, {"b": -3.0, "a": 0.0})
    assert alike({"a": zero, "b": -3.0}, {"c": -3.0, "a": zero})
    names = ["a", "b"], ["b", "a"]
    first, other = ([{"token": name, "logprob": zero} for name in side] for side in names)
    last = {"token": "c", "logprob": -3.0}
    assert alike([*first, last], [*other, last])
    assert apart(zero, -0.5) == apart(-0.5, zero) == 0.5


def test_rows_of_integers_are_no_candidates():
    assert not alike([[1, 2], [3, 4]], [[3, 4], [1, 2]])
    assert apart([[1, 2]], [[3, 2]]) == apart(1, 3) == 0.0
    assert alike({"a": [1.0]}, {"a": (1.5,)}, 1.0)
    assert alike(float("inf"), float("inf"), 0.0)
    assert not alike(float("nan"), 0.0, 1.0)
