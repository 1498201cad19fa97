"""The catalogue of faults is complete, and speaks of requirements that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from forked_program import run_forked

from tokenwire.requirement import load_requirements
from tokenwire.spec_files import read_yaml
from tokenwire_faults.acts import entered
from tokenwire_faults.answers import PLACES
from tokenwire_faults.catalogue import EVERYWHERE, FAULTS_FILE, known_fault, load_faults
from tokenwire_faults.deliveries import CUTS, MOMENTS
from tokenwire_faults.fault import Fault
from tokenwire_faults.primitives import PRIMITIVES
from tokenwire_reference.core.seams import Seams

FAULTS = load_faults()
TABLE = read_yaml(FAULTS_FILE)
ENTRIES = {name: entry for entries in TABLE["rooms"].values() for name, entry in entries.items()}


def test_every_kind_of_bug_is_imitated():
    assert {known.kind for known in FAULTS.values()} == set(TABLE["kinds"].values())


def test_the_faults_that_the_specification_names_are_in_the_catalogue():
    named = {name for requirement in load_requirements().values() for name in requirement.kills}
    assert named <= FAULTS.keys()


@pytest.mark.parametrize("known", FAULTS.values(), ids=FAULTS)
def test_an_entry_tells_what_was_wrong_and_where_it_was_seen(known):
    assert known.does.endswith(".")
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+ (issue|PR) #\d+", thread) for thread in known.upstream)
    assert known.shows_in
    assert set(known.shows_in) <= set(EVERYWHERE)


def test_every_fault_acts_at_a_seam_that_there_is():
    seams = {name for kind in (Fault, Seams) for name, value in vars(kind).items() if callable(value)}
    seams = {name for name in seams if not name.startswith("_")} - {"event", "published"} | {"events", "row"}
    used = {seam for known in FAULTS.values() for seam in known.acts}
    assert used == seams


def changes(found) -> Iterator[str]:
    """The primitives that a change names, and those of its entries."""
    for name, argument in ({found: None} if isinstance(found, str) else found).items():
        yield name
        if name.startswith("each"):
            yield from changes(argument)


def named_in(entry) -> dict[str, set[str]]:
    """The primitives, places and moments that an entry names."""
    edits = [entry.get(seam, []) for seam in ("asked", "answers", "whole", "event")]
    edits.append(entry.get("answered", {}).get("edit", []))
    edits = [edit for some in edits for edit in (some if isinstance(some, list) else [some])]
    taken = entry.get("taken", {})
    found = [change for edit in edits for change in edit.get("change", {}).values()]
    found += [entry["text"]] if "text" in entry else []
    found += [*entry.get("row", {}).values(), *entry.get("detokenizer", {}).values()]
    found += [change for name, change in taken.items() if name != "at"]
    return {
        "changes": {name for change in found for name in changes(change)},
        "places": {edit["in"] for edit in edits if "in" in edit},
        "moments": {taken["at"]} if "at" in taken else set(),
    }


def test_the_table_names_every_primitive_and_none_that_there_is_not():
    named = [named_in(entry) for entry in ENTRIES.values()]
    used = {kind: {name for item in named for name in item[kind]} for kind in named[0]}
    in_code = {"same"}
    assert used["changes"] == (PRIMITIVES.keys() | CUTS) - in_code
    assert used["places"] == PLACES.keys() - {""}
    assert used["moments"] == MOMENTS.keys()


@pytest.mark.parametrize(
    "known", [known for known in FAULTS.values() if "answered" in known.acts], ids=lambda known: known.name
)
def test_a_fault_of_answers_takes_those_of_a_batch(known):
    info = {"id": "r", "finish_reason": {"type": "stop"}, "weight_version": "v", "cached_tokens": 0}
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "reasoning_tokens": 0}
    batch = [{"text": "a", "output_ids": [5], "meta_info": info | counts} for _ in range(2)]
    Fault(known, "/generate", None).answered(200, batch)


def test_each_request_has_a_fault_of_its_own():
    event = {"meta_info": {"completion_tokens": 1, "finish_reason": None}}
    first, second = (Fault(FAULTS["event-dropped"], "/generate", None) for _ in range(2))
    assert [len(list(first.event(event))) for _ in range(3)] == [1, 0, 1]
    assert list(second.event(event)) == [event]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"bug": {"kind": "X99"}}, "is of the kind 'X99'; the kinds are X01"),
        ({"bug": {"kind": "X01", "upstream": []}}, "does nothing"),
        ({"bug": {"kind": "X01", "upstream": []}, "deltas": {}}, "the seam 'deltas' has no primitives"),
        ({"bug": {"kind": "X01"}, "answers": []}, "has no `upstream`"),
    ],
)
def test_an_entry_that_says_nothing_to_do_is_refused(entry, words):
    with pytest.raises(ValueError, match=f"'made-up'.*{words}"):
        known_fault("made-up", "made-up", {"does": "Nothing.", **entry}, TABLE["kinds"])


def test_a_fault_that_nothing_sees_has_a_reason():
    assert [name for name, known in FAULTS.items() if bool(known.kills) == bool(known.unseen)] == []


def test_every_function_is_an_act_of_a_fault_that_there_is():
    assert entered() <= FAULTS.keys()


def test_the_command_lists_them(tmp_path):
    command = ("tokenwire-reference", "faults")
    listed = json.loads(run_forked(*command, "--json", folder=tmp_path).stdout)
    assert [entry["name"] for entry in listed] == list(FAULTS)
    assert {"kind", "does", "upstream", "kills", "shows_in", "room"} <= listed[0].keys()
    table = run_forked(*command, folder=tmp_path).stdout
    assert f"{len(FAULTS)} faults" in table
    assert {entry["primitive"]: entry["kind"] for entry in listed} == TABLE["kinds"]


def test_the_command_lists_the_faults_with_a_word(tmp_path):
    command = ("tokenwire-reference", "faults")
    listed = json.loads(run_forked(*command, "done-ends-the-stream", "--json", folder=tmp_path).stdout)
    assert [entry["name"] for entry in listed] == [
        name for name, fault in FAULTS.items() if "done-ends-the-stream" in fault.kills
    ]
    found = run_forked(*command, "done-missing", folder=tmp_path).stdout
    assert "A stream ends without [DONE]." in found
    assert "1 fault; with --enable-faults" in found
    none = run_forked(*command, "no-such-word", folder=tmp_path)
    assert none.returncode != 0
    assert "has 'no-such-word' in its text" in none.stderr
