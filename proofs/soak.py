"""The soak: a server under load for a long time, and the suite against servers that mean it ill.

One server of the reference gets many short requests, then mixed load: all that requests may ask for, one in
ten aborted, one in ten left by its client. Its memory grows by less than 5 % after a warm-up; no request is
stuck; no page of its cache is lost: a request as large as all of them runs; the log is empty; and it answers,
bit for bit, as a fresh server does.

Slow readers cost fast ones less than 1.3 in the 99th percentile: two servers are asked at the same time,
beside the same streams, which are read slowly from one and at once from the other; the median of several
turns counts.

The suite checks hostile servers that are drawn by seeds: always a report, bounded memory and time.

    python -m proofs.soak                      3,000 short requests, 40 s of mixed load, 50 hostile servers
    python -m proofs.soak --long               100,000 short requests, 30 minutes of mixed load
    python -m proofs.soak --only hostile --hostile 500
    python -m proofs.soak --long --write docs  write the page of the documentation, too

Exit status: 0 all of it holds, 1 something does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from proofs.hostile_servers import HostileServer, drawn
from proofs.soak_page import write
from tokenwire.judging.verdict import ExitStatus

MOST_GROWTH = 1.05
MOST_SLOWDOWN = 1.3
MOST_MEMORY = 300_000_000
"""Of a check of a hostile server."""
PATIENCE_S = 300
"""For any one request, and any one check: what takes longer is stuck."""
POOL = 4000
"""Tokens: less than one context, so that one request can need all pages."""
WORKERS = 24
SLOW_READERS = 8
_VOLATILE = re.compile(rb'"(id|created|e2e_latency|request_id|[a-z_]*_(time|ts|latency))":("[^"]*"|[-\d.e]+)')

_FAILED_IN_BAND = re.compile(rb'"(code|status_code)":5\d\d')

Sample = tuple[float, str, float]
"""Seconds since the start, what ran, and the megabytes of the server."""


@dataclass
class Figures:
    """What was measured, and what does not hold."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """What, what is demanded, what was measured."""
    broken: list[str] = field(default_factory=list)
    memory: list[Sample] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    """In seconds, sorted: of fast readers beside others that read at once, and slowly."""

    def demand(self, what: str, demanded: str, measured: str, *, holds: bool) -> None:
        self.rows.append((what, demanded, measured))
        print(
            f"{what}: {measured} ({demanded}){'' if holds else '  DOES NOT HOLD'}",
            file=sys.stderr,
            flush=True,
        )
        if not holds:
            self.broken.append(what)


# A server, and what is asked of it.


@dataclass
class Served:
    """A server of the reference in a process of its own."""

    port: int
    pid: int
    log: Path
    answers: Counter[str] = field(default_factory=Counter)
    """How requests ended: by status, left, or stuck."""

    @property
    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1])
        return pages * resource.getpagesize() / 1e6

    async def ask(
        self, path: str, body: Any = None, *, leave_after: int | None = None, pace: Pace | None = None
    ) -> bytes:
        """Ask, and read to the end, or leave after so many bytes; the answer with its head."""
        with contextlib.closing(socket.socket()) as own:
            if pace is not None:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, pace.bytes)
            own.setblocking(False)
            await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", self.port))
            reader, writer = await asyncio.open_connection(sock=own, limit=pace.bytes if pace else 1 << 20)
            try:
                data = b"" if body is None else json.dumps(body).encode()
                method = "GET" if body is None else "POST"
                head = f"{method} {path} HTTP/1.1\r\nhost: soak\r\nconnection: close\r\n"
                head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
                writer.write(head.encode() + data)
                answer = bytearray()
                while leave_after is None or len(answer) < leave_after:
                    if not (more := await reader.read(pace.bytes if pace else 1 << 16)):
                        break
                    answer += more
                    if pace is not None:
                        await asyncio.sleep(pace.seconds)
                return bytes(answer)
            finally:
                writer.transport.abort()

    async def counted(self, path: str, body: Any, **how: Any) -> bytes:
        """Ask, and count how it ended."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await self.ask(path, body, **how)
        except TimeoutError:
            self.answers["stuck"] += 1
            return b""
        except OSError:
            self.answers["broken off"] += 1
            return b""
        left = how.get("leave_after") is not None
        self.answers["left" if left else _end_of(answer)] += 1
        return answer


