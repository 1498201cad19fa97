"""Arguments that make no sense together are refused before anything is loaded."""

from __future__ import annotations

import pytest

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
