"""Pages of the KV cache: who holds them, which prefixes they store. No torch.

A page stores the keys and values of `page_size` consecutive positions. Page 0 belongs to nobody: padding rows
write there. A full page can be *published* under the digest of everything up to its end; a later request with
the same prefix then holds the same page. A published page that nobody holds stays until its room is needed,
least recently used first.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from tokenwire_reference.cache.prefix_tiers import PrefixTiers, StoredPage

PADDING_PAGE = 0


class OutOfPagesError(RuntimeError):
    """More pages were asked for than are free or evictable."""


class PageAccountingError(AssertionError):
    """A page is lost, or held by somebody who does not know it."""


class PagePool:
    """`num_pages` pages of `page_size` positions, reference-counted, with a prefix index.

    With `prefix_caching` off nothing is ever published, so nothing is ever shared. `tiers` keep what is
    evicted.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_caching: bool = True,
        tiers: PrefixTiers | None = None,
    ) -> None:
        if num_pages < 2 or page_size < 1:
            raise ValueError(
                f"a pool of {num_pages} pages of {page_size} positions holds nothing; "
                "give at least 2 pages, for page 0 is padding"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self.prefix_caching = prefix_caching
        self._tiers = tiers
        self._free = list(range(num_pages - 1, PADDING_PAGE, -1))
        self._holders: Counter[int] = Counter()
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def capacity(self) -> int:
        """Positions that all pages together can store."""
        return (self.num_pages - 1) * self.page_size

    @property
    def available(self) -> int:
        """Pages that `allocate` can hand out now."""
        return len(self._free) + len(self._evictable)

    def pages_for(self, positions: int) -> int:
        return -(-positions // self.page_size)

    def hold_prefix(self, token_ids: Sequence[int], extra_key: str | None, limit: int) -> list[int]:
        """Hold the published pages that store a prefix of `token_ids`, at most `limit` positions of it."""
        held: list[int] = []
        for digest in self._digests(token_ids[:limit], extra_key):
            page = self._page_of.get(digest)
            if page is None:
                break
            held.append(page)
        for page in held:
            self._evictable.pop(page, None)
            self._holders[page] += 1
        return held

    def find_stored(
        self, token_ids: Sequence[int], extra_key: str | None, limit: int, *, held: int
    ) -> list[StoredPage]:
        """Pages of lower tiers that continue the `held` pages of `hold_prefix`, up to its `limit`."""
        stored: list[StoredPage] = []
        if self._tiers is not None:
            for digest in list(self._digests(token_ids[:limit], extra_key))[held:]:
                page = self._tiers.find(digest)
                if page is None:
                    break
                stored.append(page)
        return stored

    def restore(self, pages: Sequence[int], stored: Sequence[StoredPage]) -> None:
        """Fill the first of `pages`, freshly allocated, with what `find_stored` found."""
        if self._tiers is not None:
            for page, content in zip(pages, stored, strict=False):
                self._tiers.restore(page, content)

    def allocate(self, count: int) -> list[int]:
        """Hold `count` fresh pages. Raises OutOfPagesError, and changes nothing, when they are not there."""
        if count > self.available:
            raise OutOfPagesError(
                f"{count} pages asked for, {self.available} of {self.num_pages - 1} available"
            )
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        self._holders.update(pages)
        return pages

    def publish(self, token_ids: Sequence[int], extra_key: str | None, pages: Sequence[int]) -> None:
        """Let others share the full ones of `pages`, which store `token_ids` from position 0."""
        if not self.prefix_caching:
            return
        for page, digest in zip(pages, self._digests(token_ids, extra_key), strict=False):
            if digest not in self._page_of and page not in self._digest_of:
                self._page_of[digest] = page
                self._digest_of[page] = digest

    def release(self, pages: Sequence[int]) -> None:
        """Give pages back. The end of a prefix goes first, since it is useless without its beginning."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                del self._holders[page]
                if page in self._digest_of:
                    self._evictable[page] = None
                else:
                    self._free.append(page)

    def flush(self) -> None:
        """Forget every published prefix, on the device and in host memory; storage stays.

        Pages in use stay with their holders, but are no longer shared.
        """
        if self._tiers is not None:
            self._tiers.flush()
        self._free.extend(reversed(self._evictable))
        self._evictable.clear()
        self._page_of.clear()
        self._digest_of.clear()

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Raise PageAccountingError unless `held`, one list of pages for each holder, explains every page."""
        expected = Counter(page for pages in held for page in pages)
        if expected != self._holders:
            wrong = sorted((expected - self._holders) + (self._holders - expected))
            raise PageAccountingError(f"pages {wrong} are not held as often as the requests hold them")
        places = Counter([*self._free, *self._evictable, *self._holders])
        wrong = sorted(page for page in range(1, self.num_pages) if places[page] != 1)
        if wrong or places[PADDING_PAGE]:
            raise PageAccountingError(f"pages {wrong or [PADDING_PAGE]} are lost, or in two places at once")
        if {page: digest for digest, page in self._page_of.items()} != self._digest_of:
            raise PageAccountingError("the prefix index and the pages do not agree")
        if self._tiers is not None:
            self._tiers.check_integrity(self._page_of)

    def _evict(self) -> int:
        page, _ = self._evictable.popitem(last=False)
        digest = self._digest_of.pop(page)
        del self._page_of[digest]
        if self._tiers is not None:
            self._tiers.keep(digest, page)
        return page

    def _digests(self, token_ids: Sequence[int], extra_key: str | None) -> Iterator[bytes]:
        """One digest for each full page; each covers the extra key and every id up to the end of its page."""
        digest = b"" if extra_key is None else blake2b(extra_key.encode(), digest_size=32).digest()
        for end in range(self.page_size, len(token_ids) + 1, self.page_size):
            page_ids = array("q", token_ids[end - self.page_size : end]).tobytes()
            digest = blake2b(digest + page_ids, digest_size=32).digest()
            yield digest
