"""Pages are never lost, never shared wrongly, and a held prefix stores what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tokenwire_reference.core import prefix_keys
from tokenwire_reference.core.kv import PADDING_PAGE, OutOfPagesError, PageAccountingError, PagePool
from tokenwire_reference.core.prefix_keys import PageKey, PrefixKeys

SIZE = 4
token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=5 * SIZE)


def keys_of(ids: Sequence[int], extra_key: str | None = None, limit: int | None = None) -> list[PageKey]:
    """The keys of the full pages within the first `limit` ids."""
    keys = PrefixKeys(SIZE, extra_key)
    keys.grow(ids)
    return keys.pages(0, len(ids) if limit is None else limit)


class PoolMachine(RuleBasedStateMachine):
    """Holders come and go over a small pool; a model remembers what each page was written with."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(9, SIZE)
        self.held: list[list[int]] = []
        self.written: dict[int, tuple[str | None, tuple[int, ...]]] = {}

    @rule(target=holders, ids=token_lists, key=st.sampled_from([None, "a", ""]))
    def admit(self, ids: list[int], key: str | None) -> tuple[list[int], list[int], str | None]:
        pages = self.pool.hold_prefix(keys_of(ids, key, len(ids) - 1))
        assert len(pages) * SIZE < len(ids)
        for place, page in enumerate(pages):
            assert self.written[page] == (key, tuple(ids[: (place + 1) * SIZE]))
        before = self.pool.available
        missing = self.pool.pages_for(len(ids)) - len(pages)
        if missing > before:
            with pytest.raises(OutOfPagesError, match=f"{missing} pages were requested, but {before} of 8"):
                self.pool.allocate(missing)
            assert self.pool.available == before
        else:
            fresh = self.pool.allocate(missing)
            for place, page in enumerate(fresh, start=len(pages)):
                self.written[page] = (key, tuple(ids[: (place + 1) * SIZE]))
            pages += fresh
        self.held.append(pages)
        return pages, ids, key

    @rule(holder=holders)
    def publish(self, holder: tuple[list[int], list[int], str | None]) -> None:
        pages, ids, key = holder
        keys = keys_of(ids, key)[: len(pages)]
        self.pool.publish(keys, pages[: len(keys)])

    @rule(holder=consumes(holders))
    def release(self, holder: tuple[list[int], list[int], str | None]) -> None:
        self.held.remove(holder[0])
        self.pool.release(holder[0])

    @rule()
    def flush(self) -> None:
        self.pool.flush()

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        self.pool.check_integrity(self.held)
        assert self.pool.available == 8 - len({page for pages in self.held for page in pages})


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase


def published(pool: PagePool, ids: list[int], key: str | None = None) -> list[int]:
    pages = pool.allocate(pool.pages_for(len(ids)))
    pool.publish(keys_of(ids, key), pages)
    pool.release(pages)
    return pages


def test_more_pages_than_there_are_are_refused_and_none_is_held() -> None:
    pool = PagePool(4, SIZE)
    pool.allocate(2)
    with pytest.raises(OutOfPagesError, match="2 pages were requested, but 1 of 3"):
        pool.allocate(2)
    assert len(pool.allocate(1)) == 1


def test_a_prefix_is_found_up_to_the_limit() -> None:
    pool = PagePool(10, SIZE)
    ids = list(range(3 * SIZE))
    pages = published(pool, ids)
    assert pool.hold_prefix(keys_of(ids, None, 3 * SIZE)) == pages
    assert pool.hold_prefix(keys_of(ids, None, 3 * SIZE - 1)) == pages[:2]
    assert pool.hold_prefix(keys_of([*ids[:SIZE], 99, *ids[SIZE:]], None, 3 * SIZE)) == pages[:1]


def test_extra_keys_do_not_share() -> None:
    pool = PagePool(10, SIZE)
    ids = list(range(SIZE))
    pages = published(pool, ids, "tenant-a")
    assert pool.hold_prefix(keys_of(ids, None, SIZE)) == []
    assert pool.hold_prefix(keys_of(ids, "tenant-b", SIZE)) == []
    assert pool.hold_prefix(keys_of(ids, "tenant-a", SIZE)) == pages


def test_the_least_recently_used_prefix_goes_first_and_from_its_end() -> None:
    pool = PagePool(5, SIZE)
    old, new = list(range(2 * SIZE)), list(range(50, 50 + 2 * SIZE))
    old_pages, new_pages = published(pool, old), published(pool, new)
    pool.release(pool.hold_prefix(keys_of(old, None, 2 * SIZE)))
    pool.release(pool.allocate(1))
    assert pool.hold_prefix(keys_of(new, None, 2 * SIZE)) == new_pages[:1]
    assert pool.hold_prefix(keys_of(old, None, 2 * SIZE)) == old_pages


