"""What the soak demands gates, its drawings are drawings, and a seed gives the same hostile server again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest
from forked_program import served_forked
from proofs import soak
from proofs.hostile_servers import drawn
from proofs.soaking import serving
from proofs.soaking.figures import Figures
from proofs.soaking.load import FLAGS, MOST_GROWTH, MOST_KEPT, growth, kept, nothing_is_left, short
from proofs.soaking.page import picture, write
from proofs.soaking.serving import HELD, Served


def test_growth_is_told_once_it_is_warm() -> None:
    warm_up = [float(megabytes) for megabytes in range(100, 200, 5)]
    assert growth(warm_up + [200.0] * 80) == 1
    assert growth(warm_up + [200.0 + step for step in range(80)]) > MOST_GROWTH
    assert growth([200.0] * 4) == math.inf, "too short to tell"


def test_what_stays_of_a_request_is_told_by_its_slices() -> None:
    assert kept([(0, 10**9), (100, 10**9 + 40_000), (200, 10**9 + 80_000)]) == 400
    grown_once = [(0, 0), (100, 0), (200, 5_000_000), (300, 5_000_000)]
    assert kept(grown_once) == 0


@pytest.mark.parametrize(
    ("program", "leaks"), [("proofs.soaking.counted_server", False), ("leaking_reference", True)]
)
def test_a_page_and_bytes_that_a_request_keeps_are_seen(
    program: str, leaks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that needs all pages waits for the lost one forever: a second shows that as well."""
    monkeypatch.setenv("HELD_FILE", str(tmp_path / HELD))
    choice, figures = random.Random(0), Figures()

    async def measure(server: Served) -> float:
        counts = []
        for requests in range(0, 4 * 24, 24):
            for _ in range(24):
                await server.counted(*short(choice))
            counts.append((requests, await server.held()))
        if leaks:
            monkeypatch.setattr(serving, "PATIENCE_S", 1)
        await nothing_is_left(figures, server)
        return kept(counts)

    with served_forked(*FLAGS, program=program) as (url, process):
        port = int(url.rpartition(":")[2])
        stays = asyncio.run(measure(Served(port, process.pid or 0, tmp_path / "log")))
    assert (figures.broken, len(figures.rows)) == (["pages of the cache"] if leaks else [], 2)
    assert (stays > MOST_KEPT) == leaks, stays


@pytest.mark.parametrize(("holds", "status"), [(True, 0), (False, 1)])
def test_what_does_not_hold_is_named_and_gates(
    holds: bool, status: int, monkeypatch, capsys, tmp_path
) -> None:
    async def measure(figures: Figures, *_: object) -> None:
        figures.demand("memory", "less than 5 %", "+7 %", holds=holds)
        figures.memory += [(0.0, "short", 100.0), (0.5, "short", 107.0)]

    monkeypatch.setattr(soak, "soak", measure)
    monkeypatch.setattr("sys.argv", ["soak", "--only", "soak", "--write", str(tmp_path)])
    assert soak.main() == status
    printed = capsys.readouterr()
    assert ("DOES NOT HOLD" in printed.err) != holds
    assert f"{status} of 1 do not hold" in printed.out
    assert "| memory | less than 5 % | +7 % |" in (tmp_path / "robustness.md").read_text("utf-8")


def test_drawings_are_small_and_equal_for_equal_numbers(tmp_path: Path) -> None:
    lines = {"a < b": [(float(x), x % 7.0) for x in range(5000)], "c": [(1.0, 2.0)]}
    drawing = picture("Memory", "seconds", lines)
    assert drawing == picture("Memory", "seconds", lines)
    assert len(drawing) < 8000
    texts = [node.text for node in ElementTree.fromstring(drawing).iter() if node.tag.endswith("text")]
    assert {"Memory", "seconds", "a < b", "c"} <= set(texts)
    write(tmp_path, introduction="", measured_by="", rows=(), memory=lines, latencies={"fast": [0.1, 0.2]})
    pictures = {path.name for path in tmp_path.glob("*.svg")}
    page = (tmp_path / "robustness.md").read_text("utf-8")
    assert pictures == {"robustness-memory.svg", "robustness-latency.svg"}
    assert all(f"({name})" in page for name in pictures)


def test_a_hostile_server_is_the_same_for_its_seed() -> None:
    def first_bytes(seed: int) -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.shutdown(socket.SHUT_WR)  # who hangs sees that we left
            theirs.settimeout(0.2)
            with contextlib.suppress(OSError):  # it sends more than fits
                drawn(seed).conduct(theirs)
            theirs.shutdown(socket.SHUT_WR)
            return ours.recv(1000)

    firsts = [first_bytes(seed) for seed in range(12)]
    assert firsts == [first_bytes(seed) for seed in range(12)]
    assert len(set(firsts)) > 6
