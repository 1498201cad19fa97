"""Pages of the KV cache: which sequences hold a page, and which prefix it stores. No torch.

A page stores the keys and values of `page_size` consecutive positions. Page 0 belongs to the padding rows,
which write there. A full page can be *published* with a key, which identifies all tokens up to the end of the
page. A later request with the same prefix then holds the same page. A published page without a holder stays
until its memory is needed. The least recently used page is evicted first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

from tokenwire_reference.core.prefix_keys import PageKey

PADDING_PAGE = 0
Payload = Any
"""The contents of one page, in all layers. Only a `PageStore` interprets these contents."""


class PageStore(Protocol):
    """Reads, writes and compares pages of the device."""

    def read_page(self, page: int) -> Payload: ...

    def write_page(self, page: int, payload: Payload) -> None: ...

    def same_page(self, page: int, payload: Payload) -> bool: ...


@dataclass(frozen=True)
class StoredPage:
    """A page from a lower tier, or from another engine."""

    tier: Literal["device", "host", "storage", "computed"]
    """The tier in which the page was found; `computed` if another engine computed the page."""
    payload: Payload


class Tiers:
    """Stores pages that the device evicts. This default stores nothing."""

    storage_backend: str | None = None
    """The name of the permanent storage; None without one."""

    @property
    def failures(self) -> int:
        """The number of reads and writes of storage that have failed since the start."""
        return 0

    def keep(self, key: PageKey, page: int) -> None:
        """Store a page that the device is about to lose."""

    def find(self, key: PageKey) -> StoredPage | None:
        """Return the page of a prefix, from the nearest tier that stores the page; None if there is none."""
        del key
        return None

    def restore(self, page: int, stored: StoredPage) -> None:
        """Copy a page back to the device."""

    def flush(self) -> None:
        """Clear all tiers except permanent storage."""

    def check_integrity(self, on_device: Mapping[PageKey, int]) -> None:
        """Check that no tier exceeds its limit, and that its pages equal those of the device.

        Raises AssertionError.
        """


class OutOfPagesError(RuntimeError):
    """More pages were requested than are free or evictable."""


class PageAccountingError(AssertionError):
    """The reference counts of pages are wrong: a page is lost, or its holder does not list it."""


class PagePool:
    """`num_pages` pages of `page_size` positions, reference-counted, with a prefix index.

    Without `prefix_caching`, no pages are published or shared.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_caching: bool = True,
        tiers: Tiers | None = None,
    ) -> None:
        if num_pages < 2 or page_size < 1:
            raise ValueError(
                f"a pool of {num_pages} pages of {page_size} positions holds nothing; "
                "give at least 2 pages of at least 1 position, because page 0 is padding"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self.prefix_caching = prefix_caching
        self._tiers = tiers or Tiers()
        self._free = list(range(num_pages - 1, PADDING_PAGE, -1))
        self._holders: Counter[int] = Counter()
        self._page_of: dict[PageKey, int] = {}
        self._key_of: dict[int, PageKey] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self.weight_version = "default"
        self._versions: dict[int, str] = {}
        """The version of the weights that computed each page, noted when it was full."""

    @property
    def capacity(self) -> int:
        """The number of positions in all pages."""
        return (self.num_pages - 1) * self.page_size

    @property
    def available(self) -> int:
        """The number of pages that `allocate` can return now."""
        return len(self._free) + len(self._evictable)

    def pages_for(self, positions: int) -> int:
        return -(-positions // self.page_size)

    def hold_prefix(self, keys: Sequence[PageKey]) -> list[int]:
        """Hold the published pages of a prefix, up to the first key in `keys` without a published page."""
        held: list[int] = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            held.append(page)
        for page in held:
            self._evictable.pop(page, None)
            self._holders[page] += 1
        return held

    def find_stored(
        self, keys: Sequence[PageKey], handed_over: Mapping[bytes, StoredPage] = MappingProxyType({})
    ) -> list[StoredPage]:
        """Return the stored pages for `keys`, up to the first key without a stored page.

        A stored page was handed over by another engine (found by its digest), or is in a lower tier.
        """
        stored: list[StoredPage] = []
        for key in keys:
            page = handed_over.get(key.digest) or self._tiers.find(key)
            if page is None:
                break
            stored.append(page)
        return stored

    def restore(self, pages: Sequence[int], stored: Sequence[StoredPage]) -> None:
        """Fill the first of `pages`, freshly allocated, with the contents that `find_stored` returned."""
        for page, content in zip(pages, stored, strict=False):
            self._tiers.restore(page, content)

    def allocate(self, count: int) -> list[int]:
        """Hold `count` fresh pages. Raises OutOfPagesError, without an effect, if there are too few."""
        if count > self.available:
            raise OutOfPagesError(
                f"{count} pages were requested, but {self.available} of {self.num_pages - 1} are available"
            )
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        self._holders.update(pages)
        return pages

    def publish(self, keys: Sequence[PageKey], pages: Sequence[int]) -> None:
        """Publish full pages with their keys, in the same order, so that other requests can share them."""
        self._versions |= dict.fromkeys(pages, self.weight_version)
        if not self.prefix_caching:
            return
        for page, key in zip(pages, keys, strict=True):
            # Two requests may compute one prefix at the same time: the first page is shared, the second stays
            # private.
            # private.
            if key not in self._page_of and page not in self._key_of:
                self._page_of[key] = page
                self._key_of[page] = key

    def versions(self, pages: Sequence[int], positions: int) -> tuple[tuple[str, int], ...]:
        """Return the versions of the weights that computed a prompt, each with its first position."""
        full = [self._versions[page] for page in pages[: positions // self.page_size]]
        by_page = [*full, self.weight_version] if positions % self.page_size else full
        starts = enumerate(zip([None, *by_page], by_page, strict=False))
        return tuple((now, i * self.page_size) for i, (before, now) in starts if now != before)

    def release(self, pages: Sequence[int]) -> None:
        """Release pages, the last page of a prefix first, because a later page is useless without the earlier
        pages.
        """
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                del self._holders[page]
                if page in self._key_of:
                    self._evictable[page] = None
                else:
                    self._free.append(page)

    def flush(self) -> None:
        """Remove every published prefix from the device and from host memory, but not from storage.

        Pages in use stay with their holders, but are no longer shared.
        """
        self._tiers.flush()
        self._free.extend(reversed(self._evictable))
        self._evictable.clear()
        self._page_of.clear()
        self._key_of.clear()

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Check the reference count of every page against `held`, the list of pages of each holder.

        Raises PageAccountingError.
        """
        expected = Counter(page for pages in held for page in pages)
        if expected != self._holders:
            wrong = sorted((expected - self._holders) + (self._holders - expected))
            raise PageAccountingError(f"pages {wrong} have wrong reference counts")
        places = Counter([*self._free, *self._evictable, *self._holders])
        wrong = sorted(page for page in range(1, self.num_pages) if places[page] != 1)
        if wrong or places[PADDING_PAGE]:
            raise PageAccountingError(f"pages {wrong or [PADDING_PAGE]} are lost, or in two places at once")
        if {page: key for key, page in self._page_of.items()} != self._key_of:
            raise PageAccountingError("the prefix index and the pages do not agree")
        self._tiers.check_integrity(self._page_of)

    def _evict(self) -> int:
        page, _ = self._evictable.popitem(last=False)
        key = self._key_of.pop(page)
        del self._page_of[key]
        self._tiers.keep(key, page)
        return page
