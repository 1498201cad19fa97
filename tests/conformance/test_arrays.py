"""Per-token arrays: read as they are written, in every encoding, and refused in words where they are not."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rollout_pairs import BODY, RUN, WHOLE, experts
from stream_builder import PROMPT, Reply, append, build, change, whole

from tokenwire.checks import trainer_arrays
from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.arrays import Array, ArrayRule, Encoding, Rows
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Delivery
from tokenwire.target.determinism import Comparison

EXPERTS = [[[1, 2], [3, 4]], [[5, 6], [7, 0]], [[1, 3], [2, 4]]]
FLAT = ((1, 2, 3, 4), (5, 6, 7, 0), (1, 3, 2, 4))


def rule(encoding: Encoding, rows: Rows = Rows.RUN) -> ArrayRule:
    return ArrayRule("experts", rows, encoding, ("start",))


def npy(values: Any, kind: str) -> str:
    file = io.BytesIO()
    np.save(file, np.array(values, dtype=kind))
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("kind", ["<i4", ">i4", "u1", "<i8", "<f4", "<f2"])
def test_a_file_of_numpy_has_its_shape(kind: str) -> None:
    array = rule(Encoding.BASE64_NPY).read(npy(EXPERTS, kind))
    assert (array.rows, array.shaped, array.cut(5)) == (FLAT, True, array)
    assert rule(Encoding.BASE64_NPY).read(npy(np.zeros((0, 2, 2)), kind)).rows == ()


def test_bytes_without_a_shape_are_cut_into_rows_that_fit() -> None:
    written = base64.b64encode(np.array(EXPERTS, "<i4").tobytes()).decode()
    array = rule(Encoding.BASE64_INT32).read(written)
    assert array == Array((sum(FLAT, ()),), shaped=False)
    cut = array.cut(3)
    assert cut is not None
    assert cut.rows == FLAT
    assert [array.cut(count) for count in (0, 5)] == [None, None]


def test_ids_of_experts_in_numbers_of_16_bits_are_no_ids_of_32() -> None:
    """Every second row of a model with as many layers would have passed for one of half the width."""
    bounded = ArrayRule("experts", Rows.RUN, Encoding.BASE64_INT32, below=1 << 16)
    assert bounded.read(base64.b64encode(np.array(EXPERTS, "<i4").tobytes()).decode())
    with pytest.raises(ValueError, match="it contains 131073, but its numbers must be below 65536"):
        bounded.read(base64.b64encode(np.array(EXPERTS, "<i2").tobytes()).decode())


def test_lists_have_rows_of_any_shape() -> None:
    ragged = [[[0.5, 1.0], [2.0, 3.0]], [4.0, 5.0]]
    assert rule(Encoding.LISTS).read(ragged).rows == ((0.5, 1.0, 2.0, 3.0), (4.0, 5.0))
    deep: Any = 1.0
    for _ in range(5000):
        deep = [deep]
    assert rule(Encoding.LISTS).read([deep]).rows == ((1.0,),)


@pytest.mark.parametrize(
    ("encoding", "value", "words"),
    [
        (Encoding.LISTS, "AAAA", "a str, not a list"),
        (Encoding.LISTS, [[True]], "contains a bool"),
        (Encoding.LISTS, [["1"]], "contains a str"),
        (Encoding.BASE64_INT32, [1], "a list, not base64"),
        (Encoding.BASE64_INT32, "é", "is not base64"),
        (Encoding.BASE64_INT32, "AAA=", "2 bytes"),
        (Encoding.BASE64_NPY, "AAAA", "does not begin like a numpy file"),
        (Encoding.BASE64_NPY, npy(EXPERTS, "<i4")[:-8], "numpy"),
        (Encoding.BASE64_NPY, base64.b64encode(b"\x93NUMPY\x01\x00\x04\x00{}\n ").decode(), "numpy"),
        (Encoding.BASE64_NPY, npy(1, "<i4"), "shape"),
        (Encoding.BASE64_NPY, npy(["a"], "<U1"), "numpy"),
    ],
)
def test_what_is_not_written_as_declared_is_told(encoding: Encoding, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rule(encoding).read(value)


def test_how_many_rows_are_due() -> None:
    run, output = rule(Encoding.LISTS), rule(Encoding.LISTS, Rows.OUTPUT)
    uncached = rule(Encoding.LISTS, Rows.UNCACHED)
    assert [run.due({}, 3, output_ids, 1) for output_ids in (0, 1, 4)] == [3, 3, 6]
    assert [run.due({"start": start}, 3, 4, 1) for start in (2, 3, 4, -1, "2")] == [4, 3, None, None, 6]
    assert output.due({"start": 2}, 3, 4, 1) == 4
    assert [uncached.due({}, 3, 4, cached) for cached in (0, 2, None)] == [6, 4, None]


def test_the_tables_declare_details_that_they_bind() -> None:
    declared = {name: {array.name for array in dialect.arrays} for name, dialect in load_dialects().items()}
    assert declared["sglang-generate"] == {"hidden_states", "routed_experts"}
    assert declared["vllm-generate"] == {"routed_experts"}
    for name, names in declared.items():
        assert names <= load_dialects()[name].told_names


def test_each_array_of_an_answer_is_of_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a row for each output id stands behind one with rows of the prompt, too."""
    rules = (
        ArrayRule("routed_experts", Rows.RUN, Encoding.LISTS),
        ArrayRule("hidden_states", Rows.OUTPUT, Encoding.LISTS),
    )
    monkeypatch.setattr(trainer_arrays, "arrays_of", lambda _: rules)
    same = [[float(number) for number in range(trainer_arrays.LEAST_NUMBERS)]] * 2
    other = [[number + 0.5 for number in same[0]]]
    details = {"routed_experts": [[1, 2]] * (len(PROMPT) + 2), "hidden_states": [*same, *other]}
    check = CHECKS["neighbouring-states-differ"]
    for ids, holds in (((7, 7, 8), True), ((7, 8, 8), False)):
        stream = whole(Reply(ids=ids, text=None, details=details))
        seen = [observation.holds for observation in check.on_stream(stream, Target())]
        assert seen == [holds], ids


