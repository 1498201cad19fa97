"""The kill matrix: a part of it in earnest, and what it says where suite, faults and rows disagree."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest
from forked_program import served_forked
from proofs import kill_matrix
from proofs.killing import learnt
from proofs.killing.asking import CORE, scenarios_for, try_fault
from proofs.killing.learnt import SHOWN_BY, consequences, families, learn, read
from proofs.killing.matrix import Kill, Matrix, Trial
from proofs.killing.page import page
from proofs.killing.serving import flags_of, serve, servers_for
from proofs.killing.telling import as_json, last_line
from rich.console import Console

from tokenwire.asking.scenario import load_scenarios
from tokenwire.checks.check import CHECKS, Check
from tokenwire.requirement import load_requirements
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire_faults.catalogue import load_faults

FAULTS = load_faults()
SLICE = tuple(FAULTS)[::60]
"""A few faults of different rooms; `nox -s faults` tries all, and `nox -s ci` the first."""
REQUIREMENT, FAULT = "prompt-ids-match-their-count", "prompt-ids-without-the-last"
OTHER = "finish-type-is-known"
CORE_PLACES = frozenset(CORE[:1])


@pytest.fixture(scope="module")
def server():
    with serve_forked(["cumulative"], ()) as urls:
        yield urls["cumulative"]


def matrix(*trials: Trial, kills: tuple[str, ...] = (FAULT,)) -> Matrix:
    """A matrix of one fault and two requirements, of which one names it."""
    known = load_requirements()
    rows = {REQUIREMENT: replace(known[REQUIREMENT], kills=kills), OTHER: replace(known[OTHER], kills=())}
    return Matrix(rows, {FAULT: FAULTS[FAULT]}, trials, whole=False)


def trial(*red: str, server: str = "cumulative", failure: str = "") -> Trial:
    kills = {name: Kill(f"{name} is <broken>", frozenset({"greedy-stream"})) for name in red}
    return Trial(FAULT, server, kills, failure)


@contextlib.contextmanager
def serve_forked(names, also):
    """What `serve` gives, from processes that need not import torch."""
    usual = ("--enable-faults", "--sampling-backend", "mirror")
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(served_forked(*usual, *flags_of(name), *also))[0] for name in names}


@pytest.mark.parametrize("faults", [SLICE[:1], SLICE[1:]], ids=["first", "others"])
def test_a_part_of_the_matrix_agrees(monkeypatch, faults):
    monkeypatch.setattr(kill_matrix, "serve", serve_forked)
    tried = kill_matrix.kill_matrix(faults)
    assert tried.complaints == []
    assert set(tried.killed) == set(faults)
    assert {(attempt.fault, attempt.server) for attempt in tried.trials} == {
        (name, where) for name in faults for where in servers_for(FAULTS[name])
    }


def test_what_is_legal_is_not_to_be_killed():
    legal = replace(matrix(trial(), kills=()), faults={FAULT: replace(FAULTS[FAULT], unseen="it is legal")})
    legal = replace(legal, requirements={})
    assert (legal.to_kill, legal.killed, legal.complaints) == ([], [], [])
    red = replace(legal, trials=(trial(REQUIREMENT),))
    assert [words.split(",")[0] for words in red.complaints] == [f"{REQUIREMENT} kills {FAULT} unexpectedly"]


def test_a_check_that_sees_nothing_is_told(server, monkeypatch):
    asked = (FAULT, "cumulative", server, CORE)
    assert matrix(asyncio.run(try_fault(*asked))).killing == [REQUIREMENT]
    monkeypatch.setitem(CHECKS, REQUIREMENT, Check(REQUIREMENT, observe=lambda stream, target: iter(())))
    blind = matrix(asyncio.run(try_fault(*asked)))
    assert f"{REQUIREMENT} kills nothing" in blind.complaints
    assert f"{FAULT} on cumulative survives: no requirement that names it turned red" in blind.complaints


def test_a_check_that_raises_is_told(server, monkeypatch):
    def broken(stream, target):
        raise ZeroDivisionError
        yield

    monkeypatch.setitem(CHECKS, OTHER, Check(OTHER, observe=broken))
    [failure, *_] = matrix(asyncio.run(try_fault(FAULT, "cumulative", server, CORE))).complaints
    assert f"the check of {OTHER} raised" in failure


def test_a_row_that_does_not_name_what_it_kills_is_told():
    assert matrix(trial(REQUIREMENT)).complaints == []
    assert matrix(trial(REQUIREMENT), kills=()).complaints == [
        f"{FAULT} on cumulative survives: no requirement that names it turned red",
        f"{REQUIREMENT} kills {FAULT} unexpectedly, on cumulative: {REQUIREMENT} is <broken>",
    ]


def test_a_fault_has_to_be_killed_on_every_server_and_a_kill_to_show_on_one():
    assert matrix(trial(REQUIREMENT), trial(server="incremental")).complaints == [
        f"{FAULT} on incremental survives: no requirement that names it turned red"
    ]
    assert f"{REQUIREMENT} names {FAULT}, and stays green" in matrix(trial()).complaints


def test_a_server_that_gives_up_is_told():
    assert matrix(trial(REQUIREMENT, failure="it fell silent")).complaints == [
        f"{FAULT} on cumulative: it fell silent"
    ]


def test_in_the_whole_matrix_all_requirements_have_to_kill():
    part = matrix(trial(REQUIREMENT))
    assert replace(part, whole=True).complaints == [f"{OTHER} kills nothing"]


@pytest.mark.parametrize(("kills", "status"), [((FAULT,), 0), ((), 1)])
def test_the_exit_status_tells_whether_all_agree(monkeypatch, tmp_path, capsys, kills, status):
    tried = matrix(trial(REQUIREMENT), kills=kills)
    monkeypatch.setattr(kill_matrix, "kill_matrix", lambda names, quiet, flags: tried)
    found, shown = tmp_path / "matrix.json", tmp_path / "matrix.html"
    assert kill_matrix.main(["--json", str(found), "--html", str(shown)]) == status
    assert last_line(tried) in capsys.readouterr().out
    assert json.loads(found.read_text("utf-8"))["complaints"] == tried.complaints
    assert FAULT in shown.read_text("utf-8")


def test_the_json_has_every_kill_with_its_place():
    [document] = json.loads(as_json(matrix(trial(REQUIREMENT))))["trials"]
    kill = {"message": f"{REQUIREMENT} is <broken>", "scenarios": ["greedy-stream"]}
    assert document == {"fault": FAULT, "server": "cumulative", "kills": {REQUIREMENT: kill}, "failure": ""}


def test_the_page_shows_each_kind_of_cell_and_loads_nothing():
    shown = page(matrix(trial(REQUIREMENT)))
    assert 'class="kill"' in shown.partition("<tbody>")[2]
    assert "&lt;broken&gt;" in shown
    assert "<broken>" not in shown
    assert "http" not in shown.replace("http-equiv", "")
    assert "<script" not in shown
    body = page(matrix(trial(OTHER))).partition("<tbody>")[2]
    assert 'class="lost"' in body
    half = page(matrix(trial(REQUIREMENT), trial(server="incremental"))).partition("<tbody>")[2]
    assert 'class="some"' in half
    unexpected = page(matrix(trial(REQUIREMENT, OTHER), kills=(FAULT,)))
    assert load_requirements()[REQUIREMENT].sentence.partition(" MUST")[0] in unexpected


def test_what_shows_a_fault_is_known():
    assert set(read(SHOWN_BY)) <= set(FAULTS)
    asked = {name for fault in FAULTS for name in scenarios_for(fault)}
    assert asked <= set(load_scenarios())


def test_consequences_are_of_faults_and_requirements_that_there_are_and_that_no_row_names():
    known = load_requirements()
    for requirement, fault in consequences():
        assert fault in FAULTS
        assert fault not in known[requirement].kills


def test_a_consequence_may_kill_and_need_not():
    also = frozenset({(OTHER, FAULT)})
    for tried in (matrix(trial(REQUIREMENT, OTHER)), matrix(trial(REQUIREMENT))):
        assert replace(tried, consequences=also).complaints == []
    assert matrix(trial(REQUIREMENT, OTHER)).unexpected == also


def test_a_relative_of_what_is_known_to_kill_may_kill_and_is_told(capsys):
    family = frozenset({REQUIREMENT, OTHER})
    akin = replace(matrix(trial(REQUIREMENT, OTHER)), families=(family,))
    assert (akin.kindred, akin.unexpected, akin.complaints) == ({(OTHER, FAULT)}, set(), [])
    kill_matrix.print_matrix(Console(), akin, 1)
    assert f"{OTHER} is kindred of what {FAULT} kills, on cumulative" in capsys.readouterr().out
    assert json.loads(as_json(akin))["kindred"] == [[OTHER, FAULT]]
    assert 'class="kin"' in page(replace(akin, whole=True)).partition("<tbody>")[2]
    known = replace(akin, consequences=frozenset({(OTHER, FAULT)}))
    assert (known.kindred, known.unexpected) == (set(), set())


def test_what_has_no_known_relative_stays_unexpected():
    family = frozenset({REQUIREMENT, OTHER})
    for families_ in ((), (frozenset({OTHER, "ids-are-counted"}),)):
        strange = replace(matrix(trial(REQUIREMENT, OTHER)), families=families_)
        assert (strange.kindred, strange.unexpected) == (set(), {(OTHER, FAULT)})
    nobody = replace(matrix(trial(REQUIREMENT, OTHER), kills=()), families=(family,))
    assert nobody.unexpected == {(REQUIREMENT, FAULT), (OTHER, FAULT)}


def test_kindred_is_not_enough_to_kill_a_fault():
    family = frozenset({REQUIREMENT, OTHER})
    survived = replace(matrix(trial(OTHER)), families=(family,))
    assert f"{FAULT} on cumulative survives: no requirement that names it turned red" in survived.complaints
    assert survived.killing == []


def test_families_are_of_requirements_that_there_are_and_leave_most_pairs_unexpected():
    known, every = load_requirements(), families()
    named = {(row.id, fault) for row in known.values() for fault in row.kills} | consequences()
    assert all(len(family) > 1 and family <= set(known) for family in every)
    may = {
        (name, fault)
        for requirement, fault in named
        for family in every
        if requirement in family
        for name in family
    }
    assert len(may - named) < len(known) * len(FAULTS) / 10


BREAKS = "requests-do-not-break-the-server"
SEEN_LIVE = {
    # SGLang 0.5.23's Rust front end replaces chat input_ids, and counts 0 prompt tokens for some.
    ("unknown-prompt-ids-refused", "prompt-tokens-count-the-input-ids"),
    ("logprob-values-are-legal", "prompt-tokens-count-the-input-ids"),
    ("top-logprobs-belong-to-position", "prompt-tokens-count-the-input-ids"),
}
"""Consequences at servers that no fault and no fixture is like; see the tests of causes."""


def test_what_follows_from_another_requirement_is_seen_with_it():
    """By a fault that breaks both or one of each family, or by a recorded server that violates both."""
    rows, named = load_requirements(), {name: set(fault.kills) for name, fault in load_faults().items()}
    broken = [{*kills, *read(learnt.CONSEQUENCES).get(fault, ())} for fault, kills in named.items()]
    fixtures = (spec_root().parent / "fixtures").rglob("*.expected.yaml")
    broken += [{*item.get("FAIL", ()), *item.get("WARN", ())} for item in map(read_yaml, fixtures)]
    pairs = {(name, cause) for name, row in rows.items() for cause in row.implied_by}
    # What has to be refused and is answered with 500 breaks both, at whatever server.
    pairs -= {(name, BREAKS) for name, row in rows.items() if "be refused" in row.sentence}
    unseen = {pair for pair in pairs if not any({*pair} <= seen for seen in [*broken, *families()])}
    assert unseen == SEEN_LIVE, sorted(unseen ^ SEEN_LIVE)


def test_what_a_run_showed_is_written_down(monkeypatch, tmp_path):
    shown, broken = tmp_path / "shown_by.yaml", tmp_path / "consequences.yaml"
    shown.write_text("event-dropped: [usage]\n", "utf-8")
    broken.write_text(f"event-dropped: [{REQUIREMENT}]\n", "utf-8")
    headings = dict(zip((shown, broken), learnt._HEADINGS.values(), strict=True))
    monkeypatch.setattr(learnt, "_HEADINGS", headings)
    monkeypatch.setattr(learnt, "SHOWN_BY", shown)
    monkeypatch.setattr(learnt, "CONSEQUENCES", broken)
    places = frozenset({"prompt-ids", "text-prompt"})
    kills = {REQUIREMENT: Kill("", places), OTHER: Kill("", frozenset({"usage"}))}
    learn(matrix(Trial(FAULT, "cumulative", kills)), CORE)
    assert read(shown) == {FAULT: ["prompt-ids"], "event-dropped": ["usage"]}
    assert read(broken) == {FAULT: [OTHER], "event-dropped": [REQUIREMENT]}
    learn(matrix(Trial(FAULT, "cumulative", {REQUIREMENT: Kill("", CORE_PLACES)})), CORE)
    assert read(shown)[FAULT] == ["prompt-ids"]
    also = replace(matrix(trial(REQUIREMENT, OTHER)), families=(frozenset({REQUIREMENT, OTHER}),))
    broken.write_text("{}\n", "utf-8")
    read.cache_clear()
    learn(also, CORE)
    assert read(broken) == {FAULT: [OTHER]}


def test_a_fault_is_tried_in_each_mode_in_which_it_shows():
    assert servers_for(FAULTS["counter-stands-still"]) == ["cumulative", "incremental"]
    assert servers_for(FAULTS["event-dropped"]) == ["incremental"]
    assert servers_for(FAULTS["whole-keeps-only-the-last-piece"]) == ["cumulative", "incremental"]
    assert servers_for(FAULTS["ids-need-a-tokenizer"]) == ["--skip-tokenizer-init"]


def test_a_server_that_does_not_start_is_told():
    with (
        pytest.raises(RuntimeError, match="ended with status 2 before it gave its URL"),
        serve(["--page-size nonsense"]),
    ):
        pass
