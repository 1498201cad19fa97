"""Checks of stored responses, which are retrieved, made in the background, cancelled and deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tokenwire.checks.check import Target, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import end_place
from tokenwire.checks.reading.times import began, over
from tokenwire.dialects.control import UNDER_WAY, Action, ControlCall
from tokenwire.dialects.dialect import dialect_of, has_items
from tokenwire.record import Answer, Stream, fact

_FIELDS = (
    *("id", "object", "created_at", "model", "status", "error", "incomplete_details"),
    *("output", "usage"),
)
"""The fields of a response that do not change once it has ended."""
_ONLY_THERE = frozenset({"background", "store"})
"""The request fields that only a request in the background has.

The same request in the foreground lacks them.
"""
_NOT_STORED = 404


class _Given(NamedTuple):
    """The identity of an answered response."""

    name: str
    stored: object
    """The value of `store` in its request; None without one."""


def _stored_body(answer: Stream) -> Mapping[str, Any]:
    body = answer.exchange.request.body
    return body if isinstance(body, Mapping) else {}


def _response(answer: Stream) -> Mapping[str, Any]:
    """Return the response object of an answer: the whole document, or the object in the last event of a
    stream that has one.
    """
    found: Any = {}
    for event in answer.events:  # the last event may be an end mark, which is not an object
        if isinstance(event.data, Mapping):
            found = event.data.get("response", found) if answer.asked.stream else event.data
    return found if isinstance(found, Mapping) else {}


@fact(Stream)
def _given(answer: Stream) -> _Given | None:
    """Return the identity of a response that was answered to its end; None for other answers."""
    response = _response(answer) if has_items(answer) and answer.answered else {}
    name = response.get("id")
    is_one = response.get("object") == "response" and isinstance(name, str)
    return _Given(str(name), _stored_body(answer).get("store")) if is_one else None


def _retrieved(target: Target) -> Iterator[tuple[str, ControlCall, bool]]:
    """Yield each answered retrieval with the id, and True if the response had been deleted."""
    deleted: set[str] = set()
    for call in target.calls:
        for name in call.ids:
            if call.action is Action.DELETE and call.done:
                deleted.add(name)
            if call.action is Action.RETRIEVE and (call.done or call.exchange.status == _NOT_STORED):
                yield name, call, name in deleted


def _answers(streams: tuple[Answer, ...]) -> dict[str, tuple[Answer, _Given]]:
    """Return the answered responses by their ids."""
    known = ((answer, given) for answer in streams if (given := _given(answer)) is not None)
    return {given.name: (answer, given) for answer, given in known}


@check_run("retrieved-response-is-the-answer")
def _retrieved_response_is_the_answer(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the fields of a retrieved response are those of the answer."""
    found = list(_retrieved(target))
    answers = _answers(streams) if any(call.done for _, call, _ in found) else {}
    for name, call, deleted in found:
        answer, given = answers.get(name, (None, None))
        if answer is None or given is None or deleted or given.stored is not True:
            continue
        place, label = end_place(answer), call.exchange.label
        if not call.done:
            message = f"{label}: status {_NOT_STORED} for a response that was to be stored"
            yield expect(place, "the response", _NOT_STORED, message, holds=False)
            continue
        ours, theirs = _response(answer.load()), call.document
        differing = [field for field in _FIELDS if ours.get(field) != theirs.get(field)]
        for field in differing:
            message = f"{label}: the retrieved response has another {field}"
            yield expect(place, ours.get(field), theirs.get(field), message, holds=False)
        if not differing:
            yield expect(place, "the same response", "the same response")


