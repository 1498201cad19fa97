"""A gateway and its worker: separates and pairs their answers to the same requests."""

from __future__ import annotations

from collections.abc import Iterable

from tokenwire.record import Answer
from tokenwire.target.determinism import AnswerPair, side_by_side

GATEWAY, WORKER = "gateway", "worker"
"""Scenarios of the exchanges with each. Only captures contain the second name."""


def apart(streams: Iterable[Answer]) -> tuple[list[Answer], list[AnswerPair]]:
    """Split answers into single ones and pairs of worker and gateway."""
    found: dict[str, list[Answer]] = {GATEWAY: [], WORKER: [], "": []}
    for stream in streams:
        scenario = stream.exchange.scenario
        found[scenario if scenario in found else ""].append(stream)
    return found[""], side_by_side(found[WORKER], found[GATEWAY])
