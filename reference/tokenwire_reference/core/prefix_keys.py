"""The keys by which the pages of a sequence are shared. No torch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

_DIGEST_BYTES = 32


class PageKey(NamedTuple):
    """The key of a full page: the ids of the page, and a digest of all ids up to its end.

    Pages with equal keys have equal contents.
    """

    digest: bytes
    """A digest of the secrets, the page size and every id up to the end of the page."""
    token_ids: bytes
    """The ids of this page, eight bytes each.

    As part of the key they are compared on every hit, so a collision of digests is harmless.
    """


class PrefixKeys:
    """The keys of one sequence's full pages, in order.

    Each page is hashed once, however long the sequence is. The digest of a page continues the digest of the
    previous page. The chain begins with the secrets, hashed in a separate domain. So no choice of ids can
    produce the digest of a sequence with other secrets.
    """

    def __init__(self, page_size: int, *secrets: str | None) -> None:
        """Initialize.

        Sequences share pages only if all their `secrets` are equal; None is a value like any other.
        """
        self._page_size = page_size
        self._keys: list[PageKey] = []
        texts = [
            b"none" if secret is None else b"key" + secret.encode("utf-8", "surrogatepass")
            for secret in secrets
        ]
        chain = b"".join(len(text).to_bytes(8) + text for text in texts)
        root = blake2b(chain, digest_size=_DIGEST_BYTES, person=b"extra key", salt=page_size.to_bytes(8))
        self._last = root.digest()

    def grow(self, token_ids: Sequence[int]) -> None:
        """Add the keys of newly full pages.

        `token_ids` are all ids of the sequence; a sequence only grows.
        """
        size = self._page_size
        for start in range(len(self._keys) * size, len(token_ids) - size + 1, size):
            page_ids = array("q", token_ids[start : start + size]).tobytes()
            page = blake2b(self._last + page_ids, digest_size=_DIGEST_BYTES, person=b"page")
            self._last = page.digest()
            self._keys.append(PageKey(self._last, page_ids))

    def pages(self, start: int, end: int) -> list[PageKey]:
        """Return the keys of the full pages between two positions.

        The first position must be the start of a page.
        """
        return self._keys[start // self._page_size : end // self._page_size]