def _end_of(answer: bytes) -> str:
    """How an answer ended: its status, or what is wrong with it all the same."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if _FAILED_IN_BAND.search(body):
        return "failed in band"
    whole = body.endswith((b"}", b"]", b"data: [DONE]\n\n\r\n0\r\n\r\n"))
    return head[9:12].decode("latin-1") if whole else "cut off"


@dataclass(frozen=True)
class Pace:
    """How a slow reader reads."""

    bytes: int = 1024
    seconds: float = 0.05


@contextlib.contextmanager
def served(*flags: str) -> Iterator[Served]:
    """Serve the reference as long as this is open."""
    command = [sys.executable, "-m", "tokenwire_reference", "serve", "--port", "0", "--random-seed", "1"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with (
            log.open("wb") as errors,
            subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                words = process.stdout.readline().split()
                if not words:
                    raise RuntimeError(f"the server did not start: {log.read_text('utf-8')}")
                yield Served(int(words[-1].rpartition(":")[2]), process.pid, log)
            finally:
                process.terminate()


def ids(choice: random.Random, most: int) -> list[int]:
    """A prompt; half of them share a prefix."""
    prefix = list(range(100, 132)) if choice.random() < 0.5 else []
    return prefix + [choice.randrange(3, 700) for _ in range(choice.randint(1, most))]


def short(choice: random.Random) -> tuple[str, Any]:
    """A request of a few tokens."""
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
    """A request that may ask for anything."""
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
    """Ask something; one in ten is aborted on its way, one in ten left."""
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
    """Ask as many at a time as there are workers, as long as it is to go on."""
    numbers = count()

    async def work() -> None:
        while go_on(number := next(numbers)):
            await ask(number)

    async with asyncio.TaskGroup() as workers:
        for _ in range(WORKERS):
            workers.create_task(work())


@contextlib.asynccontextmanager
async def watched(server: Served, samples: list[Sample], what: str, began: float) -> AsyncIterator[None]:
    """Note the memory of the server twice a second."""

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
    """The last fifth of some samples over the second: the first is the warm-up."""
    fifth = max(1, len(megabytes) // 5)
    return statistics.median(megabytes[-fifth:]) / statistics.median(megabytes[fifth : 2 * fifth])


async def soak(figures: Figures, requests: int, seconds: float, seed: int) -> None:
    """Short requests, then mixed load, and what is left of them."""
    flags = ("--max-total-tokens", str(POOL), "--enable-metrics")
    with served(*flags) as server, served(*flags) as fresh:
        choice, began = random.Random(seed), time.monotonic()
        until = began + min(20, seconds / 2)
        async with watched(server, figures.memory, "warm-up", began):
            await load(lambda n: one_of_the_mix(server, choice, n), lambda _: time.monotonic() < until)
        begun = time.monotonic()
        async with watched(server, figures.memory, "short", began):
            await load(lambda _: server.counted(*short(choice)), lambda number: number < requests)
        rate = requests / (time.monotonic() - begun)
        until = time.monotonic() + seconds
        numbers = count(10**6)
        async with watched(server, figures.memory, "mixed", began):
            await load(
                lambda _: one_of_the_mix(server, choice, next(numbers)), lambda _: time.monotonic() < until
            )
        for what, name in (
            ("short", f"{requests:,} short requests, {rate:.0f}/s"),
            ("mixed", f"{seconds:.0f} s of mixed load"),
        ):
            grown = growth([megabytes for _, kind, megabytes in figures.memory if kind == what])
            figures.demand(
                f"memory, {name}",
                f"grows by less than {MOST_GROWTH - 1:.0%}",
                f"{grown - 1:+.1%}",
                holds=grown < MOST_GROWTH,
            )
        failed = {end: times for end, times in server.answers.items() if end not in ("200", "left")}
        told = "; ".join(f"{end}: {times:,}" for end, times in sorted(server.answers.items()))
        figures.demand("requests", "none stuck, none failed", told, holds=not failed)
        left = await emptied(server)
        figures.demand("left of all requests", "nothing", left or "nothing", holds=not left)
        body = {"input_ids": [9] * (POOL - 16), "sampling_params": {"max_new_tokens": 16, "ignore_eos": True}}
        await server.ask("/flush_cache", {})
        whole = b'"completion_tokens":16' in await server.counted("/generate", body)
        figures.demand("pages of the cache", "none lost", "none lost" if whole else "some lost", holds=whole)
        for each in (server, fresh):
            await each.ask("/flush_cache", {})
        same = await answers(server, seed) == await answers(fresh, seed)
        demanded = "those of a fresh server, bit for bit"
        figures.demand("answers", demanded, "equal" if same else "other", holds=same)
        log = server.log.read_text("utf-8", "replace")
        figures.demand("log", "empty", log[:500] or "empty", holds=not log)


async def emptied(server: Served) -> str:
    """What is left of requests once all are over; those of clients that left end in the next steps."""
    for _ in range(100):
        info = json.loads((await server.ask("/server_info")).partition(b"\r\n\r\n")[2])
        (state,) = json.loads((await server.ask("/v1/loads")).partition(b"\r\n\r\n")[2])["loads"]
        left = {
            "live": info["internal_states"][0]["num_live_requests"],
            "running": state["num_running_reqs"],
            "waiting": state["num_waiting_reqs"],
            "tokens": state["num_used_tokens"],
        }
        if not any(left.values()):
            return ""
        await asyncio.sleep(0.1)
    return str({name: value for name, value in left.items() if value})


async def answers(server: Served, seed: int) -> list[bytes]:
    """What is answered to fixed requests, one at a time, without ids and times."""
    choice, told = random.Random(seed), []
    for number in range(40):
        path, body = mixed(choice, f"probe-{number}")
        body["stream"] = False
        sampling = body if "messages" in body else body["sampling_params"]
        sampling["seed" if "messages" in body else "sampling_seed"] = number
        answer = (await server.counted(path, body)).partition(b"\r\n\r\n")[2]
        told.append(_VOLATILE.sub(b"", answer))
    return told


# Slow readers.


async def beside(server: Served, pace: Pace | None, requests: int, seed: int) -> list[float]:
    """How long short requests take beside long streams, which are read at this pace."""
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
    with served(flag) as one, served(flag) as other:
        await asyncio.gather(beside(one, None, requests, -1), beside(other, None, requests, -1))
        for number in range(pairs):
            fast, slow = (one, other) if number % 2 else (other, one)
            at_once, slowly = await asyncio.gather(
                beside(fast, None, requests, number), beside(slow, Pace(), requests, number)
            )
            ratios.append(percentile(slowly, 0.99) / percentile(at_once, 0.99))
            every["at once"] += at_once
            every["slowly"] += slowly
        log = "".join(server.log.read_text("utf-8", "replace") for server in (one, other))
    figures.latencies = {side: sorted(values) for side, values in every.items()}
    told = "; ".join(
        f"{side}: p50 {percentile(values, 0.5) * 1e3:.0f} ms, p99 {percentile(values, 0.99) * 1e3:.0f} ms"
        for side, values in figures.latencies.items()
    )
    ratio = statistics.median(ratios)
    figures.demand(
        f"p99 of fast readers beside {SLOW_READERS} slow ones, {pairs} pairs",
        f"less than {MOST_SLOWDOWN} of that beside {SLOW_READERS} fast ones",
        f"{ratio:.2f} (from {min(ratios):.2f} to {max(ratios):.2f}); others read {told}",
        holds=ratio < MOST_SLOWDOWN,
    )
    figures.demand("log beside slow readers", "empty", log[:500] or "empty", holds=not log)


# Hostile servers.


@dataclass(frozen=True)
class Trial:
    """How the check of a hostile server went."""

    fault: str
    """What was wrong with it; empty if nothing was."""
    seconds: float
    megabytes: float


def checked(seed: int) -> Trial:
    """Check the hostile server of a seed by the command line."""
    with tempfile.TemporaryDirectory() as folder, HostileServer(drawn(seed)) as server:
        report, errors = Path(folder, "report.json"), Path(folder, "errors")
        command = [sys.executable, "-m", "tokenwire", "check", "--target", server.url, "--timeout", "1"]
        begun = time.monotonic()
        with errors.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--json", str(report)], stdout=subprocess.DEVNULL, stderr=log, cwd=folder
            )
        overdue = threading.Timer(PATIENCE_S, process.kill)
        overdue.start()
        _, ended, usage = os.wait4(process.pid, 0)
        overdue.cancel()
        process.returncode = status = os.waitstatus_to_exitcode(ended)
        fault = ""
        if status not in {ExitStatus.CONFORMS, ExitStatus.VIOLATION, ExitStatus.NOTHING_EVALUATED}:
            fault = f"status {status}: {errors.read_text('utf-8', 'replace')[-300:]}"
        elif "Traceback" in errors.read_text("utf-8", "replace"):
            fault = "a traceback"
        elif not report.exists() or json.loads(report.read_text("utf-8"))["summary"]["HARNESS_ERROR"]:
            fault = "no report, or one of our own failures"
        elif usage.ru_maxrss * 1024 > MOST_MEMORY:
            fault = f"{usage.ru_maxrss * 1024 / 1e6:.0f} MB"
        return Trial(fault, time.monotonic() - begun, usage.ru_maxrss * 1024 / 1e6)


async def hostile(figures: Figures, servers: int, seed: int) -> None:
    """Check so many hostile servers, some at a time: most of them let the suite wait."""
    slots = asyncio.Semaphore(4)

    async def one(number: int) -> Trial:
        async with slots:
            return await asyncio.to_thread(checked, number)

    trials = await asyncio.gather(*(one(seed + number) for number in range(servers)))
    faults = {seed + number: trial.fault for number, trial in enumerate(trials) if trial.fault}
    figures.demand(
        f"the suite against {servers} hostile servers",
        f"a report, less than {MOST_MEMORY / 1e6:.0f} MB and {PATIENCE_S} s",
        f"{servers - len(faults)} reports, at most {max(one.megabytes for one in trials):.0f} MB and "
        f"{max(one.seconds for one in trials):.0f} s" + (f"; by seed: {faults}" if faults else ""),
        holds=not faults,
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", action="store_true", help="100,000 requests and 30 minutes; hours in all")
    parser.add_argument("--requests", type=int, help="short ones")
    parser.add_argument("--seconds", type=float, help="of mixed load")
    parser.add_argument("--pairs", type=int, help="of measurements beside slow and fast readers")
    parser.add_argument("--hostile", type=int, default=50, metavar="N", help="hostile servers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("soak", "slow-readers", "hostile"), action="append")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write robustness.md and its pictures")
    options = parser.parse_args()
    requests = options.requests or (100_000 if options.long else 3_000)
    seconds = options.seconds or (1800.0 if options.long else 40.0)
    pairs = options.pairs or (15 if options.long else 5)
    figures = Figures()

    async def run() -> None:
        parts = options.only or ("soak", "slow-readers", "hostile")
        if "soak" in parts:
            await soak(figures, requests, seconds, options.seed)
        if "slow-readers" in parts:
            await slow_readers(figures, pairs, 400 if options.long else 200)
        if "hostile" in parts:
            await hostile(figures, options.hostile, options.seed)

    asyncio.run(run())
    table = Table("", "demanded", "measured")
    for row in figures.rows:
        table.add_row(*row)
    Console().print(table)
    if options.write is not None:
        curves = {
            part: [(at, megabytes) for at, what, megabytes in figures.memory if what == part]
            for part in dict.fromkeys(what for _, what, _ in figures.memory)
        }
        machine = f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[2]:.0f}"
        write(
            options.write,
            introduction=(__doc__ or "").partition("\n\n")[2].partition("\n\n    python")[0],
            measured_by=f"`python -m proofs.soak {' '.join(sys.argv[1:])}` on {machine}",
            rows=figures.rows,
            memory=curves,
            latencies={f"others read {side}": values for side, values in figures.latencies.items()},
        )
    print(f"{len(figures.broken)} of {len(figures.rows)} do not hold")
    return 1 if figures.broken else 0


if __name__ == "__main__":
    sys.exit(main())
