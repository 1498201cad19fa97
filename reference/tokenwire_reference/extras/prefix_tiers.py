"""Tiers for pages of cached prefixes that the device evicts: host memory, then storage. No torch.

A page that the device evicts is kept in host memory. A page that host memory evicts is written to storage, if
there is one. A page that is found in one of these tiers is copied back to the device, bit for bit. Storage
survives a flush and the end of the server, so the next server can use it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tokenwire_reference.core.kv import PageStore, Payload, StoredPage, Tiers
from tokenwire_reference.core.prefix_keys import PageKey

if TYPE_CHECKING:
    from tokenwire_reference.extras.page_files import PageFiles


class TierError(AssertionError):
    """A tier exceeds its limit, or differs from the device."""


class PrefixTiers(Tiers):
    """Host memory for `host_pages` pages, and optionally storage.

    The least recently used pages are removed first.
    """

    def __init__(self, device: PageStore, host_pages: int, storage: PageFiles | None = None) -> None:
        self.host_pages = host_pages
        self._device = device
        self._storage = storage
        self._host: OrderedDict[PageKey, Payload] = OrderedDict()
        self.storage_backend = None if storage is None else "file"

    @property
    def failures(self) -> int:
        return 0 if self._storage is None else self._storage.failures

    def keep(self, key: PageKey, page: int) -> None:
        if key not in self._host:
            self._host[key] = self._device.read_page(page)
        self._host.move_to_end(key)
        while len(self._host) > self.host_pages:
            oldest, payload = self._host.popitem(last=False)
            if self._storage is not None:
                self._storage.write(oldest, payload)

    def find(self, key: PageKey) -> StoredPage | None:
        if key in self._host:
            self._host.move_to_end(key)
            return StoredPage("host", self._host[key])
        payload = None if self._storage is None else self._storage.read(key)
        return None if payload is None else StoredPage("storage", payload)

    def restore(self, page: int, stored: StoredPage) -> None:
        self._device.write_page(page, stored.payload)

    def flush(self) -> None:
        self._host.clear()

    def check_integrity(self, on_device: Mapping[PageKey, int]) -> None:
        if len(self._host) > self.host_pages:
            raise TierError(f"host memory keeps {len(self._host)} pages, and may keep {self.host_pages}")
        for key in self._host.keys() & on_device.keys():
            if not self._device.same_page(on_device[key], self._host[key]):
                raise TierError(f"page {on_device[key]} and its copy in host memory differ")
        if self._storage is not None:
            self._storage.check_integrity()
