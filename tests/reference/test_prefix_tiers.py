"""Pages that the device evicts come back from host memory and from files, bit for bit."""

from __future__ import annotations

import copy
import errno
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_requests import ask, record, scored
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tokenwire_reference.assembly import ExtraArgs, make_engine
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.kv import PagePool
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.prefix_keys import PageKey, PrefixKeys
from tokenwire_reference.core.request import Request
from tokenwire_reference.extras.page_files import PageFiles
from tokenwire_reference.extras.prefix_tiers import PrefixTiers, StoredPage, TierError
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]
PROMPT = tuple(range(10, 80))


def small_engine(model: LoadedModel, **extra: Any) -> Engine:
    """A device of six pages."""
    return make_engine(model, EngineArgs(max_total_tokens=96), ExtraArgs(**extra))


def other_traffic(count: int) -> Iterable[Request]:
    """Requests of five pages each, none like another."""
    return (ask(f"other-{i}", range(100 + 70 * i, 170 + 70 * i), 5) for i in range(count))


def reuse(request: Request) -> tuple[int, int, int, int]:
    return (
        request.cached_tokens,
        request.cached_tokens_device,
        request.cached_tokens_host,
        request.cached_tokens_storage,
    )


def warm(engine: Engine, run_to_end: Run, others: int) -> tuple[Request, Request]:
    """The same request before and after other traffic."""
    options = {"prompt": PROMPT, "new": 5, "logprob_start_len": -1}
    (cold,) = run_to_end(engine, scored(**options))
    for request in other_traffic(others):
        run_to_end(engine, request)
    return cold, run_to_end(engine, scored(**options))[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("host_pages", "others", "expected"),
    [
        (0, 1, (16, 16, 0, 0)),
        (8, 0, (64, 64, 0, 0)),
        (8, 1, (64, 16, 48, 0)),
        (8, 2, (64, 0, 64, 0)),
        (4, 2, (64, 0, 16, 48)),
        (5, 2, (64, 0, 32, 32)),
        (2, 1, (64, 16, 32, 16)),
        (1, 4, (64, 0, 0, 64)),
    ],
)
def test_each_tier_reports_what_came_from_it(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path,
    run_to_end: Run,
    device: str,
    dtype: str,
    host_pages: int,
    others: int,
    expected: tuple[int, int, int, int],
) -> None:
    engine = small_engine(
        load_model("builtin:tiny", dtype=dtype, device=device),
        host_cache_pages=host_pages,
        storage_dir=tmp_path if host_pages else None,
    )
    cold, again = warm(engine, run_to_end, others)
    assert reuse(cold) == (0, 0, 0, 0)
    assert sum(reuse(again)[1:]) == again.cached_tokens
    assert (record(again), reuse(again)) == (record(cold), expected)


def test_storage_outlives_flush_and_server_and_host_memory_does_not(
    tiny: LoadedModel, tmp_path: Path, run_to_end: Run
) -> None:
    engine = small_engine(tiny, host_cache_pages=1, storage_dir=tmp_path)
    cold, _ = warm(engine, run_to_end, 3)
    for request in other_traffic(3):
        run_to_end(engine, request)
    assert engine.flush_cache() is True
    (flushed,) = run_to_end(engine, scored(prompt=PROMPT, new=5, logprob_start_len=-1))
    next_server = small_engine(tiny, host_cache_pages=1, storage_dir=tmp_path)
    (restarted,) = run_to_end(next_server, scored(prompt=PROMPT, new=5, logprob_start_len=-1))
    assert reuse(flushed) == reuse(restarted) == (64, 0, 0, 64)
    assert record(flushed) == record(restarted) == record(cold)
    host_only = small_engine(tiny, host_cache_pages=8)
    warm(host_only, run_to_end, 2)
    host_only.flush_cache()
    assert run_to_end(host_only, ask(prompt=PROMPT))[0].cached_tokens == 0


