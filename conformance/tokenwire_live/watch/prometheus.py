"""Formats the counts for Prometheus, in its text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from tokenwire import __version__
from tokenwire.wire.inert import inert
from tokenwire_live.watch.counts import Counts, Served
from tokenwire_live.watch.latency import EDGES, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "tokenwire_watch_"

_Labels = tuple[tuple[str, str], ...]
_Samples = Mapping[_Labels, int]


def _escaped(value: str) -> str:
    return inert(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {help_text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"


def _sample(name: str, labels: _Labels, value: float) -> str:
    words = ",".join(f'{label}="{_escaped(held)}"' for label, held in labels)
    return f"{_PREFIX}{name}{{{words}}} {value}" if words else f"{_PREFIX}{name} {value}"


def _family(name: str, kind: str, help_text: str, samples: _Samples) -> Iterator[str]:
    yield from _head(name, kind, help_text)
    yield from (_sample(name, labels, value) for labels, value in samples.items())


def _histogram(name: str, help_text: str, held: Mapping[_Labels, Histogram]) -> Iterator[str]:
    yield from _head(name, "histogram", help_text)
    for labels, histogram in held.items():
        # In this format, a bucket counts all values up to its bound.
        for edge, count in zip((*EDGES, "+Inf"), accumulate(histogram.counts), strict=True):
            yield _sample(f"{name}_bucket", (*labels, ("le", str(edge))), count)
        yield _sample(f"{name}_sum", labels, histogram.seconds)
        yield _sample(f"{name}_count", labels, sum(histogram.counts))


def _by(name: str, numbers: Mapping[str, int]) -> _Samples:
    return {((name, value),): number for value, number in sorted(numbers.items())}


def _counters(counts: Counts, served: Mapping[_Labels, Served]) -> Iterator[tuple[str, str, _Samples]]:
    judged = {labels: held.judged for labels, held in served.items()}
    conforming = {labels: held.conforming for labels, held in served.items()}
    violations = {
        (("requirement", requirement), ("level", level), *labels): number
        for labels, held in served.items()
        for (requirement, level), number in sorted(held.violations.items())
    }
    passed_on = {"to_target": counts.sent_bytes, "to_client": counts.received_bytes}
    yield "connections_total", "Connections of clients.", {(): counts.connections}
    yield "exchanges_total", "Exchanges that ended, judged or not.", {(): counts.exchanges}
    yield "judged_total", "Exchanges that were judged.", judged
    yield "conforming_total", "Exchanges that were judged and violate nothing.", conforming
    yield "unsampled_total", "Exchanges that --sample left out.", {(): counts.unsampled}
    yield "not_spoken_total", "Exchanges with endpoints that no dialect knows.", {(): counts.not_spoken}
    yield "gaps_total", "What passed and could not be judged, by reason.", _by("reason", counts.gaps)
    yield "violations_total", "Exchanges that violate a requirement.", violations
    yield "check_errors_total", "Checks that failed themselves.", _by("requirement", counts.crashed)
    yield "recorded_total", "Violating exchanges that were written.", {(): counts.recorded}
    yield "unrecorded_total", "Violating exchanges that could not be written.", {(): counts.unrecorded}
    yield "unreachable_total", "Connections that the target did not take.", {(): counts.unreachable}
    yield "bytes_total", "Bytes that were passed on.", _by("direction", passed_on)


def exposition(counts: Counts, waiting: int, under_way: int) -> str:
    """Return all metrics as text. `waiting`: bytes not judged yet. `under_way`: exchanges in progress."""
    served: dict[_Labels, Served] = {
        (("dialect", dialect), ("model", model)): held for (dialect, model), held in counts.served.items()
    }
    gauges: list[tuple[str, str, _Samples]] = [
        ("open_connections", "Connections of clients that are open.", {(): counts.open_connections}),
        ("open_exchanges", "Exchanges that are under way.", {(): under_way}),
        ("waiting_bytes", "Bytes of traffic that wait for the judge.", {(): waiting}),
        ("info", "The version of tokenwire.", {(("version", __version__),): 1}),
    ]
    lines = [line for item in _counters(counts, served) for line in _family(item[0], "counter", *item[1:])]
    lines += [line for name, words, samples in gauges for line in _family(name, "gauge", words, samples)]
    lines += _histogram(
        "time_to_first_token_seconds",
        "From the request to what a stream brings first.",
        {labels: held.latencies.first for labels, held in served.items()},
    )
    lines += _histogram(
        "time_between_tokens_seconds",
        "Between the tokens of streams.",
        {labels: held.latencies.between for labels, held in served.items()},
    )
    return "\n".join(lines) + "\n"
