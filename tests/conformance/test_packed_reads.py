"""Reads of large answers are packed: they take less memory and are the same reads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, PackedReads, Read

READS = (Read(0.25, b"x" * 20_000), Read(0.5, b""), Read(1.75, b"yz"))
EXCHANGE = Exchange("a", HttpRequest("POST", "/generate"), "s", 200, (), READS, Ending.COMPLETE)


@given(st.lists(st.builds(Read, st.floats(0, 1e6), st.binary(max_size=9)), min_size=1))
def test_packed_reads_are_those_that_were_packed(reads: list[Read]) -> None:
    packed = PackedReads(reads)
    assert [*packed] == reads
    assert [*reversed(packed)] == reads[::-1]
    assert (len(packed), packed[-1], packed[1:3]) == (len(reads), reads[-1], tuple(reads[1:3]))


def test_a_large_exchange_says_the_same_once_it_is_packed() -> None:
    packed = EXCHANGE.packed()
    assert isinstance(packed.reads, PackedReads)
    for name in ("body", "size", "last_read", "name", "status", "ending"):
        assert getattr(packed, name) == getattr(EXCHANGE, name)
    assert packed.begin(3) == b"xxx"
    assert replace(packed, reads=READS) == EXCHANGE


@pytest.mark.parametrize("reads", [(), READS[1:]])
def test_a_small_exchange_stays_as_it_is(reads: tuple[Read, ...]) -> None:
    small = replace(EXCHANGE, reads=reads)
    assert small.packed() is small
