"""Builds an engine and connects the optional parts in `extras` to its hooks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenwire_reference.core.attention import PagedCache
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.hooks import Hooks, Logits, Passes
from tokenwire_reference.core.kv import PADDING_PAGE, PageStore, Tiers
from tokenwire_reference.core.model import Model
from tokenwire_reference.extras.decode_graphs import DecodeGraphs
from tokenwire_reference.extras.near_ties import NearTies
from tokenwire_reference.extras.ngram_drafts import NgramDrafter
from tokenwire_reference.extras.page_files import PageFiles
from tokenwire_reference.extras.prefix_tiers import PrefixTiers


@dataclass(frozen=True)
class ExtraArgs:
    """Settings of the optional parts of an engine."""

    host_cache_pages: int = 0
    """The largest number of evicted pages that host memory keeps; 0 for none."""
    storage_dir: Path | None = None
    """The folder for pages that host memory evicts.

    The files in the folder take up to `storage_max_bytes`.
    """
    storage_max_bytes: int | None = None
    disable_cuda_graph: bool = False
    """True to launch every kernel separately, without CUDA graphs."""
    near_ties: float = 0.0


def make_engine(model: Model, args: EngineArgs | None = None, extra: ExtraArgs | None = None) -> Engine:
    """Build an engine. Raises ValueError for options that exclude each other."""
    args, extra = args or EngineArgs(), extra or ExtraArgs()
    if extra.storage_dir is not None and not extra.host_cache_pages:
        raise ValueError(
            f"storage in {extra.storage_dir} keeps what the host cache evicts, and that cache is off; "
            "start with --enable-hierarchical-cache"
        )

    def tiers(device: PageStore) -> Tiers:
        storage = None
        if extra.storage_dir is not None:
            storage = PageFiles(extra.storage_dir, model.fingerprint(), max_bytes=extra.storage_max_bytes)
            storage.expect(device.read_page(PADDING_PAGE))
        # Pages from another engine reach the device in the same way.
        keeps = extra.host_cache_pages or not args.prefix_caching
        return PrefixTiers(device, extra.host_cache_pages, storage) if keeps else Tiers()

    def passes(model: Model, cache: PagedCache, *, most_rows: int) -> Passes:
        # A script has no pass to capture, and a captured pass does not return experts.
        captured = not (extra.disable_cuda_graph or model.module is None or model.experts.available)
        return DecodeGraphs(model, cache, most_rows=most_rows if captured else 0)

    logits = NearTies(extra.near_ties, args.random_seed) if extra.near_ties else Logits()
    return Engine(model, args, Hooks(tiers, passes, NgramDrafter, logits))
