"""Make a page of the documentation, with drawings, from the figures of the benchmarks.

    python -m benchmarks.page benchmarks/results docs

Reads what `delivery.py`, `engine.py`, `recorder.py`, `watch.py`, `gpu.py`, `scale_out.py`, `judging.py` and
`large_captures.py` wrote with `--write`; writes `speed.md`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proofs.soaking.page import picture

Figures = dict[str, Any]

INTRODUCTION = """# Speed

The reference engine is written for readability, but runs beside real servers, so its speed matters. All
figures are processor times on two cores. Both alternatives of a comparison are measured alternately in one
run, so the ratios are more reliable than the absolute numbers. The measurements of the engine, the replicas
and judging shared the machine with other programs. All other measurements had the machine to themselves.
`benchmarks/NOTES.md` lists what was expected, changed and found.
"""


CHECK = """## The suite's share of the time

`tokenwire check -v` ends with the duration of the run, and the part of it in which the suite waited for the
server. The rest is the suite's own time. It has two parts. The first is the time without a running exchange:
loading, waiting between exchanges, judging and reporting. The second is the suite's processor time while
exchanges were running. This processor time counts as the suite's own even if the server was computing on
another core at the same time. So the reported share is never too small. Against the reference with a model
without weights, at commit 5e6e51f, the share was 40 % of a quick run (7.0 of 17.7 s) and 34 % of a standard
run (21.2 of 61.8 s). With a slower model, the share is smaller.
"""


STANDARD = """## Replay of a standard run

`python benchmarks/replay.py --beside CHECKOUT CAPTURE` replays a capture with two checkouts at the same time.
The table compares commit 952385a, which has 167 requirements, with commit 5e6e51f, which has 245. *Recorded
now* is the standard run of the reference at commit 5e6e51f (2,496 exchanges, 74 MB of responses). *Recorded
before* is the standard run at commit 952385a (2,041 exchanges). Since commit 5e6e51f, replays of the captures
in `fixtures/` have become slower by a factor of about 1.2:

