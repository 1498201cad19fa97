"""Checks of what a server says to what it cannot know."""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.checks.check import Observation, Target, check, observe
from tokenwire.checks.refusals import ABOUT_ACCESS_OR_LOAD
from tokenwire.checks.walk import start_place
from tokenwire.record import Stream
from tokenwire.target.honesty import SCENARIO, UNKNOWN_PATH

_NOT_FOUND = 404


@check("unknown-paths-are-not-found")
def unknown_paths_are_not_found(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A path that no server has; the scenario's other requests go to the endpoint."""
    exchange = stream.exchange
    if exchange.scenario != SCENARIO or not exchange.name.endswith(f"/{UNKNOWN_PATH}"):
        return
    if exchange.status is None or exchange.status in ABOUT_ACCESS_OR_LOAD:
        return
    message = f"{exchange.request.path}, which no server has, was answered with status {exchange.status}"
    place = start_place(stream)
    yield observe(place, expected=_NOT_FOUND, actual=exchange.status, message=message)
