"""The delivery mode that a stream shows by itself."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.dialects.delivery_mode import infer_delivery
from tokenwire.record import Delivery, Emission, Event, Place

_EVENT = Event(0, Place("x"), {})


def emission(ids: Sequence[int] | None = None, text: str | None = None, count: object = None) -> Emission:
    counters = {} if count is None else {"completion_tokens": count}
    return Emission(_EVENT, 0, output_ids=ids, text=text, counters=counters)


def split(sizes: list[int], *, cumulative: bool, counted: bool, texts: bool) -> list[Emission]:
    emissions, before = [], 0
    for size in sizes:
        start = 0 if cumulative else before
        before += size
        ids = list(range(100 + start, 100 + before))
        text = "".join(map(chr, ids)) if texts else None
        emissions.append(emission(ids, text, before if counted else None))
    return emissions


@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=8),
    cumulative=st.booleans(),
    counted=st.booleans(),
    texts=st.booleans(),
)
@settings(deadline=None)
def test_any_cut_shows_its_mode(sizes: list[int], cumulative: bool, counted: bool, texts: bool) -> None:
    emissions = split(sizes, cumulative=cumulative, counted=counted, texts=texts)
    expected = Delivery.CUMULATIVE if cumulative else Delivery.INCREMENTAL
    assert infer_delivery([emissions]) is expected


@pytest.mark.parametrize(
    "choices", [[], [[]], [[emission([1], "a", 1)]], [[emission([1], "a", 1)], [emission([2], "b", 1)]]]
)
def test_no_evidence_is_incremental(choices: list[list[Emission]]) -> None:
    assert infer_delivery(choices) is Delivery.INCREMENTAL


def test_text_tells_where_there_are_no_ids() -> None:
    assert (
        infer_delivery([[emission(text="a"), emission(text="ab"), emission(text="abc")]])
        is Delivery.CUMULATIVE
    )
    assert (
        infer_delivery([[emission(text="a"), emission(text="b"), emission(text="a")]]) is Delivery.INCREMENTAL
    )


def test_a_lost_emission_does_not_change_the_mode() -> None:
    incremental = split([1, 2, 1, 3, 1, 1, 2], cumulative=False, counted=True, texts=True)
    assert infer_delivery([incremental[:2] + incremental[3:]]) is Delivery.INCREMENTAL
    cumulative = split([1, 2, 1, 3, 1, 1, 2], cumulative=True, counted=True, texts=True)
    assert infer_delivery([[cumulative[0], *cumulative[4:]]]) is Delivery.CUMULATIVE


def test_the_majority_of_fields_decides() -> None:
    """One field in the other mode is a fault for a check to find, not another mode."""
    emissions = [emission([100 + i], "x" * (i + 1), i + 1) for i in range(6)]
    agreeing = split([1] * 4, cumulative=False, counted=True, texts=True)
    assert infer_delivery([emissions, agreeing]) is Delivery.INCREMENTAL


def test_counters_of_the_wrong_type_do_not_count() -> None:
    emissions = [
        emission([1, 2], "a", "2"),
        emission([1, 2, 3], "ab", True),
        emission([1, 2, 3, 4], "abc", 4.0),
    ]
    assert infer_delivery([emissions]) is Delivery.CUMULATIVE


@pytest.mark.parametrize("announced", [Delivery.CUMULATIVE, Delivery.INCREMENTAL])
def test_the_first_ids_that_are_counted_show_no_mode(announced: Delivery) -> None:
    """Behind an event that counts none, they are as many in both modes."""
    first = [emission([], "", 0), emission([1], "a", 1)]
    assert infer_delivery([first] * 3, announced) is announced


@pytest.mark.parametrize("announced", [Delivery.CUMULATIVE, Delivery.INCREMENTAL])
def test_what_the_server_says_stands_unless_all_evidence_is_against_it(announced: Delivery) -> None:
    shown = Delivery.INCREMENTAL if announced is Delivery.CUMULATIVE else Delivery.CUMULATIVE
    against = split([1, 2, 1, 3], cumulative=shown is Delivery.CUMULATIVE, counted=True, texts=True)
    for_it = split([1, 2], cumulative=announced is Delivery.CUMULATIVE, counted=True, texts=True)
    assert infer_delivery([against], announced) is shown
    assert infer_delivery([against, for_it], announced) is announced
    assert infer_delivery([against[:2]], announced) is shown
    texts = [[replace(item, output_ids=None, counters={}) for item in against[:2]]]
    assert infer_delivery(texts, announced) is announced
    assert infer_delivery([], announced) is announced


def test_a_token_that_is_repeated_in_growing_pieces_is_no_sign_of_cumulative_delivery() -> None:
    """Coalesced pieces of 1, 2, 3, 4 and 5 times one token, as dummy weights give them."""
    counts = [1, 3, 6, 10, 15]
    pieces = [emission([7] * size, "a" * size, count) for size, count in enumerate(counts, 1)]
    assert infer_delivery([pieces]) is Delivery.INCREMENTAL
    assert infer_delivery([pieces], Delivery.CUMULATIVE) is Delivery.INCREMENTAL


def test_only_ids_that_are_exactly_as_many_as_counted_tell_a_mode() -> None:
    """A list that is longer than its counter, in a stream whose ids do not extend each other."""
    pieces = [emission([1, 2, 3], count=1), emission([4, 5, 6, 7], count=3), emission([8] * 5, count=4)]
    assert infer_delivery([pieces]) is Delivery.INCREMENTAL


def test_two_votes_are_enough_against_the_server() -> None:
    votes = [emission([1], "a", 1), emission([1, 2], None, 2), emission([1, 2, 3], None, 3)]
    for count in (1, 2):
        pieces = [replace(vote, counters={}) for vote in votes[: count + 1]]
        found = Delivery.INCREMENTAL if count == 1 else Delivery.CUMULATIVE
        assert infer_delivery([pieces], Delivery.INCREMENTAL) is found
