"""Checks of partial rollouts: an abort of all requests, a pause, and the version of the weights."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tokenwire.checks.about import ended, finished_choices, is_error
from tokenwire.checks.agreement import same_beginning
from tokenwire.checks.check import Target, check_run
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import end_place
from tokenwire.checks.reading.refusals import refused_as_bad
from tokenwire.checks.reading.times import INSTANT_S, began, delivered_at, over
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.record import Answer, Choice, ChoiceFacts, Place, fact
from tokenwire.typed_table import counted


def _under_way(stream: Answer, call: ControlCall) -> bool:
    """True if a call was sent while a request was running."""
    start, sent, end = began(stream.exchange), began(call.exchange), over(stream.exchange)
    return start is not None and sent is not None and end is not None and start < sent < end


def _place(call: ControlCall) -> Place:
    return Place(call.exchange.name)


def _aborted(streams: tuple[Answer, ...], target: Target) -> Iterator[tuple[Answer, ControlCall]]:
    """Yield the requests that were running when all requests were aborted, each with the first such abort."""
    calls = [call for call in target.aborts if call.everything]
    for stream in streams if calls else ():
        call = next((abort for abort in calls if _under_way(stream, abort)), None)
        if call is not None:
            yield stream, call


@check_run("abort-all-ends-every-request")
def _abort_all_ends_every_request(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that an abort of all requests ends each request that has less than a quarter of its tokens."""
    for stream, call in _aborted(streams, target):
        budget, answered = stream.asked.max_new_tokens, over(call.exchange)
        come = None if answered is None else delivered_at(stream.load(), answered)
        if budget is None or come is None or come * 4 > budget or not ended(stream):
            continue
        for choice in finished_choices(stream):
            if choice.finish is not None and choice.finish.type in {"abort", "length"}:
                yield expect(
                    choice.last_at("finish"),
                    "an end before the budget",
                    choice.finish.type,
                    "all requests were aborted, but this one continued to the end of its budget",
                    holds=choice.finish.type == "abort",
                    related=(_place(call),),
                )


