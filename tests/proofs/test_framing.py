"""Framing features: each two of them together, in streams that say the same."""

from __future__ import annotations

from itertools import combinations

import pytest
from proofs.mutation.edit import Body
from proofs.mutation.framing import FEATURES, UNNAMED, pairs

from tokenwire.wire.event_stream import parse_event_stream

DATA = ["1", "2", "3", "[DONE]"]
MOST = 120
"""Pairs around one answer of a door."""


def said(body: bytes) -> list[str]:
    events, _, _ = parse_event_stream(body)
    return [event.data for event in events]


def test_each_two_features_that_a_stream_can_have_are_combined() -> None:
    impossible = {("crlf", "cr"), ("ids", "field-without-colon")}
    every = set(combinations(FEATURES, 2)) - impossible
    assert set(pairs(named=False)) == every
    assert set(pairs(named=True)) == {pair for pair in every if not UNNAMED & set(pair)}
    assert len(every) < MOST


@pytest.mark.parametrize("pair", list(pairs(named=False)), ids="-".join)
def test_a_pair_says_what_was_said_in_both_framings(pair: tuple[str, str]) -> None:
    plain, alone = Body(DATA).bytes(), [FEATURES[name].of(Body(DATA)).bytes() for name in pair]
    first, second = (FEATURES[name] for name in pair)
    both = second.of(first.of(Body(DATA))).bytes()
    assert said(both) == said(plain) == DATA
    assert len({plain, both, *alone}) == 4


def test_a_comment_alone_comes_behind_an_event_with_an_id_and_not_into_one() -> None:
    body = Body(DATA[:2])
    for name in ("ids", "comments-alone"):
        body = FEATURES[name].of(body)
    assert body.bytes() == b": keep-alive\n\nid: 7\ndata: 1\n\n: keep-alive\n\nid: 7\ndata: 2\n\n"