def test_another_model_finds_nothing(tiny: LoadedModel, tmp_path: Path, run_to_end: Run) -> None:
    warm(small_engine(tiny, host_cache_pages=1, storage_dir=tmp_path), run_to_end, 4)
    reduced = small_engine(
        load_model("builtin:tiny", dtype="bfloat16"), host_cache_pages=1, storage_dir=tmp_path
    )
    assert run_to_end(reduced, ask(prompt=PROMPT))[0].cached_tokens == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_file_is_no_page(
    tiny: LoadedModel, tmp_path: Path, run_to_end: Run, caplog: pytest.LogCaptureFixture
) -> None:
    engine = small_engine(tiny, host_cache_pages=1, storage_dir=tmp_path)
    cold, _ = warm(engine, run_to_end, 4)
    files = list(tmp_path.rglob("*.page"))
    for path in files:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    engine = small_engine(tiny, host_cache_pages=1, storage_dir=tmp_path)
    with caplog.at_level(logging.WARNING):
        (again,) = run_to_end(engine, scored(prompt=PROMPT, new=5, logprob_start_len=-1))
    assert "is damaged or another page and was removed" in caplog.text
    assert (record(again), again.cached_tokens) == (record(cold), 0)
    assert len(list(tmp_path.rglob("*.page"))) == len(files) - 1


def test_prompt_logprobs_and_keys_bound_what_comes_back(tiny: LoadedModel, run_to_end: Run) -> None:
    engine = small_engine(tiny, host_cache_pages=30)
    cold, _ = warm(engine, run_to_end, 2)
    for request in other_traffic(2):
        run_to_end(engine, request)
    (scoring,) = run_to_end(engine, scored(prompt=PROMPT, new=5, logprob_start_len=20))
    assert reuse(scoring) == (16, 0, 16, 0)
    assert scoring.output_ids == cold.output_ids
    (keyed,) = run_to_end(engine, scored(prompt=PROMPT, new=5, logprob_start_len=-1, extra_key="k"))
    assert keyed.cached_tokens == 0


def test_storage_needs_host_memory(tiny: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="start with --enable-hierarchical-cache"):
        make_engine(tiny, extra=ExtraArgs(storage_dir=tmp_path))


def test_a_copy_that_differs_is_noticed(tiny: LoadedModel, run_to_end: Run) -> None:
    engine = small_engine(tiny, host_cache_pages=30)
    warm(engine, run_to_end, 2)
    keys = engine.cache.keys[0]  # type: ignore[attr-defined]  # its tensors
    kept = keys.clone()
    keys += 1
    with pytest.raises(TierError, match="its copy in host memory differ"):
        engine.check_integrity()
    keys.copy_(kept)


def test_files_give_back_what_they_took(tmp_path: Path) -> None:
    files = PageFiles(tmp_path, "model")
    payload = [torch.randn(2, 3), torch.randn(4).bfloat16(), *(torch.full((1,), float(i)) for i in range(20))]
    files.write(page_key(b"\x01"), payload)
    files.write(page_key(b"\x01"), [torch.zeros(1)])
    assert files.read(page_key(b"\x02")) is None
    found = files.read(page_key(b"\x01"))
    assert found is not None
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, payload, strict=True))
    assert PageFiles(tmp_path, "other").read(page_key(b"\x01")) is None
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".page"]


def page_key(digest: bytes) -> PageKey:
    return PageKey(digest, b"")


def kept(directory: Path) -> set[str]:
    return {path.stem for path in directory.glob("*/*.page")}


PAGE_PAYLOAD = [torch.zeros(100)]


def page_bytes(directory: Path) -> int:
    PageFiles(directory, "size").write(page_key(b"\x00"), PAGE_PAYLOAD)
    return next(directory.glob("size/*")).stat().st_size


