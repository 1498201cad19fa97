"""A gateway and its worker: separates and pairs their answers to the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tokenwire.judging.chance import determinism, times_to_repeat
from tokenwire.record import Answer
from tokenwire.target.determinism import AnswerPair
from tokenwire.wire.exchange import Exchange, ExchangeHead, exchange_name

GATEWAY, WORKER = "gateway", "worker"
"""Scenarios of the exchanges with each. Only captures contain the second name."""


def apart(streams: Iterable[Answer]) -> tuple[list[Answer], list[AnswerPair]]:
    """Split answers into single ones and pairs of worker and gateway."""
    found: dict[str, list[Answer]] = {GATEWAY: [], WORKER: [], "": []}
    for stream in streams:
        scenario = stream.exchange.scenario
        found[scenario if scenario in found else ""].append(stream)
    return found[""], side_by_side(found[WORKER], found[GATEWAY])


def question(stream: Answer) -> tuple[str, str]:
    """Return the dialect and the label, because the same question has a different scenario for a gateway and
    its worker.
    """
    return stream.dialect, stream.exchange.label


def side_by_side(
    worker: Sequence[Answer],
    gateway: Sequence[Answer],
    asked: Callable[[Answer], tuple[str, str]] = question,
) -> list[AnswerPair]:
    """Pair a worker's answers with its gateway's answers to the same requests.

    `asked` returns the key of a request.
    """
    seen = (determinism(worker), determinism(gateway))
    noise, enough = seen[0].noise | seen[1].noise, times_to_repeat(seen)
    ours = {asked(stream): stream for stream in worker}
    pairs = []
    for theirs in gateway:
        baseline = ours.get(asked(theirs))
        if baseline is not None:
            both = list(zip((baseline, theirs), seen, strict=True))
            repeats = all(
                side.trusts(stream) and side.anywhere and stream.asked.key not in side.contradicted
                for stream, side in both
            )
            steady = enough == 1 or all(side.alike(stream.exchange.name) >= enough for stream, side in both)
            pairs.append(AnswerPair(baseline, theirs, repeats, steady, noise))
    return pairs


_EXHIBIT, _BETWEEN = "exhibit", "--"
"""The first part of the label of a request of the gateway that its worker was asked, too, and what divides
the parts.
"""


def exhibit_name(exchange: ExchangeHead) -> str:
    """Return the name of the same request to the worker: it has the scenario and the label."""
    label = _BETWEEN.join((_EXHIBIT, exchange.scenario, exchange.label))
    return exchange_name(WORKER, label, exchange.named_dialect)


def is_exhibit(exchange: ExchangeHead) -> bool:
    """True if the worker was sent a request in which the gateway broke a requirement."""
    return exchange.scenario == WORKER and exchange.label.startswith(f"{_EXHIBIT}{_BETWEEN}")


def in_place(exchange: Exchange) -> Exchange:
    """Return the worker's exchange under the name and scenario that the gateway's has."""
    _, scenario, label = exchange.label.split(_BETWEEN, 2)
    return replace(exchange, name=exchange_name(scenario, label, exchange.named_dialect), scenario=scenario)
