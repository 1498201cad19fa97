"""The answers of a gateway and its worker: separate them from other answers, and pair them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tokenwire.judging.chance import determinism, times_to_repeat
from tokenwire.record import Answer
from tokenwire.target.determinism import AnswerPair
from tokenwire.wire.exchange import Exchange, ExchangeHead, exchange_name

GATEWAY, WORKER = "gateway", "worker"
"""The scenario names of exchanges with the gateway and with the worker.

The name for the worker occurs only in captures.
"""


def apart(streams: Iterable[Answer]) -> tuple[list[Answer], list[AnswerPair]]:
    """Split answers into unpaired answers, and pairs of a worker's and its gateway's answer."""
    found: dict[str, list[Answer]] = {GATEWAY: [], WORKER: [], "": []}
    for stream in streams:
        scenario = stream.exchange.scenario
        found[scenario if scenario in found else ""].append(stream)
    return found[""], side_by_side(found[WORKER], found[GATEWAY])


def question(stream: Answer) -> tuple[str, str]:
    """Return the dialect and the label of an exchange.

    The dialect and the label identify a request at both servers, because the scenario differs between gateway
    and worker.
    """
    return stream.dialect, stream.exchange.label


def side_by_side(
    worker: Sequence[Answer],
    gateway: Sequence[Answer],
    asked: Callable[[Answer], tuple[str, str]] = question,
) -> list[AnswerPair]:
    """Pair a worker's answers with its gateway's answers to the same requests.

    `asked` returns the key by which requests are paired.
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
"""The first part of the label of a gateway's request that was repeated at the worker, and the separator of
the parts.
"""


def exhibit_name(exchange: ExchangeHead) -> str:
    """Return the name of the exchange in which a gateway's request is repeated at the worker."""
    label = _BETWEEN.join((_EXHIBIT, exchange.scenario, exchange.label))
    return exchange_name(WORKER, label, exchange.named_dialect)


def is_exhibit(exchange: ExchangeHead) -> bool:
    """True if an exchange repeats at the worker a request with which the gateway violated a requirement."""
    return exchange.scenario == WORKER and exchange.label.startswith(f"{_EXHIBIT}{_BETWEEN}")


def in_place(exchange: Exchange) -> Exchange:
    """Return the worker's exchange under the name and scenario of the gateway's exchange."""
    _, scenario, label = exchange.label.split(_BETWEEN, 2)
    return replace(exchange, name=exchange_name(scenario, label, exchange.named_dialect), scenario=scenario)