class TestSizeLimit:
    def test_the_least_recently_used_files_go_first(self, tmp_path: Path) -> None:
        size = page_bytes(tmp_path / "other")
        files = PageFiles(tmp_path / "kept", "model", max_bytes=5 * size)
        for name in range(5):
            files.write(page_key(bytes([name])), PAGE_PAYLOAD)
        assert kept(tmp_path / "kept") == {"00", "01", "02", "03", "04"}
        assert files.read(page_key(b"\x00")) is not None
        files.write(page_key(b"\x05"), PAGE_PAYLOAD)
        files.check_integrity()
        assert kept(tmp_path / "kept") == {"00", "02", "03", "04", "05"}
        assert files.read(page_key(b"\x01")) is None

    def test_it_holds_for_all_models_and_what_was_there_before(self, tmp_path: Path) -> None:
        size = page_bytes(tmp_path / "other")
        before = PageFiles(tmp_path / "kept", "first")
        for name in range(8):
            before.write(page_key(bytes([name])), PAGE_PAYLOAD)
        (tmp_path / "kept" / "first" / "half.4711").write_bytes(b"of a server that died")
        os.utime(tmp_path / "kept" / "first" / "half.4711", ns=(1, 1))
        limited = PageFiles(tmp_path / "kept", "second", max_bytes=4 * size)
        limited.check_integrity()
        assert {path.name for path in (tmp_path / "kept").glob("*/*")} == {"05.page", "06.page", "07.page"}
        limited.write(page_key(b"\x10"), PAGE_PAYLOAD)
        limited.write(page_key(b"\x11"), PAGE_PAYLOAD)
        limited.check_integrity()
        assert kept(tmp_path / "kept") == {"06", "07", "10", "11"}

    def test_an_overfull_directory_and_an_unfinished_file_are_noticed(self, tmp_path: Path) -> None:
        size = page_bytes(tmp_path / "other")
        files = PageFiles(tmp_path / "kept", "model", max_bytes=size)
        files.write(page_key(b"\x00"), PAGE_PAYLOAD)
        draft = tmp_path / "kept" / "model" / f"01.{os.getpid()}"
        draft.write_bytes(b"")
        with pytest.raises(TierError, match="was not written completely"):
            files.check_integrity()
        draft.unlink()
        PageFiles(tmp_path / "kept", "model").write(page_key(b"\x01"), PAGE_PAYLOAD)
        with pytest.raises(TierError, match=f"holds {2 * size} bytes, and may hold {size}"):
            files.check_integrity()

    def test_an_engine_keeps_to_it(self, tiny: LoadedModel, tmp_path: Path, run_to_end: Run) -> None:
        unlimited = small_engine(tiny, host_cache_pages=1, storage_dir=tmp_path / "free")
        cold, _ = warm(unlimited, run_to_end, 6)
        size = next((tmp_path / "free").glob("*/*")).stat().st_size
        limit = {"storage_dir": tmp_path / "kept", "storage_max_bytes": 6 * size}
        engine = small_engine(tiny, host_cache_pages=1, **limit)
        _, again = warm(engine, run_to_end, 6)
        assert record(again) == record(cold)
        assert len(kept(tmp_path / "free")) > 12
        assert 4 <= len(kept(tmp_path / "kept")) <= 6
        with pytest.raises(ValueError, match=f"may hold {size - 1} bytes and a page takes {size}"):
            small_engine(tiny, host_cache_pages=1, storage_dir=tmp_path, storage_max_bytes=size - 1)


class Device:
    """Every page says its number."""

    def read_page(self, page: int) -> int:
        return page

    def write_page(self, page: int, payload: int) -> None:
        raise NotImplementedError

    def same_page(self, page: int, payload: int) -> bool:
        return page == payload


def test_the_least_recently_used_page_leaves_host_memory_first() -> None:
    storage = DictStorage()
    tiers = PrefixTiers(Device(), 2, storage)
    tiers.keep(page_key(b"a"), 1)
    tiers.keep(page_key(b"b"), 2)
    assert tiers.find(page_key(b"a")) == StoredPage("host", 1)
    tiers.keep(page_key(b"c"), 3)
    assert storage.pages == {page_key(b"b"): 2}
    tiers.keep(page_key(b"a"), 1)
    tiers.keep(page_key(b"d"), 4)
    assert list(storage.pages) == [page_key(b"b"), page_key(b"c")]
    assert [tiers.find(page_key(digest)) for digest in (b"b", b"a", b"x")] == [
        StoredPage("storage", 2),
        StoredPage("host", 1),
        None,
    ]


class DictStorage:
    def __init__(self) -> None:
        self.pages: dict[PageKey, Any] = {}

    def write(self, key: PageKey, payload: object) -> None:
        self.pages.setdefault(key, payload)

    def read(self, key: PageKey) -> object | None:
        return self.pages.get(key)

    def check_integrity(self) -> None:
        """A dictionary holds whatever it is given."""


SIZE = 2
Holder = tuple[list[int], tuple[int, ...]]


