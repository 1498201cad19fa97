"""The proof of the acceptor holds for short records, and would not hold for a worse acceptor."""

from __future__ import annotations

import pytest
from proofs import small_scope
from proofs.small_scope import (
    Proof,
    Story,
    emitted,
    joined,
    plain,
    produced,
    prove,
    prove_one,
    stories,
    written,
)

from tokenwire.checks.acceptor import Acceptance, accept
from tokenwire.record import Delivery

TOKENS = 3


def test_every_delivery_is_accepted_and_no_neighbour_that_is_none():
    proof = prove(TOKENS)
    assert proof.refused == []
    assert proof.accepted == []
    assert proof.deliveries > 1_500
    assert proof.neighbours > 100_000


@pytest.mark.parametrize(
    ("overlooked", "tokens"), [("", TOKENS), ("completion_tokens", 2), ("text", 2), ("finish", 2)]
)
def test_an_edit_that_is_decided_once_is_decided_for_every_delivery(monkeypatch, overlooked, tokens):
    """What is skipped because it was refused before is what each edit by itself would have told as well."""

    def forgetful(record, emissions, rules):
        verdict = accept(record, emissions, rules)
        return Acceptance(True) if verdict.field == overlooked else verdict

    monkeypatch.setattr(small_scope, "accept", forgetful)
    for story in stories(tokens):
        for mode in small_scope.MODES:
            quick, thorough = Proof(), Proof()
            prove_one(quick, story, 1, mode)
            prove_one(thorough, story, 1, mode, each_by_itself=True)
            assert quick.accepted == thorough.accepted
            assert quick.legal_neighbours == thorough.legal_neighbours
            assert quick.neighbours >= thorough.neighbours
            assert bool(quick.accepted) is bool(overlooked)


def test_the_streamer_emits_at_the_first_token_and_then_by_the_interval():
    assert emitted(Story(4), interval=4) == {(1, 4), (2, 4), (3, 4)}
    assert (1, 3, 4) in emitted(Story(4), interval=2)
    assert (1, 2, 4) not in emitted(Story(4), interval=2)


def test_a_held_token_waits_for_the_next_step():
    rows = emitted(Story(3, held=0), interval=1)
    assert all(ends[0] != 1 for ends in rows)
    assert (2, 3) in rows


def test_rows_that_wait_together_become_one():
    assert joined({(1, 3, 4)}) == {(1, 3, 4), (1, 4), (3, 4), (4,)}


def test_half_a_character_is_not_shown():
    story = Story(3, broken=1)
    assert story.record.text == "\u4e00é\u4e02"
    assert ((2, 1), (3, 3)) in produced(story, 1)
    assert ((2, 2), (3, 3)) not in produced(story, 1)


def test_a_key_that_starts_late_is_unknown_before():
    story = Story(3, late=2)
    first, second = written(story, ((2, 2), (3, 3)), Delivery.INCREMENTAL)
    assert small_scope.LATE not in first.series
    assert second.series[small_scope.LATE] == ["v2"]
    (whole,) = written(story, ((3, 3),), Delivery.CUMULATIVE)
    assert whole.series[small_scope.LATE] == [None, None, "v2"]


def test_an_idle_emission_says_nothing():
    first, second = written(Story(3), ((1, 1), (3, 3)), Delivery.CUMULATIVE)
    assert plain((first, first, second), Delivery.CUMULATIVE) == plain((first, second), Delivery.CUMULATIVE)


@pytest.mark.parametrize("legal", [True, False])
def test_a_worse_acceptor_is_found_out(monkeypatch, legal):
    monkeypatch.setattr(small_scope, "accept", lambda *_: Acceptance(legal))
    proof = Proof()
    prove_one(proof, Story(3), 2, Delivery.INCREMENTAL)
    assert not proof.holds
    assert bool(proof.accepted) is legal
    assert bool(proof.refused) is not legal


def test_an_acceptor_that_overlooks_one_field_is_found_out(monkeypatch):
    def forgetful(record, emissions, rules):
        verdict = accept(record, emissions, rules)
        return Acceptance(True) if verdict.field == "completion_tokens" else verdict

    monkeypatch.setattr(small_scope, "accept", forgetful)
    proof = Proof()
    prove_one(proof, Story(3), 1, Delivery.CUMULATIVE)
    assert proof.accepted
    assert any("counter" in words for words in proof.accepted)
    assert not any("text" in words for words in proof.accepted)


def test_nothing_tried_is_no_proof():
    assert not Proof().holds