@pytest.mark.parametrize("beside", ["ids", "finish"])
def test_the_finish_may_come_alone_behind_the_ids_of_an_array(beside: str) -> None:
    """With the array beside the last ids, or beside the finish."""
    reply = Reply(details={"routed_experts": experts(RUN)})
    stream = build(Delivery.INCREMENTAL, choices=(reply,), sizes=(6,), body=BODY)
    last = stream.choices[0].emissions[-1]
    kept, moved = (last.details, {}) if beside == "ids" else ({}, last.details)
    ids = change(stream, 0, finish=None, details=kept)
    alone = append(ids, lambda e: replace(e, output_ids=[], text="", finish=last.finish, details=moved))
    covers, equals = CHECKS["array-covers-what-was-run"].on_run, CHECKS["array-equals-whole"].on_comparison
    assert covers is not None
    assert equals is not None
    seen = [*covers((alone, WHOLE), Target()), *equals(Comparison(WHOLE, alone), Target())]
    assert {observation.holds for observation in seen} == {True}


@pytest.mark.parametrize(("rows", "holds"), [(0, True), (1, False)])
def test_an_array_from_behind_the_prompt_on_has_no_row_for_a_single_id(rows: int, holds: bool) -> None:
    """The last id was not run. How wide a row would be, no array of the run tells."""
    reply = Reply(ids=[11], text="a", details={"routed_experts": experts(rows)})
    body = {**BODY, "routed_experts_start_len": len(PROMPT)}
    stream = build(Delivery.WHOLE, choices=(reply,), sizes=(1,), body=body)
    covers = CHECKS["array-covers-what-was-run"].on_run
    assert covers is not None
    assert [seen.holds for seen in covers((stream,), Target())] == [holds]