@check_run("abort-all-gives-back")
def _abort_all_gives_back(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that an abort of all requests ends each request with status 200, no error, and a list of ids.

    The list may be empty.
    """
    for stream, call in _aborted(streams, target):
        if refused_as_bad(stream, target):  # a refusal, not an abort, ended this request
            continue
        status = stream.exchange.status
        if status != 200 or stream.error is not None or not stream.choices:
            message = "all requests were aborted, but this one was answered with an error"
            expected = "status 200 and the type abort"
            place = end_place(stream)
            yield expect(place, expected, f"status {status}", message, holds=False, related=(_place(call),))
            continue
        for choice in stream.choices:
            if choice.finish is not None and choice.finish.type != "abort":
                continue
            failed = choice.finish is None or is_error(choice.finish)
            listed = not _tells_ids(streams, stream) or choice.output_ids is not None
            what = "without the type abort" if failed else "without a list of output ids"
            yield expect(
                choice.last_at("finish"),
                "the type abort and the output ids",
                choice.finish.raw if choice.finish is not None else None,
                f"all requests were aborted, and this one was answered {what}",
                holds=not failed and listed,
                related=(_place(call),),
            )


def _tells_ids(streams: tuple[Answer, ...], stream: Answer) -> bool:
    """True if other answers of the run with this dialect and delivery mode report ids."""
    form = stream.dialect, stream.delivery
    alike = (answer for answer in streams if (answer.dialect, answer.delivery) == form)
    return any(choice.output_ids for answer in alike for choice in answer.choices)


def _went_on(stream: Answer, pause: ControlCall, ends: Sequence[ControlCall]) -> bool:
    """True if a request was still running when a pause ended."""
    end, paused = over(stream.exchange), over(pause.exchange)
    if end is None or paused is None:
        return False
    continued = (began(call.exchange) for call in ends)
    return any(paused - INSTANT_S <= sent < end for sent in continued if sent is not None)


@check_run("pause-changes-nothing")
def _pause_changes_nothing(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a greedy choice has the same ids with and without a pause that keeps or retracts it."""
    pauses = [call for call in target.calls if call.effect in {"keeps", "retracts"} and call.done]
    ends = [call for call in target.calls if call.action is Action.CONTINUE and call.done]
    undisturbed: defaultdict[object, list[tuple[Answer, ChoiceFacts]]] = defaultdict(list)
    paused: list[tuple[Answer, ControlCall]] = []
    for stream in streams if pauses and ends else ():
        call = next((pause for pause in pauses if _under_way(stream, pause)), None)
        if call is not None:
            if not any(_under_way(stream, abort) for abort in target.aborts):
                paused.append((stream, call))
        elif (key := same_beginning(stream)) and ended(stream):
            for choice in finished_choices(stream):
                if choice.finish is not None and choice.finish.type != "abort":
                    undisturbed[key, stream.asked.max_new_tokens, choice.index].append((stream, choice))
    weights = target.deeds.weights
    for stream, call in paused:
        for choice in stream.choices:
            alike = undisturbed.get((same_beginning(stream), stream.asked.max_new_tokens, choice.index), ())
            made = weights(stream)
            known = (twin for answer, twin in alike if made is not None and weights(answer) == made)
            other = next(known, None)
            ours = other.output_ids if other is not None else None
            if other is None or not ours or not ended(stream):
                continue
            theirs, ends_as = choice.output_ids or (), choice.finish.type if choice.finish else None
            due = other.finish.type if other.finish else None
            holds = (theirs, ends_as) == (ours, due)
            if holds and not _went_on(stream, call, ends):
                why = "it was not running during the whole pause"
                yield left_out(choice.last_at(), why)
                continue
            yield expect(
                choice.last_at(),
                f"{counted(len(ours), 'id')} and the finish {due}, as without a pause",
                f"{counted(len(theirs), 'id')} and the finish {ends_as}",
                "the choice was paused and continued, and differs from the one without a pause",
                holds=holds,
                related=(other.last_at(), _place(call)),
                by_chance=ends_as not in {None, "abort"},
            )


@check_run("retracted-cache-can-be-flushed")
def _retracted_cache_can_be_flushed(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a flush succeeds while a pause has retracted all requests.

    Its success is evidence only if a request was running at the pause and at the flush.
    """
    turns = (Action.PAUSE, Action.CONTINUE)
    paused: ControlCall | None = None
    for call in sorted(target.calls, key=lambda call: began(call.exchange) or 0.0):
        if call.action in turns:
            paused = call if call.done and call.effect == "retracts" else None
        elif call.action is not Action.FLUSH or paused is None or call.exchange.status is None:
            continue
        elif not any(target.deeds.beside(call.exchange, turn) for turn in turns):
            waiting = (s for s in streams if _under_way(s, paused) and _under_way(s, call))
            if call.done and not any(waiting):
                yield left_out(
                    _place(call), "the pause retracted no request that was still unfinished at the flush"
                )
                continue
            yield expect(
                _place(call),
                "a cache that is flushed",
                f"status {call.exchange.status}",
                "a pause had retracted all requests, but the cache could not be flushed",
                holds=call.done,
                related=(_place(paused),),
            )


@fact(Choice)
def _last_weights(choice: Choice) -> Any:
    """Return the version of the weights that the last emission of a choice reports."""
    return choice.emissions[-1].details.get("weight_version")


def _refused_weights(
    reported: Sequence[tuple[float, float, Place, str]], updates: Sequence[ControlCall]
) -> Iterator[Observation]:
    """Observe answers that report the weights of a refused update, if they first appeared after
    this update.
    """
    names = {call.version for call in updates if not call.refused}
    refused = {call.version: call for call in updates if call.refused and call.version not in names}
    first: dict[str, float] = {}
    for _, end, place, version in reported:
        call = refused.get(version)
        if call is not None and first.setdefault(version, end) > (began(call.exchange) or end):
            message = f"the weights are {version!r}, although the update to them was refused"
            status = f"{version!r}, after status {call.exchange.status}"
            yield expect(place, "other weights", status, message, holds=False, related=(_place(call),))


@check_run("weights-change-by-update")
def _weights_change_by_update(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a reported version of the weights does not come from a refused update.

    Without updates by the suite, a new version may appear, because another client may have loaded it. An
    earlier version must not return.
    """
    updates = [call for call in target.calls if call.action in {Action.UPDATE, Action.RENAME}]
    reported = [
        (start, end, choice.last_at("weight_version"), version)
        for stream in streams
        if (start := began(stream.exchange)) is not None and (end := over(stream.exchange)) is not None
        for choice in finished_choices(stream)[:1]
        if isinstance(version := _last_weights(choice), str)
    ]
    reported.sort(key=lambda entry: entry[1])
    if updates:
        yield from _refused_weights(reported, updates)
        return
    ends = [end for _, end, *_ in reported]
    for start, _, place, version in reported:
        before = bisect_right(ends, start)
        *_, earlier, was = reported[before - 1]
        if before and (version == was or any(known == version for *_, known in reported[:before])):
            message = f"the weights were {was!r}, and are {version!r} again without an update"
            yield expect(place, was, version, message, holds=version == was, related=(earlier,))