@check_run("unstored-response-is-not-retrieved")
def _unstored_response_is_not_retrieved(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a response is not retrieved if its request forbade to store it, or after its deletion."""
    answers = _answers(streams)
    for name, call, deleted in _retrieved(target):
        answer, given = answers.get(name, (None, None))
        if answer is None or given is None or not (deleted or given.stored is False):
            continue
        why = "that was deleted" if deleted else "whose request says store false"
        message = f"{call.exchange.label}: a response {why} was retrieved"
        status = call.exchange.status
        yield expect(end_place(answer), _NOT_STORED, status, message, holds=not call.done)


def _plain(value: Any, names: frozenset[str]) -> Any:
    """Return a JSON value without the fields of these names."""
    if isinstance(value, list):
        return [_plain(entry, names) for entry in value]
    if isinstance(value, Mapping):
        return {key: _plain(inner, names) for key, inner in value.items() if key not in names}
    return value


def _asked_in_the_foreground(call: ControlCall, answer: Answer) -> bool:
    """True if an answer is to the same request as a response in the background."""
    if _given(answer) is None or answer.asked.stream or not answer.asked.greedy:
        return False
    body = call.exchange.load().request.body
    return bool(_plain(body, _ONLY_THERE) == _plain(_stored_body(answer.load()), _ONLY_THERE))


def _outlived(looked: ControlCall, begun: ControlCall, answer: Answer) -> bool:
    """True if an answer began after a response in the background, and ended before a retrieval of that
    response.
    """
    times = over(begun.exchange), began(answer.exchange), over(answer.exchange), began(looked.exchange)
    known = [time for time in times if time is not None]
    return len(known) == len(times) and known == sorted(known)


@check_run("background-response-ends")
def _background_response_ends(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Compare the last retrieval of a response in the background with the answer to the same request in the
    foreground.
    """
    cancelled = {name for call in target.calls if call.action is Action.CANCEL for name in call.ids}
    looks = {name: call for name, call, deleted in _retrieved(target) if call.done and not deleted}
    for begun in target.calls:
        name = str(begun.document.get("id")) if begun.action is Action.BEGIN and begun.done else ""
        looked = looks.get(name)
        beside = [answer for answer in streams if _asked_in_the_foreground(begun, answer)] if looked else []
        if looked is None or name in cancelled or not beside:
            continue
        answer = next((other for other in beside if _outlived(looked, begun, other)), None)
        status, label = looked.document.get("status"), looked.exchange.label
        if status in UNDER_WAY:
            if answer is not None:
                message = f"{label}: it is {status} after {answer.exchange.label} began later and ended"
                yield expect(end_place(answer), "an ended response", status, message, holds=False)
            continue
        answer = answer or beside[0]
        dialect = dialect_of(answer)
        names = dialect.volatile if dialect is not None else frozenset()
        names |= {"id"}
        ours, theirs = _response(answer.load()), looked.document
        for field in ("status", "output"):
            expected, actual = (_plain(held.get(field), names) for held in (ours, theirs))
            message = f"{label}: the response has another {field} than in the foreground"
            yield expect(end_place(answer), expected, actual, message, by_chance=field == "output")


@check_run("cancelled-response-ends")
def _cancelled_response_ends(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a cancelled response has ended, and that later retrievals show the same status."""
    firsts: dict[str, Answer] = {}
    for answer in streams:
        firsts.setdefault(answer.exchange.scenario, answer)
    ended: dict[str, Any] = {}
    for call in target.calls:
        beside = firsts.get(call.exchange.scenario)
        if beside is None or not call.done or call.action not in {Action.CANCEL, Action.RETRIEVE}:
            continue
        status, label = call.document.get("status"), call.exchange.label
        for name in call.ids:
            if call.action is Action.CANCEL:
                message = f"{label}: a response is {status} after its cancellation was answered"
                holds = isinstance(status, str) and status not in UNDER_WAY
                yield expect(end_place(beside), "a last status", status, message, holds=holds)
                if holds:
                    ended.setdefault(name, status)
            elif name in ended:
                message = f"{label}: a cancelled response is {status}, and it was {ended[name]}"
                yield expect(end_place(beside), ended[name], status, message)