| capture | 952385a | 5e6e51f | at most | ratio |
| ---: | ---: | ---: | ---: | ---: |
| recorded now | 41.9 s | 12.2 s | 549 MB | 0.29 |
| recorded before | 27.3 s | 9.2 s | 339 MB | 0.34 |
"""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---:"] * len(heads), *rows]
    return ["", *(f"| {' | '.join(line)} |" for line in lines), ""]


def delivery(figures: Figures, folder: Path) -> list[str]:
    """Events over HTTP, by what is asked for."""
    rows: list[list[str]] = []
    lines: dict[str, list[tuple[float, float]]] = {}
    for item in figures["cases"]:
        case, ratio = item["case"], item["bare"] / item["tokenwire"]
        rows.append(
            [
                *(case["mode"], str(case["streams"])),
                *("yes" if case["logprobs"] else "no", str(case["interval"])),
                *(f"{item['tokenwire']:.0f} µs", f"{item['bare']:.0f} µs"),
                *(f"{ratio:.2f}", f"{1e6 / item['tokenwire']:,.0f}"),
            ]
        )
        if case["mode"] == "incremental" and case["interval"] == 1:
            name = "with logprobs" if case["logprobs"] else "without logprobs"
            lines.setdefault(name, []).append((case["streams"], item["tokenwire"]))
            if not case["logprobs"]:
                lines.setdefault("bare uvicorn", []).append((case["streams"], item["bare"]))
    (folder / "speed-delivery.svg").write_text(
        picture("Processor time for each event (µs), incremental, a token each", "streams at once", lines),
        "utf-8",
    )
    lengths = [[f"{length:,}", f"{microseconds:.0f} µs"] for length, microseconds in figures["lengths"]]
    return [
        "## Delivery",
        "",
        "The table compares the whole server, with the scripted model, with a bare uvicorn application that",
        "sends the same prepared events. Both run alternately (`python benchmarks/delivery.py`). The client",
        "is not woken by each event: it reads every five milliseconds.",
        *table(
            ["mode", "streams", "logprobs", "interval", "an event", "bare", "ratio", "events/s of a core"],
            rows,
        ),
        "![Processor time for each event, by streams](speed-delivery.svg)",
        "",
        "One incremental stream, by its length:",
        *table(["tokens", "a token"], lengths),
    ]


def engine(figures: Figures) -> list[str]:
    """The engine beside transformers."""
    rows = [
        [
            *(item["name"], side, f"{item['tokens'] / seconds:.0f}"),
            f"{seconds / item['seconds']['tokenwire']:.2f}",
        ]
        for item in figures["compared"]
        for side, seconds in item["seconds"].items()
    ]
    percentiles = [
        [name, *(f"{item:.0f} ms" for item in figures[key])]
        for name, key in (("to the first token", "first"), ("between two tokens", "between"))
    ]
    return [
        "## The engine on one core",
        "",
        "The engine runs 32 requests to a random model of 46 million parameters, with one thread and batch",
        "invariance (`python benchmarks/engine.py`).",
        *table(["requests", "side", "tokens/s", "time beside tokenwire's"], rows),
        "Processor time of the mixed requests, all sent at once:",
        *table(["", "p50", "p90", "p99"], percentiles),
    ]


def recorder(figures: Sequence[Figures], folder: Path) -> list[str]:
    """Write the section about the time between the socket and the clock."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for item in figures:
        lines.setdefault(item["side"], []).append((item["streams"], item["cpu"]))
    (folder / "speed-recorder.svg").write_text(
        picture("Processor time of a client for each event (µs)", "streams at once", lines), "utf-8"
    )
    rows = [
        [
            *(str(item["streams"]), item["side"], f"{item['cpu']:.1f} µs", f"{item['beside_httpx']:.2f}"),
            *(f"{item['p50'] / 1000:.2f} ms", f"{item['p99'] / 1000:.2f} ms"),
        ]
        for item in figures
    ]
    heads = ["streams", "side", "an event", "beside httpx", "p50 later", "p99 later"]
    return [
        "## The recorder",
        "",
        "All streams send one event every 10 ms at the same time, as after a step of an engine. The delay",
        "compared with a raw socket is a difference of percentiles. Each percentile is a median of several",
        "rounds, and other programs may make the difference negative (`python benchmarks/recorder.py`).",
        *table(heads, rows),
        "![Processor time of a client for each event, by streams](speed-recorder.svg)",
        "",
    ]


def watch(figures: Figures) -> list[str]:
    """The watcher beside a proxy that only forwards."""
    rows = [
        [
            *(side["events"], side["side"], f"{side['cpu']:.1f} µs", f"{side['throughput']:.2f}"),
            *(f"{side['p50'] / 1000:.2f} ms", f"{side['p99'] / 1000:.2f} ms"),
        ]
        for side in figures["sides"]
    ]
    return [
        "## The watcher",
        "",
        "64 streams send an event at the same time. The client reads them directly from the server and",
        "through two proxies: a proxy that only forwards bytes, and `tokenwire watch`. Small events have",
        "200 bytes, large events 64 KiB. The server sends the next event when all streams have received the",
        "last one, so each read has one event. The cost of an event is the processor time of the proxy's",
        "process, including judging. Exchanges that do not fit into the spool are counted as",
        "`judge-too-slow`. The added delay is a difference of percentiles to the direct connection. Each",
        "percentile is a median of all rounds, and other programs may make the difference negative",
        "(`python benchmarks/watch.py`).",
        *table(["events", "side", "an event", "throughput", "added p50", "added p99"], rows),
        f"The judge process handles {figures['judge']:,.0f} events of a real server per second on one core.",
        "",
    ]


def gpu(figures: Figures | None) -> list[str]:
    heading = ["## The engine on a GPU", ""]
    if figures is None:
        return [*heading, "No GPU was available. `python benchmarks/gpu.py` measures on a GPU.", ""]
    return [
        *heading,
        f"{figures['requests']} requests on {figures['device']} (`python benchmarks/gpu.py`).",
        *table(figures["heads"], figures["rows"]),
    ]


