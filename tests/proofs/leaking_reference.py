"""The reference with two leaks: a page of the first request that ends, and 600 bytes of each."""

from __future__ import annotations

from collections.abc import Sequence

from proofs.soaking.counted_server import main as serve

from tokenwire_reference.core.kv import PagePool


def main() -> None:
    release, leaked, kept = PagePool.release, set[PagePool](), list[bytes]()

    def release_but_one(pool: PagePool, pages: Sequence[int]) -> None:
        release(pool, pages if pool in leaked else pages[:-1])
        leaked.add(pool)
        kept.append(bytes(600))

    PagePool.release = release_but_one  # type: ignore[method-assign]
    serve()
