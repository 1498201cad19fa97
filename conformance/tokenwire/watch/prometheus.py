"""The counts in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenwire import __version__
from tokenwire.watch.counts import Counts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "tokenwire_watch_"

_Samples = Mapping[tuple[tuple[str, str], ...], int]
"""Values by labels."""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _family(name: str, kind: str, help_text: str, samples: _Samples) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {help_text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for labels, value in samples.items():
        words = ",".join(f'{label}="{_escaped(held)}"' for label, held in labels)
        yield f"{_PREFIX}{name}{{{words}}} {value}" if words else f"{_PREFIX}{name} {value}"


def exposition(counts: Counts, waiting: int, under_way: int) -> str:
    """All metrics; `waiting` are bytes that wait for the judge, `under_way` open exchanges."""
    counters: list[tuple[str, str, _Samples]] = [
        ("connections_total", "Connections of clients.", {(): counts.connections}),
        ("exchanges_total", "Exchanges that ended, judged or not.", {(): counts.exchanges}),
        ("judged_total", "Exchanges that were judged.", {(): counts.judged}),
        ("conforming_total", "Exchanges that were judged and violate nothing.", {(): counts.conforming}),
        ("not_spoken_total", "Exchanges with endpoints that no dialect knows.", {(): counts.not_spoken}),
        (
            "gaps_total",
            "What passed and could not be judged, by reason.",
            {(("reason", reason),): number for reason, number in sorted(counts.gaps.items())},
        ),
        (
            "violations_total",
            "Exchanges that violate a requirement.",
            {
                (("requirement", requirement), ("level", level)): number
                for (requirement, level), number in sorted(counts.violations.items())
            },
        ),
        (
            "check_errors_total",
            "Checks that failed themselves.",
            {(("requirement", name),): number for name, number in sorted(counts.crashed.items())},
        ),
        ("recorded_total", "Violating exchanges that were written.", {(): counts.recorded}),
        ("unrecorded_total", "Violating exchanges that could not be written.", {(): counts.unrecorded}),
        ("unreachable_total", "Connections that the target did not take.", {(): counts.unreachable}),
        (
            "bytes_total",
            "Bytes that were passed on.",
            {
                (("direction", "to_target"),): counts.sent_bytes,
                (("direction", "to_client"),): counts.received_bytes,
            },
        ),
    ]
    gauges: list[tuple[str, str, _Samples]] = [
        ("open_connections", "Connections of clients that are open.", {(): counts.open_connections}),
        ("open_exchanges", "Exchanges that are under way.", {(): under_way}),
        ("waiting_bytes", "Bytes of traffic that wait for the judge.", {(): waiting}),
        ("info", "The version of tokenwire.", {(("version", __version__),): 1}),
    ]
    lines = [line for name, words, samples in counters for line in _family(name, "counter", words, samples)]
    lines += [line for name, words, samples in gauges for line in _family(name, "gauge", words, samples)]
    return "\n".join(lines) + "\n"