def test_nothing_is_shared_when_prefix_caching_is_off() -> None:
    pool = PagePool(5, SIZE, prefix_caching=False)
    published(pool, list(range(SIZE)))
    assert pool.hold_prefix(keys_of(list(range(SIZE)), None, SIZE)) == []


def test_flushed_pages_in_use_are_no_longer_shared() -> None:
    pool = PagePool(5, SIZE)
    ids = list(range(SIZE))
    pages = pool.allocate(1)
    pool.publish(keys_of(ids), pages)
    pool.flush()
    assert pool.hold_prefix(keys_of(ids, None, SIZE)) == []
    pool.release(pages)
    pool.check_integrity([])


def test_a_leak_is_reported() -> None:
    pool = PagePool(5, SIZE)
    (page,) = pool.allocate(1)
    with pytest.raises(PageAccountingError, match=rf"pages \[{page}\] have wrong reference counts"):
        pool.check_integrity([])
    with pytest.raises(PageAccountingError, match="have wrong reference counts"):
        pool.check_integrity([[page], [page]])


@pytest.mark.parametrize("page", [1, 4])
def test_a_page_that_is_nowhere_or_in_two_places_is_reported(page: int) -> None:
    pool = PagePool(5, SIZE)
    pool._free.remove(page)
    for wrong in ([], [page, page]):
        pool._free += wrong
        with pytest.raises(PageAccountingError, match=rf"pages \[{page}\] are lost, or in two places"):
            pool.check_integrity([])


def test_the_page_of_the_padding_is_never_to_be_handed_out() -> None:
    pool = PagePool(5, SIZE)
    pool._free.append(PADDING_PAGE)
    with pytest.raises(PageAccountingError, match=rf"pages \[{PADDING_PAGE}\]"):
        pool.check_integrity([])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 pages"):
        PagePool(1, SIZE)


def page_image(ids: Sequence[int]) -> str:
    """The text whose UTF-8 is that of ids below 128, eight bytes each: a legal extra key."""
    return "".join(chr(token_id) + "\0" * 7 for token_id in ids)


def test_a_salt_and_a_key_are_not_joined() -> None:
    """A server that joined them let the salt of one tenant spell the key of another."""
    pairs = (("ab", "c"), ("a", "bc"), ("abc", None), (None, "abc"), ("a", "bnone"), ("akeyb", None))
    spelled = [PrefixKeys(SIZE, *pair) for pair in pairs]
    for keys in spelled:
        keys.grow(range(SIZE))
    assert len({page for keys in spelled for page in keys.pages(0, SIZE)}) == len(spelled)


def test_no_extra_key_stands_for_a_page_of_ids() -> None:
    """`extra_key` was the first link of the chain, so a key could spell somebody else's first page."""
    ids = [7, 8, 9, 10, 11, 12, 13, 14]
    pool = PagePool(10, SIZE)
    published(pool, ids)
    assert pool.hold_prefix(keys_of(ids[SIZE:], page_image(ids[:SIZE]))) == []
    assert pool.hold_prefix(keys_of(ids[SIZE:], "")) == []


def test_the_ids_of_a_page_are_compared_on_a_hit() -> None:
    pool = PagePool(10, SIZE)
    ids = list(range(SIZE))
    published(pool, ids)
    (key,) = keys_of(ids)
    assert pool.hold_prefix([key._replace(token_ids=bytes(8 * SIZE))]) == []
    assert len(pool.hold_prefix([key])) == 1


def test_a_lone_surrogate_is_an_extra_key_like_any_other() -> None:
    assert keys_of(range(SIZE), "\ud800") != keys_of(range(SIZE), "\ud801")


@given(ids=st.lists(st.integers(0, 3), max_size=6 * SIZE), cuts=st.lists(st.integers(0, 6 * SIZE)))
def test_keys_do_not_depend_on_how_a_sequence_grew(ids: list[int], cuts: list[int]) -> None:
    grown = PrefixKeys(SIZE, "tenant")
    for cut in sorted(cuts):
        grown.grow(ids[:cut])
    grown.grow(ids)
    assert grown.pages(0, len(ids)) == keys_of(ids, "tenant")


def test_a_page_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing every new page cost a digest of all pages before it: quadratic in the length."""
    hashed: list[bytes] = []

    def counting(data: bytes, **how: Any) -> Any:
        hashed.append(data)
        return blake2b(data, **how)

    monkeypatch.setattr(prefix_keys, "blake2b", counting)
    grown = PrefixKeys(SIZE, None)
    for end in range(1, 50 * SIZE + 1):
        grown.grow(range(end))
    assert len(hashed) == 1 + 50
