"""Arguments that make no sense together are refused before anything is loaded."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from tokenwire_reference.loading import load_model
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
        ({"hicache_storage_max_bytes": 0}, "must be 1 to"),
        ({"stream_interval": 0}, "must be 1 to"),
        ({"port": 99999}, "--port is 99999; it must be 0 to 65535"),
        ({"page_size": 0}, "--page-size is 0; it must be 1 to"),
        ({"cpu_threads": 0}, "it must be 1 to 1024"),
        ({"send_buffer_bytes": 10**14}, "--send-buffer-bytes is"),
        ({"speculative_num_draft_tokens": 100_000}, "it must be 1 to 128"),
        ({"near_ties": 1.5}, "it must be 0.0 to 1.0"),
        ({"max_total_tokens": 15}, "less than one page of 16"),
        ({"host": ""}, "--host is empty"),
        ({"lora_paths": ["builtin:1"]}, "--lora-paths is 'builtin:1'; write NAME=PATH"),
        ({"api_key": ""}, "--api-key is empty"),
        ({"admin_api_key": "two words"}, "--admin-api-key is empty or holds other characters than visible"),
    ],
)
def test_what_makes_no_sense_is_refused(args, words) -> None:
    with pytest.raises(ValueError, match=words):
        ServerArgs(model_path="builtin:tiny", **args)


def test_it_listens_on_this_machine_alone() -> None:
    assert ServerArgs(model_path="builtin:tiny").host == "127.0.0.1"


def test_no_key_shows_where_arguments_are_printed() -> None:
    assert "secret" not in repr(ServerArgs(api_key="secret", admin_api_key="secret"))


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
    assert [engine._passes.most_rows for engine in engines] == [64, 0]
    assert engines[1].scheduler.pool._tiers._storage._max_bytes == 1 << 20
