"""Streams of a gateway whose worker broke off: the suite asked for the cut, and the proxy reported it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tokenwire.dialects.control import Action, ControlCall
from tokenwire.record import Answer, integer

CUT = "cut-worker"
"""The name of the scenario, and of the capability."""
_CUTS = "cuts"
"""The field with the number of streams that were cut so far."""


def cuts(calls: Iterable[ControlCall]) -> Iterator[tuple[ControlCall, ControlCall]]:
    """Yield the calls around each cut: the request for the cut, and the end of the request."""
    done = [call for call in calls if call.action in {Action.CUT, Action.SPARE} and call.done]
    done.sort(key=lambda call: call.exchange.started)
    for first, last in pairwise(done):
        before, after = (integer(call.document.get(_CUTS)) for call in (first, last))
        in_order = (first.action, last.action) == (Action.CUT, Action.SPARE)
        if in_order and before is not None and after is not None and after > before:
            yield first, last


def severed(answers: Sequence[Answer], calls: Iterable[ControlCall]) -> tuple[Answer, ...]:
    """Return the streams whose worker was cut, in the order of their requests."""
    of_scenario = [answer for answer in answers if answer.exchange.scenario == CUT and answer.asked.stream]
    if not of_scenario:
        return ()
    spans = [(first.exchange.started, last.exchange.started) for first, last in cuts(calls)]
    return tuple(
        answer
        for answer in of_scenario
        if any(start <= answer.exchange.started <= end for start, end in spans)
    )