class TierMachine(RuleBasedStateMachine):
    """Pages whose contents are the prefix that they store: whatever is restored must say the right one."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[int, Any] = {}
        self.tiers = PrefixTiers(self, 2, DictStorage())
        self.pool = PagePool(6, SIZE, tiers=self.tiers)
        self.held: list[list[int]] = []

    def read_page(self, page: int) -> object:
        return self.contents[page]

    def write_page(self, page: int, payload: object) -> None:
        self.contents[page] = payload

    def same_page(self, page: int, payload: object) -> bool:
        return bool(self.contents[page] == payload)

    @rule(target=holders, ids=st.lists(st.integers(0, 1), min_size=2, max_size=8).map(tuple))
    def admit(self, ids: tuple[int, ...]) -> Holder:
        grown = PrefixKeys(SIZE, None)
        grown.grow(ids)
        keys = grown.pages(0, len(ids))
        prefix = self.pool.hold_prefix(keys)
        missing = self.pool.pages_for(len(ids)) - len(prefix)
        if missing > self.pool.available:
            self.pool.release(prefix)
            return [], ids
        stored = self.pool.find_stored(keys[len(prefix) :])
        fresh = self.pool.allocate(missing)
        self.pool.restore(fresh, stored)
        pages = prefix + fresh
        for place, page in enumerate(pages):
            right = ids[: (place + 1) * SIZE]
            if place < len(prefix) + len(stored):
                assert self.contents[page] == right
            else:
                self.contents[page] = right
        self.pool.publish(keys, pages[: len(keys)])
        self.held.append(pages)
        return pages, ids

    @rule(holder=consumes(holders))
    def release(self, holder: Holder) -> None:
        if holder[0]:
            self.held.remove(holder[0])
            self.pool.release(holder[0])

    @rule()
    def flush(self) -> None:
        self.pool.flush()

    @invariant()
    def all_is_accounted_for(self) -> None:
        self.pool.check_integrity(self.held)


TierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTiers = TierMachine.TestCase


class TestStorageIsBestEffort:
    """A cache that cannot be written or read is a miss, and never the end of the engine."""

    @pytest.fixture
    def full_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_space(path: Path, content: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        monkeypatch.setattr(Path, "write_bytes", no_space)

    @pytest.mark.usefixtures("full_disk")
    def test_a_full_disk_costs_no_request(
        self, tiny: LoadedModel, tmp_path: Path, run_to_end: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = small_engine(tiny, host_cache_pages=1, storage_dir=tmp_path)
        cold, again = warm(engine, run_to_end, 6)
        assert record(again) == record(cold)
        assert kept(tmp_path) == set()
        assert engine.load.storage_failures > 1
        assert caplog.text.count("was not written") == 1
        engine.check_integrity()

    def test_a_page_under_another_name_is_no_page(self, tmp_path: Path) -> None:
        files = PageFiles(tmp_path, "model")
        files.write(page_key(b"\x01"), PAGE_PAYLOAD)
        files.write(PageKey(b"\x02", b"its ids"), PAGE_PAYLOAD)
        (tmp_path / "model" / "01.page").rename(tmp_path / "model" / "03.page")
        assert files.read(page_key(b"\x03")) is None
        assert files.read(PageKey(b"\x02", b"other ids")) is None
        assert files.failures == 2
        assert kept(tmp_path) == set()

    def test_a_page_of_another_shape_is_no_page(self, tmp_path: Path) -> None:
        files = PageFiles(tmp_path, "model")
        files.write(page_key(b"\x01"), PAGE_PAYLOAD)
        files.expect([torch.zeros(99)])
        assert files.read(page_key(b"\x01")) is None
        files.expect(PAGE_PAYLOAD)
        assert files.read(page_key(b"\x01")) is not None

    def test_a_file_that_cannot_be_read_is_no_page(self, tmp_path: Path) -> None:
        files = PageFiles(tmp_path, "model")
        (tmp_path / "model" / "01.page").mkdir()
        assert files.read(page_key(b"\x01")) is None
        assert files.failures == 1


def test_models_that_differ_in_their_configuration_only_share_no_page(tiny: LoadedModel) -> None:
    """The weights say nothing of, for example, the base of the rotary embedding."""
    config = copy.deepcopy(tiny.module.config)
    before = tiny.fingerprint()
    tiny.module.config.rope_parameters = {**tiny.module.config.rope_parameters, "rope_theta": 1e2}
    try:
        assert tiny.fingerprint() != before
    finally:
        tiny.module.config = config
    assert tiny.fingerprint() == before
