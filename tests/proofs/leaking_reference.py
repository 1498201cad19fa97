"""The reference with a leak: of the pages of the first request that ends, one is never free again."""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire_reference.cli import main as serve
from tokenwire_reference.core.kv import PagePool


def main() -> None:
    release, leaked = PagePool.release, set[PagePool]()

    def release_but_one(pool: PagePool, pages: Sequence[int]) -> None:
        release(pool, pages if pool in leaked else pages[:-1])
        leaked.add(pool)

    PagePool.release = release_but_one  # type: ignore[method-assign]
    serve()
