"""The catalogue of faults is complete, and speaks of requirements that there are."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from forked_program import run_forked

from tokenwire.requirement import load_requirements
from tokenwire_faults.catalogue import EVERYWHERE, PRIMITIVES, fault, load_faults, make_fault
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.seams import Seams

FAULTS = load_faults()


def test_every_primitive_is_imitated():
    assert {known.primitive for known in FAULTS.values()} == PRIMITIVES.keys()


def test_the_faults_that_the_specification_names_are_in_the_catalogue():
    named = {name for requirement in load_requirements().values() for name in requirement.kills}
    assert named <= FAULTS.keys()


WITHOUT_A_THREAD = {
    # Found by changing recorded answers: no public thread tells of such a bug.
    *("another-model-named", "batch-padded", "oldest-ids-dropped"),
    # Found in servers of November 2026, by answers of which the right text is known.
    *("stop-sought-in-hidden-text", "stop-found-in-an-unfinished-character"),
    *("stop-of-a-broken-character-found-late", "whole-replacement-character-lost-at-the-end"),
    *("call-within-reasoning-is-made", "content-comes-out-of-order", "empty-arguments-are-no-json"),
    "reasoning-tokens-are-zero",
    # Found by changing the answers of the reference.
    *("call-ids-change", "call-indexes-skip", "call-opens-without-a-name", "calls-share-an-index"),
    *("reasoning-tokens-lag-in-streams", "samples-share-a-parser"),
}


@pytest.mark.parametrize("known", FAULTS.values(), ids=FAULTS)
def test_an_entry_tells_what_was_wrong_and_where_it_was_seen(known):
    assert known.does.endswith(".")
    assert bool(known.upstream) is (known.name not in WITHOUT_A_THREAD)
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+ (issue|PR) #\d+", thread) for thread in known.upstream)
    assert known.shows_in
    assert set(known.shows_in) <= set(EVERYWHERE)


def test_every_fault_overrides_a_seam_that_there_is():
    seams = {name for kind in (Fault, Seams) for name, value in vars(kind).items() if callable(value)}
    seams -= {"published"}  # `Fault` turns it into `row`
    used = Counter(
        name
        for known in FAULTS.values()
        for name in {name for kind in known.make.__mro__[:-3] for name in vars(kind)} & seams
    )
    assert set(used) == seams
    for name, known in FAULTS.items():
        assert any(getattr(known.make, seam) is not getattr(Fault, seam) for seam in seams), name


def test_each_request_has_a_fault_of_its_own():
    assert make_fault("event-dropped") is not make_fault("event-dropped")


def test_a_name_is_given_once_and_a_fault_that_nothing_sees_has_a_reason():
    with pytest.raises(ValueError, match="'finish-twice' stands twice"):
        fault("finish-twice", "X14")(Fault)
    with pytest.raises(ValueError, match="of the kind 'X99'"):
        fault("made-up", "X99")(Fault)
    assert [name for name, known in FAULTS.items() if bool(known.kills) == bool(known.unseen)] == []


def test_the_command_lists_them(tmp_path):
    command = ("tokenwire-reference", "faults")
    listed = json.loads(run_forked(*command, "--json", folder=tmp_path).stdout)
    assert [entry["name"] for entry in listed] == list(FAULTS)
    assert {"primitive", "kind", "does", "upstream", "kills", "shows_in", "room"} <= listed[0].keys()
    table = run_forked(*command, folder=tmp_path).stdout
    assert f"{len(FAULTS)} faults" in table
