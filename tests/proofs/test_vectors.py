"""The vectors are what the tables make and what the judge says of each; our reader holds all records."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import jsonschema_rs
import pytest
from proofs.vectors.__main__ import FOLDER, cases_of, document, judged, row
from proofs.vectors.doors import DOORS
from proofs.vectors.suite import legal_cases, long_case, settled

from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Delivery
from tokenwire.requirement import load_requirements
from tokenwire_clients.held import differences, held_by
from tokenwire_clients.vectors import load_doors, reads_of, sentences, whole

NAMES = sorted(DOORS)
SOME = 1000
"""So many events judge the rule of a stream of 100,000."""


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_what_the_tables_make(name):
    """After a change of the tables: python -m proofs.vectors."""
    by_the_judge = {"result", "requirement"}
    made = [row(case) for case in cases_of(DOORS[name])]
    kept = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["cases"]
    assert [without(case, by_the_judge) for case in kept] == [without(case, by_the_judge) for case in made]


def without(row, keys):
    return {key: value for key, value in row.items() if key not in keys}


@pytest.mark.parametrize("name", NAMES)
def test_the_judge_says_what_a_file_says(name):
    door = DOORS[name]
    assert (FOLDER / f"{name}.json").read_text("utf-8") == document(door, judged(door))


def test_a_case_that_is_not_what_it_is_to_be_is_not_written():
    (text,) = (case for case in legal_cases(DOORS["openai-chat"]) if case.id == "text")
    with pytest.raises(ValueError, match="keeps finish-comes-last"):
        settled(replace(text, result="invalid", requirement="finish-comes-last"))
    with pytest.raises(ValueError, match=r"is to be legal, and violates .*one-finish"):
        settled(replace(text, reads=text.reads[:3]))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_fits_its_schema_and_counts_its_cases(name):
    document = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    jsonschema_rs.validator_for(json.loads((FOLDER / "schema.json").read_text("utf-8"))).validate(document)
    cases = document["cases"]
    results = Counter(case["result"] for case in cases)
    assert document["results"] == dict(results)
    assert document["number_of_cases"] == len(cases) == len({case["id"] for case in cases})
    assert results["valid"] >= 40
    assert results["invalid"] >= 40
    ids = {case["id"] for case in cases}
    assert all(case.get("follows", "text") in ids for case in cases)
    assert {flag for case in cases for flag in case["flags"]} == set(document["flags"]) <= set(sentences())
    assert {case["requirement"] for case in cases if "requirement" in case} <= set(load_requirements())


def test_all_files_together_are_small():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 20_000_000
    assert {file.stem for file in FOLDER.glob("*-*.json")} == set(DOORS)


@pytest.mark.parametrize("name", NAMES)
def test_our_reader_holds_the_record_of_every_legal_case(name):
    door = load_doors()[name]
    hint = Delivery.CUMULATIVE if name.endswith("cumulative") else Delivery.INCREMENTAL
    wrong = {}
    for case in door.cases.values():
        if case.result != "invalid" and case.id != "long":
            stream = load_dialects()[door.dialect].read(case.exchange(door), delivery_hint=hint)
            if found := list(differences(whole(case.record), held_by(stream))):
                wrong[case.id] = found
    assert not wrong


@pytest.mark.parametrize("name", NAMES)
def test_a_long_stream_is_legal_and_read(name):
    case = settled(long_case(DOORS[name], SOME))
    assert case.result == ("acceptable" if DOORS[name].cumulative else "valid")
    assert not list(differences(whole(case.record), held_by(case.stream)))


def test_a_stream_of_100_000_events_is_read():
    (case,) = (case for case in load_doors()["openai-completions"].cases.values() if case.id == "long")
    exchange = case.exchange(load_doors()["openai-completions"])
    assert len(exchange.reads) > 100_000
    stream = load_dialects()["openai-completions"].read(exchange)
    assert not list(differences(whole(case.record), held_by(stream)))


def test_a_read_is_cut_as_its_rule_says():
    assert list(reads_of([{"text": "aé", "every": 1}, {"base64": "gg=="}])) == [
        b"a",
        b"\xc3",
        b"\xa9",
        b"\x82",
    ]
    assert list(reads_of(["x", {"text": "{n};", "first": 8, "times": 3}])) == [b"x", b"8;", b"9;", b"10;"]


def test_the_bytes_of_a_case_are_those_of_its_row():
    (case,) = (
        legal for legal in legal_cases(DOORS["openai-completions"]) if legal.id == "characters-byte-by-byte"
    )
    assert tuple(reads_of(row(case)["reads"])) == case.reads
    assert {len(read) for read in case.reads} == {1}
