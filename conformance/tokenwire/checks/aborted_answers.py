"""Checks of the end of requests that are aborted, that wait in the queue, or that reuse the id of an ended
request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tokenwire.checks.abort import early_end, named_by_clients
from tokenwire.checks.about import about, ended, finished_choices, is_error, was_aborted
from tokenwire.checks.check import Target, check, check_run, select
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import EXTRAS, asked_alike, count_of, end_place, read_once
from tokenwire.checks.reading.refusals import NOT_ABOUT_THE_REQUEST, put_off
from tokenwire.checks.reading.times import began, delivered_at, over, overlap
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.dialect import family_of, known_as, names_of
from tokenwire.record import Answer, ChoiceFacts, Stream
from tokenwire.target.advertised import clears_refused_after_s
from tokenwire.target.death import codes_of

_CLIENT_CLOSED = 499
_REFUSALS = NOT_ABOUT_THE_REQUEST - {_CLIENT_CLOSED} | {400, 413, 415, 422}
"""Statuses that refuse a request, whether it was aborted or not."""
_COUNTERS = ("prompt_tokens", "completion_tokens")


@read_once
def _reported_ids(stream: Stream) -> dict[int, str]:
    """Return the first request id that each choice reports, by the index of the choice."""
    reported: dict[int, str] = {}
    for choice in stream.choices:
        for name in choice.details("request_id"):
            if isinstance(name, str) and name:
                reported.setdefault(choice.index, name)
    return reported


def _aborts(stream: Stream, target: Target) -> list[ControlCall]:
    """Return the aborts that were sent while a request was running, by the client's id or by an id in the
    answer.
    """
    if not target.aborts:
        return []
    names = {*names_of(stream), *_reported_ids(stream).values()}
    start, end = began(stream.exchange), over(stream.exchange)
    return [
        call
        for call in target.aborts
        if (call.everything or call.ids & names) and _within(began(call.exchange), start, end)
    ]


def _within(moment: float | None, start: float | None, end: float | None) -> bool:
    return moment is not None and start is not None and end is not None and start <= moment < end


def _error(stream: Stream) -> str:
    """Describe the error that ended an answer. Empty if there is no error, or if the error refuses the
    request.
    """
    failed = any(is_error(choice.finish) for choice in stream.choices)
    if not (stream.refused or stream.error is not None or failed):
        return ""
    delivered = any(choice.output_ids or choice.text for choice in stream.choices)
    codes = [code for code in codes_of(stream) if code >= 400]
    if not delivered and any(code in _REFUSALS for code in codes):
        return ""
    return f"the error {codes[0]}" if codes else "an error"


@check("aborted-request-is-answered")
def _aborted_request_is_answered(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that an aborted request is answered with the tokens generated so far, not with an error."""
    error = _error(stream)
    reported = error or (ended(stream) and any(map(was_aborted, stream.choices)))
    if reported and not stream.exchange.ending.ours and not put_off(stream) and _aborts(stream, target):
        message = f"the request was aborted by its id, and ended in {error}"
        actual = error or "what was made before the abort"
        yield expect(end_place(stream), "what was made before the abort", actual, message, holds=not error)


def _is_empty_abort(choice: ChoiceFacts) -> bool:
    """True if a choice was aborted before its first token."""
    return was_aborted(choice) and not choice.output_ids and not choice.text


@select
def _aborted_empty(stream: Stream) -> bool:
    """Select the answers with a choice that was aborted before its first token."""
    return ended(stream) and any(map(_is_empty_abort, finished_choices(stream)))


