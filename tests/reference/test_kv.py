"""Pages are never lost, never shared wrongly, and a held prefix stores what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tokenwire_reference.cache.kv import OutOfPagesError, PageAccountingError, PagePool

SIZE = 4
token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=5 * SIZE)


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
        pages = self.pool.hold_prefix(ids, key, len(ids) - 1)
        assert len(pages) * SIZE < len(ids)
        for at, page in enumerate(pages):
            assert self.written[page] == (key, tuple(ids[: (at + 1) * SIZE]))
        before = self.pool.available
        missing = self.pool.pages_for(len(ids)) - len(pages)
        if missing > before:
            with pytest.raises(OutOfPagesError, match=f"{missing} pages asked for, {before} of 8"):
                self.pool.allocate(missing)
            assert self.pool.available == before
        else:
            fresh = self.pool.allocate(missing)
            for at, page in enumerate(fresh, start=len(pages)):
                self.written[page] = (key, tuple(ids[: (at + 1) * SIZE]))
            pages += fresh
        self.held.append(pages)
        return pages, ids, key

    @rule(holder=holders)
    def publish(self, holder: tuple[list[int], list[int], str | None]) -> None:
        pages, ids, key = holder
        self.pool.publish(ids, key, pages)

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
    pool.publish(ids, key, pages)
    pool.release(pages)
    return pages


def test_a_prefix_is_found_up_to_the_limit() -> None:
    pool = PagePool(10, SIZE)
    ids = list(range(3 * SIZE))
    pages = published(pool, ids)
    assert pool.hold_prefix(ids, None, 3 * SIZE) == pages
    assert pool.hold_prefix(ids, None, 3 * SIZE - 1) == pages[:2]
    assert pool.hold_prefix([*ids[:SIZE], 99, *ids[SIZE:]], None, 3 * SIZE) == pages[:1]


def test_extra_keys_do_not_share() -> None:
    pool = PagePool(10, SIZE)
    ids = list(range(SIZE))
    pages = published(pool, ids, "tenant-a")
    assert pool.hold_prefix(ids, None, SIZE) == []
    assert pool.hold_prefix(ids, "tenant-b", SIZE) == []
    assert pool.hold_prefix(ids, "tenant-a", SIZE) == pages


def test_the_least_recently_used_prefix_goes_first_and_from_its_end() -> None:
    pool = PagePool(5, SIZE)
    old, new = list(range(2 * SIZE)), list(range(50, 50 + 2 * SIZE))
    old_pages, new_pages = published(pool, old), published(pool, new)
    pool.release(pool.hold_prefix(old, None, 2 * SIZE))
    pool.release(pool.allocate(1))
    assert pool.hold_prefix(new, None, 2 * SIZE) == new_pages[:1]
    assert pool.hold_prefix(old, None, 2 * SIZE) == old_pages


def test_nothing_is_shared_when_prefix_caching_is_off() -> None:
    pool = PagePool(5, SIZE, prefix_caching=False)
    published(pool, list(range(SIZE)))
    assert pool.hold_prefix(list(range(SIZE)), None, SIZE) == []


def test_flushed_pages_in_use_are_no_longer_shared() -> None:
    pool = PagePool(5, SIZE)
    ids = list(range(SIZE))
    pages = pool.allocate(1)
    pool.publish(ids, None, pages)
    pool.flush()
    assert pool.hold_prefix(ids, None, SIZE) == []
    pool.release(pages)
    pool.check_integrity([])


def test_a_leak_is_reported() -> None:
    pool = PagePool(5, SIZE)
    (page,) = pool.allocate(1)
    with pytest.raises(PageAccountingError, match=rf"pages \[{page}\] are not held"):
        pool.check_integrity([])
    with pytest.raises(PageAccountingError, match="are not held"):
        pool.check_integrity([[page], [page]])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 pages"):
        PagePool(1, SIZE)
