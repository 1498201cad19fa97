"""One server under load: its memory, its cache pages, and its answers afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count, pairwise
from typing import Any

from proofs.soaking.figures import Figures, Sample
from proofs.soaking.largest import largest_values
from proofs.soaking.serving import Served, emptied, ids, served

MOST_GROWTH = 1.05
MOST_KEPT = 500
"""In bytes for each request."""
SLICES = 5
"""The number of parts of a load. The memory is measured after each part."""
POOL = 4000
"""In tokens. The pool is smaller than one context, so that one request can need all pages."""
FLAGS = ("--max-total-tokens", str(POOL), "--enable-metrics")
WORKERS = 24
_VOLATILE = re.compile(rb'"(id|created|e2e_latency|request_id|[a-z_]*_(time|ts|latency))":("[^"]*"|[-\d.e]+)')


def short(choice: random.Random) -> tuple[str, Any]:
    """Return a request of a few tokens."""
    body: dict[str, Any]
    if choice.random() < 0.2:
        body = {"model": "builtin:tiny", "prompt": ids(choice, 8), "max_tokens": 4, "temperature": 0}
        return "/v1/completions", body | {"stream": choice.random() < 0.5}
    sampling = {"max_new_tokens": 4, "temperature": choice.choice((0, 1))}
    return "/generate", {
        "input_ids": ids(choice, 8),
        "sampling_params": sampling,
        "stream": choice.random() < 0.5,
    }


def mixed(choice: random.Random, rid: str) -> tuple[str, Any]:
    """Return a request with any of the options."""
    body: dict[str, Any]
    budget, stream, temperature = choice.randint(1, 60), choice.random() < 0.6, choice.choice((0, 0.7, 1.5))
    if choice.random() < 0.3:
        words = " ".join(
            choice.choices(("one", "walks", "of", "the", "\u8a9e", "7"), k=choice.randint(1, 20))
        )
        body = {"model": "builtin:tiny", "messages": [{"role": "user", "content": words}], "rid": rid}
        asked = {
            "max_tokens": budget,
            "temperature": temperature,
            "n": choice.choice((1, 1, 2, 4)),
            "stream": stream,
        }
        return "/v1/chat/completions", body | asked | {"logprobs": choice.random() < 0.3}
    sampling: dict[str, Any] = {"max_new_tokens": budget, "temperature": temperature, "ignore_eos": True}
    for more in (
        {"stop": ["the", "e o"]},
        {"stop_regex": [r"\w+ing\b"]},
        {"frequency_penalty": 0.5, "repetition_penalty": 1.1},
        {"logit_bias": {"40": 3}},
        {"top_p": 0.8, "top_k": 20, "min_p": 0.01},
    ):
        sampling |= more if choice.random() < 0.2 else {}
    body = {"input_ids": ids(choice, 60), "sampling_params": sampling, "stream": stream, "rid": rid}
    if choice.random() < 0.1:
        body |= {"input_ids": [ids(choice, 20) for _ in range(3)], "rid": [f"{rid}-{i}" for i in range(3)]}
    elif choice.random() < 0.3:
        body |= {"return_logprob": True, "top_logprobs_num": choice.randint(0, 5), "logprob_start_len": 0}
    return "/generate", body


async def one_of_the_mix(server: Served, choice: random.Random, number: int) -> None:
    """Send a request. One in ten is aborted while it runs, and one in ten is disconnected by its client."""
    path, body = mixed(choice, rid := f"soak-{number}")
    fate = choice.random()
    if fate < 0.1:
        await server.counted(path, body, leave_after=choice.choice((0, 1, 500, 3000)))
    elif fate < 0.2:
        asked = asyncio.create_task(server.counted(path, body))
        await asyncio.sleep(choice.uniform(0, 0.3))
        await server.ask("/abort_request", {"rid": rid})
        await asked
    else:
        await server.counted(path, body)


async def load(ask: Callable[[int], Any], go_on: Callable[[int], bool]) -> None:
    """Send as many requests at the same time as there are workers, until `go_on` returns False."""
    numbers = count()

    async def work() -> None:
        while go_on(number := next(numbers)):
            await ask(number)

    async with asyncio.TaskGroup() as workers:
        for _ in range(WORKERS):
            workers.create_task(work())


def within(seconds: float) -> Callable[[int], bool]:
    """Return a predicate that is True for a number of seconds from now."""
    until = time.monotonic() + seconds
    return lambda _: time.monotonic() < until


@contextlib.asynccontextmanager
async def watched(server: Served, samples: list[Sample], what: str, began: float) -> AsyncIterator[None]:
    """Record the memory of the server twice a second."""

    async def watch() -> None:
        while True:
            samples.append((time.monotonic() - began, what, server.megabytes))
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


def growth(megabytes: Sequence[float]) -> float:
    """Return the ratio of the last fifth of the samples to the second fifth. The first fifth is the warm-up.

    The result is infinity for fewer than five samples, because such a short load shows nothing.
    """
    fifth = len(megabytes) // 5
    if not fifth:
        return math.inf
    return statistics.median(megabytes[-fifth:]) / statistics.median(megabytes[fifth : 2 * fifth])


def kept(counts: Sequence[tuple[int, int]]) -> float:
    """Return how many bytes remain for each request. Each count is a number of requests and the bytes in use
    then.

    The result is the median of the parts, because a table that grows once is not a leak.
    """
    return statistics.median((more - held) / (n - m) for (m, held), (n, more) in pairwise(counts))


async def soak(figures: Figures, requests: int, seconds: float, seed: int) -> None:
    """Send short requests, then mixed load, and measure the resources that remain in use."""
    with served(*FLAGS) as server, served(*FLAGS) as fresh:
        choice, began = random.Random(seed), time.monotonic()
        async with watched(server, figures.memory, "warm-up", began):
            await load(lambda n: one_of_the_mix(server, choice, n), within(min(20, seconds / 2)))
        begun, counts = time.monotonic(), [(0, await server.held())]
        async with watched(server, figures.memory, "short", began):
            for _ in range(SLICES):
                await load(
                    lambda _: server.counted(*short(choice)), lambda number: number < requests // SLICES
                )
                counts.append((counts[-1][0] + requests // SLICES, await server.held()))
        rate = requests / (time.monotonic() - begun)
        numbers = count(10**6)
        counts_of_mix = [(0, counts[-1][1])]
        async with watched(server, figures.memory, "mixed", began):
            for _ in range(SLICES):
                await load(lambda _: one_of_the_mix(server, choice, next(numbers)), within(seconds / SLICES))
                counts_of_mix.append((next(numbers) - 10**6, await server.held()))
        for what, name, counted in (
            ("short", f"{requests:,} short requests, {rate:.0f}/s", counts),
            ("mixed", f"{seconds:.0f} s of mixed load", counts_of_mix),
        ):
            stays = kept(counted)
            figures.demand(
                f"bytes that stay of a request, {name}",
                f"less than {MOST_KEPT}",
                f"{stays:.0f}",
                holds=stays < MOST_KEPT,
            )
            grown = growth([megabytes for _, kind, megabytes in figures.memory if kind == what])
            figures.demand(
                f"memory, {name}",
                f"grows by less than {MOST_GROWTH - 1:.0%}",
                f"{grown - 1:+.1%}" if grown < math.inf else "too short to tell; ask for more",
                holds=grown < MOST_GROWTH,
            )
        await largest_values(figures, server)
        failed = {end: times for end, times in server.answers.items() if end not in ("200", "left")}
        ends = "; ".join(f"{end}: {times:,}" for end, times in sorted(server.answers.items()))
        figures.demand("requests", "none stuck, none failed", ends, holds=not failed)
        await nothing_is_left(figures, server)
        for item in (server, fresh):
            await item.ask("/flush_cache", {})
        same = await answers(server, seed) == await answers(fresh, seed)
        demanded = "equal to a fresh server, bit for bit"
        figures.demand("answers", demanded, "equal" if same else "other", holds=same)
        log = server.log.read_text("utf-8", "replace")
        figures.demand("log", "empty", log[:500] or "empty", holds=not log)


async def nothing_is_left(figures: Figures, server: Served) -> None:
    """Check that the memory of all requests is free again. A last request needs all of it."""
    left = await emptied(server)
    figures.demand("left of all requests", "nothing", left or "nothing", holds=not left)
    body = {"input_ids": [9] * (POOL - 16), "sampling_params": {"max_new_tokens": 16, "ignore_eos": True}}
    await server.ask("/flush_cache", {})
    whole = b'"completion_tokens":16' in await server.counted("/generate", body)
    figures.demand("pages of the cache", "none lost", "none lost" if whole else "some lost", holds=whole)


async def answers(server: Served, seed: int) -> list[bytes]:
    """Return the answers to fixed requests, sent one at a time, without ids and times."""
    choice, bodies = random.Random(seed), []
    for number in range(40):
        path, body = mixed(choice, f"probe-{number}")
        body["stream"] = False
        sampling = body if "messages" in body else body["sampling_params"]
        sampling["seed" if "messages" in body else "sampling_seed"] = number
        answer = (await server.counted(path, body)).partition(b"\r\n\r\n")[2]
        bodies.append(_VOLATILE.sub(b"", answer))
    return bodies