@check_run("empty-abort-is-an-answer")
def _empty_abort_is_an_answer(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that a request aborted in the queue gets an answer with the same fields as other answers to such
    a request.
    """
    whole: dict[tuple[object, ...], Answer] = {}
    for stream in streams if _aborted_empty(streams) else ():
        if ended(stream) and finished_choices(stream) and not any(map(was_aborted, stream.choices)):
            whole.setdefault(_fields_key(stream), stream)
    for stream in _aborted_empty(streams):
        usual = whole.get(_fields_key(stream))
        if usual is None:
            continue
        for choice in filter(_is_empty_abort, finished_choices(stream)):
            fault = _lack(choice, usual.choices[0])
            message = f"the request was aborted before its first token, and its answer has {fault}"
            place, expected = choice.last_at("finish"), "no ids, and every counter"
            yield expect(place, expected, fault or expected, message, holds=not fault)


def _fields_key(stream: Answer) -> tuple[object, ...]:
    """Return a key that is equal for answers with the same fields.

    The key contains the endpoint and the request fields that enable further fields of the answer.
    """
    return asked_alike(stream, "stream", *EXTRAS)


def _lack(choice: ChoiceFacts, usual: ChoiceFacts) -> str:
    """Describe the fields that a choice without tokens lacks compared with a usual choice. Empty if it lacks
    none.
    """
    for name in _COUNTERS:
        if usual.counter(name) is not None and choice.counter(name) is None:
            return f"no {name}"
    if choice.counter("completion_tokens"):
        return f"a completion_tokens of {choice.counter('completion_tokens')}"
    reported = choice.output_ids is not None
    return "no list of output ids" if usual.output_ids is not None and not reported else ""


def _early(stream: Stream, calls: Sequence[ControlCall]) -> bool:
    """True if an abort was sent after the first tokens, and answered before a quarter of the budget was
    delivered.
    """
    budget = stream.asked.max_new_tokens
    for call in calls if budget is not None else ():
        sent, answered = began(call.exchange), over(call.exchange)
        if sent is not None and answered is not None and delivered_at(stream, sent):
            return (delivered_at(stream, answered) or 0) * 4 <= (budget or 0)
    return False


@check("abort-ends-every-choice", about(ended=True))
def _abort_ends_every_choice(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that an abort by the client's id ends every choice of its request."""
    name = known_as(stream)
    if len(stream.choices) < 2:
        return
    calls = [call for call in _aborts(stream, target) if call.everything or name in call.ids]
    if not _early(stream, calls):
        return
    for choice in finished_choices(stream):
        message = f"request {name!r} was aborted early, and its choice {choice.index} went on"
        yield from early_end(stream, choice, message)


@check("abort-of-a-choice-is-of-that-alone", about(ended=True))
def _abort_of_a_choice_is_of_that_alone(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that an abort by the id of one choice ends only this choice, and not the other choices of the
    request.
    """
    reported = _reported_ids(stream)
    distinct = len(set(reported.values())) == len(stream.choices) > 1
    if not distinct or known_as(stream) in reported.values():
        return
    calls = [call for call in _aborts(stream, target) if not call.everything]
    named = {index for index, name in reported.items() if any(name in call.ids for call in calls)}
    by_group = any(known_as(stream) in call.ids for call in calls)
    if not named or by_group or not _early(stream, calls):
        return
    for choice in finished_choices(stream):
        if choice.finish is None or choice.finish.type not in {"abort", "length"}:
            continue
        expected = "abort" if choice.index in named else "an end of its own"
        names = ", ".join(repr(reported[index]) for index in sorted(named))
        message = f"choice {choice.index} finished with {choice.finish.type} after an abort of {names}"
        holds = was_aborted(choice) == (choice.index in named)
        yield expect(choice.last_at("finish"), expected, choice.finish.type, message, holds=holds)


_AT_ONCE_S = 2.0
"""The maximum number of seconds between the end of a request and the reuse of its id, for the reuse to be
evidence. The limit is for servers whose clean-up delay is unknown.
"""


def _met_no_timer(stream: Answer, earlier: Sequence[Answer]) -> str:
    """Return the reason why the server's clean-up of earlier requests with the same id cannot have hit a
    request. Return an empty string if the clean-up may have hit the request.
    """
    start, end = began(stream.exchange) or 0.0, over(stream.exchange) or 0.0
    ends = [over(answer.exchange) or 0.0 for answer in earlier]
    if timer := clears_refused_after_s(family_of(stream.dialect)):
        met = any(start <= ended + timer < end for ended in ends)
        return "" if met else f"it was not running {timer:g} s after a request with its id ended"
    late = start - max(ends) > _AT_ONCE_S
    return f"its id was reused more than {_AT_ONCE_S:g} s after its last request" if late else ""


@check_run("ended-id-is-free-again")
def _ended_id_is_free_again(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the server's clean-up of an ended request does not abort a later request with the same id.

    A PASS needs a later request that was running when the server cleaned up after an earlier one.
    """
    named: dict[str, list[Answer]] = {}
    for stream in named_by_clients(streams):
        if (request_id := known_as(stream)) and began(stream.exchange) is not None:
            named.setdefault(request_id, []).append(stream)
    for name, group in named.items():
        in_order = sorted(group, key=lambda earlier: began(earlier.exchange) or 0.0)
        pairs = list(pairwise(in_order))
        if any(overlap(earlier.exchange, later.exchange) for earlier, later in pairs):
            yield from (
                left_out(end_place(earlier), "requests with the same id overlap") for earlier, _ in pairs
            )
            continue
        for position, (before, stream) in enumerate(pairs, 1):
            # An abort that was sent between these two requests may hit the second one.
            span = began(before.exchange), over(stream.exchange)
            aborted = any(deed.names((name,)) for deed in target.deeds.during(*span, Action.ABORT))
            if aborted or not ended(before) or not ended(stream):
                why = (
                    "an abort names its id" if aborted else "one of two requests with the same id did not end"
                )
                yield left_out(end_place(stream), why)
                continue
            for choice in finished_choices(stream):
                why = _met_no_timer(stream, in_order[:position])
                if why and not was_aborted(choice):
                    yield left_out(choice.last_at("finish"), why)
                    continue
                count = count_of(stream, choice)
                after = "" if count is None else f" after {count} tokens"
                yield expect(
                    choice.last_at("finish"),
                    "an end of its own",
                    choice.finish.type if choice.finish else None,
                    f"request {name!r} was aborted{after}, and no abort was sent: "
                    "only an earlier request, which had ended, had the same id",
                    holds=not was_aborted(choice),
                    related=(end_place(before),),
                )
