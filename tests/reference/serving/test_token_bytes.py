"""The bytes of single tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenwire_reference.core.tokenizer import token_bytes


@given(ids=st.lists(st.integers(4, 1999), max_size=20))
def test_the_bytes_of_tokens_join_to_the_bytes_of_the_text(tiny_tokenizer, ids):
    joined = b"".join(token_bytes(tiny_tokenizer, i) for i in ids)
    assert joined.decode("utf-8", "replace") == tiny_tokenizer.decode(ids)


def test_a_part_of_a_character_is_one_byte(tiny_tokenizer):
    assert [token_bytes(tiny_tokenizer, i) for i in (168, 107, 256)] == [b"\xe8", b"\xaa", b"\x9e"]
    assert token_bytes(tiny_tokenizer, 542) == b" option"


def test_every_byte_is_a_token_of_its_own(tiny_tokenizer):
    assert {token_bytes(tiny_tokenizer, i) for i in range(4, 260)} == {bytes([byte]) for byte in range(256)}
