"""A gateway and its worker: separates and pairs their answers to the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tokenwire.judging.chance import determinism, times_to_repeat
from tokenwire.record import Answer
from tokenwire.target.determinism import AnswerPair

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
