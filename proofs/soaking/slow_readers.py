"""Measure the cost of slow readers for fast ones."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence

from proofs.soaking.figures import Figures
from proofs.soaking.serving import Pace, Served, emptied, ids, served

MOST_SLOWDOWN = 1.3
SLOW_READERS = 8


async def beside(server: Served, pace: Pace | None, requests: int, seed: int) -> list[float]:
    """Measure the latencies of short requests, while long streams are read at this pace."""
    choice, numbers = random.Random(seed), iter(range(requests))
    latencies = []
    long = {"input_ids": [7, 8, 9], "return_logprob": True, "top_logprobs_num": 5, "stream": True}
    long["sampling_params"] = {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0}

    async def fast() -> None:
        for _ in numbers:
            begun = time.monotonic()
            sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
            await server.ask("/generate", {"input_ids": ids(choice, 8), "sampling_params": sampling})
            latencies.append(time.monotonic() - begun)

    readers = [asyncio.create_task(server.ask("/generate", long, pace=pace)) for _ in range(SLOW_READERS)]
    async with asyncio.TaskGroup() as askers:
        for _ in range(4):
            askers.create_task(fast())
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    await server.ask("/abort_request", {"abort_all": True})
    await emptied(server)
    return latencies


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def slow_readers(figures: Figures, pairs: int, requests: int) -> None:
    """Fast requests beside slow readers, and beside the same streams read at once.

    Two servers, at the same time, which take turns at being read slowly: whatever else the machine does, it
    does to both.
    """
    every: dict[str, list[float]] = {"at once": [], "slowly": []}
    ratios = []
    flag = "--incremental-streaming-output"
    with served(flag) as first, served(flag) as second:
        await asyncio.gather(beside(first, None, requests, -1), beside(second, None, requests, -1))
        for number in range(pairs):
            fast, slow = (first, second) if number % 2 else (second, first)
            at_once, slowly = await asyncio.gather(
                beside(fast, None, requests, number), beside(slow, Pace(), requests, number)
            )
            ratios.append(percentile(slowly, 0.99) / percentile(at_once, 0.99))
            every["at once"] += at_once
            every["slowly"] += slowly
        log = "".join(server.log.read_text("utf-8", "replace") for server in (first, second))
    figures.latencies = {side: sorted(values) for side, values in every.items()}
    percentiles = "; ".join(
        f"{side}: p50 {percentile(values, 0.5) * 1e3:.0f} ms, p99 {percentile(values, 0.99) * 1e3:.0f} ms"
        for side, values in figures.latencies.items()
    )
    ratio = statistics.median(ratios)
    figures.demand(
        f"p99 of fast readers with {SLOW_READERS} slow readers, {pairs} pairs",
        f"less than {MOST_SLOWDOWN} times p99 with {SLOW_READERS} fast readers",
        f"{ratio:.2f} (from {min(ratios):.2f} to {max(ratios):.2f}); others read {percentiles}",
        holds=ratio < MOST_SLOWDOWN,
    )
    figures.demand("log with slow readers", "empty", log[:500] or "empty", holds=not log)
