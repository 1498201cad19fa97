"""Arguments that make no sense together are refused before anything is loaded."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from tokenwire_reference.models.loading import load_model
from tokenwire_reference.serve import assemble
from tokenwire_reference.server_args import ServerArgs


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"hicache_storage_backend": "file"}, "need each other"),
        ({"hicache_storage_dir": "pages"}, "need each other"),
        (
            {"hicache_storage_backend": "file", "hicache_storage_dir": "pages"},
            "needs --enable-hierarchical-cache",
        ),
        ({"hicache_storage_backend": "tape"}, "choose file"),
        ({"hicache_storage_max_bytes": 1 << 20}, "give that, too"),
        ({"hicache_storage_max_bytes": 0}, "must be 1 or more"),
        ({"stream_interval": 0}, "must be 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(args, words) -> None:
    with pytest.raises(ValueError, match=words):
        ServerArgs(model_path="builtin:tiny", **args)


def test_a_storage_tier_that_is_whole_is_taken() -> None:
    args = ServerArgs(
        model_path="builtin:tiny",
        enable_hierarchical_cache=True,
        hicache_storage_backend="file",
        hicache_storage_dir="pages",
    )
    assert args.hicache_storage_dir == "pages"


def test_flags_of_graphs_and_storage_reach_the_engine(tmp_path) -> None:
    model = load_model("builtin:tiny", context_length=64)
    changed = ServerArgs(
        disable_cuda_graph=True,
        enable_hierarchical_cache=True,
        hicache_storage_backend="file",
        hicache_storage_dir=str(tmp_path),
        hicache_storage_max_bytes=1 << 20,
    )
    with closing(asyncio.new_event_loop()) as loop:
        engines = [assemble(args, model, loop).engine for args in (ServerArgs(), changed)]
    assert [engine._graphs.most_rows for engine in engines] == [64, 0]
    assert engines[1].scheduler.pool._tiers._storage._max_bytes == 1 << 20
