"""Checks of partial rollouts: an abort of all requests, a pause, and the version of the weights."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from tokenwire.checks.about import ended, finished_choices, is_error, streamed
from tokenwire.checks.agreement import same_beginning
from tokenwire.checks.check import Target, check_run
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import end_place
from tokenwire.checks.reading.refusals import refused_as_bad
from tokenwire.checks.reading.times import INSTANT_S, began, delivered_at, over, overlap
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


@check_run("unknown-pause-is-refused")
def _unknown_pause_is_refused(_streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a pause in an unknown mode is refused by a server that can be paused."""
    pauses = [call for call in target.calls if call.action is Action.PAUSE]
    served = any(call.done and call.effect for call in pauses)
    for call in pauses if served else ():
        if call.effect or call.exchange.status is None:
            continue
        status = call.exchange.status
        message = f"a pause in an unknown mode gave status {status}"
        yield expect(_place(call), "a status from 400 to 499", status, message, holds=call.refused)


def _spans_of_pauses(target: Target) -> list[tuple[ControlCall, ControlCall]]:
    """Return each pause that the server accepted, with the first call that ended it."""
    turns = sorted(
        (call for call in target.calls if call.action in {Action.PAUSE, Action.CONTINUE}),
        key=lambda call: began(call.exchange) or 0.0,
    )
    return [
        (call, after)
        for call, after in pairwise(turns)
        if call.action is Action.PAUSE and call.done and after.action is Action.CONTINUE
    ]


def _lasting_pauses(target: Target) -> Iterator[tuple[ControlCall, ControlCall, float, float]]:
    """Yield each pause that ends no request, with the call that ended it, its beginning and its end."""
    for pause, after in _spans_of_pauses(target):
        start, end = over(pause.exchange), began(after.exchange)
        if start is not None and end is not None and pause.effect in {"keeps", "retracts"}:
            yield pause, after, start, end


@check_run("paused-state-is-reported")
def _paused_state_is_reported(_streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a server reports correctly if it is paused.

    A report beside a call that changes the state is not judged. Neither is a report before the first such
    call, because another client may have paused the server.
    """
    turns = [call for call in target.calls if call.action in {Action.PAUSE, Action.CONTINUE}]
    for call in target.calls:
        sent = began(call.exchange)
        if call.action is not Action.PAUSED or not call.done or sent is None:
            continue
        before = [turn for turn in turns if turn.done and (over(turn.exchange) or sent) <= sent]
        if not before or any(overlap(call.exchange, turn.exchange) for turn in turns):
            continue
        last = max(before, key=lambda turn: over(turn.exchange) or 0.0)
        expected, reported = last.action is Action.PAUSE, call.returned("paused")
        message = f"the server reports {reported!r} after {last.exchange.name}"
        yield expect(_place(call), expected, reported, message, related=(_place(last),))


def _first_token_s(stream: Answer) -> float | None:
    """Return the seconds from a request to its first event with a token; None if it has none."""
    times = (
        emission.event.place.time
        for choice in stream.load().delivering
        for emission in choice.delivered
        if emission.after
    )
    return min(times, default=None)


@check_run("paused-server-generates-nothing")
def _paused_server_generates_nothing(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a stream that is requested in a pause gets no token before the server continues.

    The pause is evidence only if it was longer than another stream of the scenario waited for its first
    token.
    """
    for pause, after, start, end in _lasting_pauses(target) if streams else ():
        talk = (pause.exchange.scenario, pause.exchange.named_dialect)
        beside = [
            (stream, sent, first)
            for stream in streams
            if (stream.exchange.scenario, stream.dialect) == talk and streamed(stream)
            if (sent := began(stream.exchange)) is not None
            if (first := _first_token_s(stream)) is not None
        ]
        within = [(stream, sent, first) for stream, sent, first in beside if start <= sent < end]
        usual = min((first for _, sent, first in beside if not start <= sent < end), default=None)
        for stream, sent, first in within:
            holds, place = sent + first >= end, end_place(stream)
            if holds and (usual is None or usual >= end - sent):
                yield left_out(place, "the pause was shorter than a stream waits for its first token")
                continue
            message = f"a stream that was requested in a pause got a token {first:.3f} s later, in the pause"
            expected = "no token in the pause"
            actual = expected if holds else "a token in the pause"
            related = (_place(pause), _place(after))
            yield expect(place, expected, actual, message, holds=holds, related=related)


@check_run("paused-stream-does-not-end")
def _paused_stream_does_not_end(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a stream that was running at a pause is still running when the server continues.

    A server that ignores the pause ends the stream in a pause that is longer than the same request takes
    without a pause.
    """
    took: dict[object, float] = {}
    spans = _spans_of_pauses(target) if streams else []
    for stream in streams if spans else ():
        key = same_beginning(stream)
        if key is not None and ended(stream) and not any(_under_way(stream, pause) for pause, _ in spans):
            took[key] = min(stream.exchange.duration, took.get(key, stream.exchange.duration))
    for pause, after, start, end in _lasting_pauses(target) if spans else ():
        for stream in streams:
            budget, key = stream.asked.max_new_tokens, same_beginning(stream)
            if budget is None or not streamed(stream) or stream.exchange.ending.ours or key not in took:
                continue
            ends, come = over(stream.exchange), delivered_at(stream.load(), start)
            if not _under_way(stream, pause) or ends is None or ends <= start:
                continue
            if come is None or come * 4 > budget:
                continue
            holds, place = ends >= end, end_place(stream)
            if holds and end - start <= took[key]:
                yield left_out(place, "the pause was shorter than the stream takes without a pause")
                continue
            message = f"the stream was paused after {counted(come, 'token')}, and ended in the pause"
            expected = "an end after the pause"
            actual = expected if holds else "an end in the pause"
            related = (_place(pause), _place(after))
            yield expect(place, expected, actual, message, holds=holds, related=related)


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