def scale_out(figures: Figures) -> list[str]:
    """Replicas, directly and through gateways."""
    rows = [
        [
            *(str(way["replicas"]), way["way"], f"{way['events_per_second']:,.0f}"),
            *(f"{way['replica']:.0f} µs", f"{way['gateway']:.0f} µs" if way["gateway"] else ""),
        ]
        for way in figures["ways"]
    ]
    return [
        "## Replicas behind a gateway",
        "",
        f"{figures['streams']} streams of the scripted model run on {figures['cores']} cores, which client,",
        "gateway and replicas share (`python -m benchmarks.scale_out`).",
        "Events per second show the throughput of this machine, and not of replicas on separate machines.",
        "The processor time per event is more useful. The last two columns together show how many cores of",
        "a gateway one core of replicas keeps busy. The guide",
        "[Serve on several GPUs and hosts](guides/scale-out.md) explains the set-up.",
        *table(["replicas", "way", "events/s", "replicas, an event", "gateway, an event"], rows),
    ]


def judging(figures: Figures, folder: Path) -> list[str]:
    """The suite beside a straightforward judge."""
    (heads, *rows), (lengths, *costs) = figures["speed"], figures["length"]
    tokens = [float(length.split()[0]) for length in lengths[2:-1]]
    beside_the_shortest = {
        name: [(size, float(cost) / float(figures[0])) for size, cost in zip(tokens, figures, strict=True)]
        for name, _, *figures, _ in costs
    }
    (folder / "speed-judging.svg").write_text(
        picture(
            "Cost beside that of the shortest answer (1: flat)", "tokens of an answer", beside_the_shortest
        ),
        "utf-8",
    )
    return [
        "## Judging",
        "",
        "The table compares reading and judging by all requirements with a simple script, which splits",
        "lines, parses JSON and validates it with `jsonschema` (`python benchmarks/judging.py`). The stream",
        "is an extended recording: ids, texts, counters and every logprob differ from event to event.",
        *table(heads, rows),
        "The next table shows the cost of an event by the length of its stream. If the events grow with the",
        "stream, it shows the cost of a byte:",
        *table(lengths, costs),
        "![Cost of judging, by the length of an answer](speed-judging.svg)",
        "",
    ]


def large_captures(figures: list[list[str]]) -> list[str]:
    """Replays of captures that are larger than memory, in one process and in several."""
    heads, *rows = figures
    return [
        "## Replays of large captures",
        "",
        "The table shows `tokenwire replay --jobs N` for many exchanges of one server, and for incremental",
        "streams with logprobs (`python benchmarks/large_captures.py`). *Own* is the processor time of the",
        "main process, and *others* that of its N child processes. *Faster* is the measured speed-up over",
        "one process. *On idle cores* is the speed-up that these processor times allow if each process has",
        "an idle core. *At most* is the memory of the largest process, and *together* the memory of all",
        "processes. Measured at commit 5e6e51f.",
        *table(heads, rows),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("folder", type=Path, help="where speed.md is written")
    asked = parser.parse_args()

    def read(name: str) -> Any:
        path = asked.results / name
        if not path.exists():
            return None
        return json.loads(path.read_text("utf-8"))

    delivered, computed, replicas = read("delivery.json"), read("engine.json"), read("scale_out.json")
    lines = [INTRODUCTION]
    lines += delivery(delivered, asked.folder) if delivered else []
    lines += engine(computed) if computed else []
    lines += recorder(recorded, asked.folder) if (recorded := read("recorder.json")) else []
    lines += watch(watched) if (watched := read("watch.json")) else []
    lines.append(CHECK)
    lines += gpu(read("gpu.json"))
    lines += scale_out(replicas) if replicas else []
    lines += judging(judged, asked.folder) if (judged := read("judging.json")) else []
    lines.append(STANDARD)
    lines += large_captures(replayed) if (replayed := read("large_captures.json")) else []
    (asked.folder / "speed.md").write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    main()
