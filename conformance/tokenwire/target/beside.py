"""A gateway beside its worker: which answers are whose, where both were asked the same."""

from __future__ import annotations

from collections.abc import Iterable

from tokenwire.record import Answer
from tokenwire.target.determinism import AnswerPair, side_by_side

GATEWAY, WORKER = "gateway", "worker"
"""Scenarios of the exchanges with either; the name of the second one is written into captures only."""


def apart(streams: Iterable[Answer]) -> tuple[list[Answer], list[AnswerPair]]:
    """Split the streams of a capture into single ones and the pairs of worker and gateway."""
    found: dict[str, list[Answer]] = {GATEWAY: [], WORKER: [], "": []}
    for stream in streams:
        scenario = stream.exchange.scenario
        found[scenario if scenario in found else ""].append(stream)
    return found[""], side_by_side(found[WORKER], found[GATEWAY])
