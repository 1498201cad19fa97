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

The reference is written to be read, and is used beside real servers. These are processor times, both sides in
turns in one run, on two cores: ratios tell more than numbers. The engine, the replicas and judging shared
them with other programs, all else had them alone. `benchmarks/NOTES.md` lists what
was expected, changed and found.
"""


CHECK = """## Whose time a check takes

`tokenwire check` tells at its end how much of the time was not the server's: the time in which no
exchange was under way, from the start of the process on (loading, waiting between exchanges, judging,
reporting), and the processor time that it took itself while some were. What it computes counts as its
own even where the server worked beside it on another core, so the share is never too small.
Against the reference, which answers from a model without weights, it was, at commit 5e6e51f, 40 % of a
quick run (7.0 of 17.7 s) and 34 % of a standard run (21.2 of 61.8 s). A server whose model takes longer
has more of it.
"""


STANDARD = """## Replay of a standard run

`python benchmarks/replay.py --beside CHECKOUT CAPTURE` replays a capture by two checkouts at once. The
standard run of the reference (2,496 exchanges, 74 MB of answers), beside commit 952385a, the first that
was run against other servers, which looks for 167 requirements and not for 245; and such a run as that
commit itself recorded it (2,041 exchanges). Measured at commit 5e6e51f; since then the captures of
`fixtures/` take some 1.2 times as long:

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
        "The scripted model behind the whole server, beside a bare uvicorn application that sends the same",
        "finished events, a stream after the other (`python benchmarks/delivery.py`). No event wakes the",
        "client: it looks every five milliseconds.",
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
        "32 requests to a random model of 46 million parameters, one thread, batch invariance on",
        "(`python benchmarks/engine.py`).",
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
        "One event each 10 ms on every stream, all streams at once, as after a step of an engine. How",
        "much later than a raw socket a side says that events arrived is a difference of percentiles, each",
        "a median of turns: other programs may make it negative (`python benchmarks/recorder.py`).",
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
        "64 streams, an event on all of them at once, straight from the server and through two proxies:",
        "one that only forwards bytes, and `tokenwire watch`. Small events are of 200 bytes, large ones of",
        "64 KiB; the next is sent once all have come, and each read holds one. An event costs the processor",
        "time of the proxy's process until all is judged. What finds no room is counted as `judge-too-slow`;",
        "added is a difference of percentiles to what comes straight from the server, each a median of all",
        "turns: other programs may make it negative (`python benchmarks/watch.py`).",
        *table(["events", "side", "an event", "throughput", "added p50", "added p99"], rows),
        f"The judge behind it hears {figures['judge']:,.0f} events of a real server in a second of one core.",
        "",
    ]


def gpu(figures: Figures | None) -> list[str]:
    heading = ["## The engine on a GPU", ""]
    if figures is None:
        return [*heading, "No GPU was at hand. `python benchmarks/gpu.py` checks and measures on one.", ""]
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
        f"{figures['streams']} streams of the scripted model, on {figures['cores']} cores that client,",
        "gateway and replicas share (`python -m benchmarks.scale_out`). Events for each second of the clock",
        "say what this machine does with all of them, and nothing of replicas on machines of their own. What",
        "an event costs a core tells more: the last column beside the one before it says how many cores of a",
        "gateway one core of replicas keeps busy. [How to set it up](guides/scale-out.md).",
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
        "Reading and judging by all requirements, beside what a careful script does for each event: split",
        "lines, parse JSON and validate it with `jsonschema` (`python benchmarks/judging.py`). The stream is",
        "a recorded one, made longer: ids, texts, counters and every logprob differ from event to event.",
        *table(heads, rows),
        "What an event costs by the length of its stream, and a byte where events grow with the stream:",
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
        "`tokenwire replay --jobs N` of one server's many exchanges, and of its incremental streams with",
        "logprobs (`python benchmarks/large_captures.py`). Processor time of the process that was started,",
        "and of the N that it forked off; how much faster the clock says that is than one process, and how",
        "much faster it would be on as many idle cores, by these processor times. Memory of the largest",
        "process, and of all together. Measured at commit 5e6e51f.",
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
