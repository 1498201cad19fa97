"""Checks of errors inside streams, and of servers without a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tokenwire.checks.about import EVENTS, about
from tokenwire.checks.check import Target, check, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.bad_values import bad_values
from tokenwire.checks.reading.fields import end_place
from tokenwire.checks.reading.refusals import NOT_ABOUT_THE_REQUEST, put_off, was_refused, words_of
from tokenwire.checks.reading.times import began, over
from tokenwire.dialects.dialect import dialect_of, policy_of
from tokenwire.record import Answer, Event, Stream, integer
from tokenwire.target.capability import WAITING_TIMEOUT
from tokenwire.target.death import error_code


@check("stream-errors-say-why", EVENTS)
def _stream_errors_say_why(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that an error event has a message and, if its dialect has codes, a code that shows if a retry may
    help.
    """
    for event in stream.error_events:
        stated, code = words_of(event.error), error_code(event.error)
        coded = code is not None or not policy_of(stream).numeric_error_codes
        missing = [name for name, there in (("message", stated), ("code", coded)) if not there]
        if missing or stream.answered or was_refused(stream):
            message = f"the error event has no {' and no '.join(missing)}"
            expected = "an error with a message and, as its dialect has them, a code"
            yield expect(event.place, expected, event.error, message, holds=not missing)


def _choice_in_error(event: Event) -> int | None:
    """Return the index of the choice that an error event names. None if it names none."""
    named = (value.get("index") for value in (event.data, event.error) if isinstance(value, Mapping))
    return next((index for value in named if (index := integer(value)) is not None), None)


def _events_of(stream: Stream, choice: int) -> set[int]:
    """Return the positions of the events of a choice, including errors."""
    of_choice = {emission.index for emission in stream.emissions() if emission.choice == choice}
    failed = (event for event in stream.error_events if _choice_in_error(event) in (choice, None))
    return of_choice | {event.index for event in failed}


@check("stream-errors-are-final", EVENTS)
def _stream_errors_are_final(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that only the end mark follows an error event. If the error names a choice, this applies to that
    choice only.
    """
    seen: set[int | None] = set()
    dialect = dialect_of(stream)
    grammar = dialect.grammar if dialect is not None else None
    for position, error in enumerate(stream.events if stream.error_events else ()):
        if error.error is None:
            continue
        choice = _choice_in_error(error)
        if choice in seen or None in seen:
            continue
        seen.add(choice)
        later = [event for event in stream.events[position + 1 :] if not event.done]
        if later and grammar is not None and grammar.goes_on(error, later[0]):
            later = later[1:]
        if choice is not None:
            of_choice = _events_of(stream, choice)
            later = [event for event in later if event.index in of_choice]
        if later or stream.answered or was_refused(stream):
            expected, whose = "only the end mark after an error event", f" of choice {choice}"
            message = f"{len(later)} events follow the error event{'' if choice is None else whose}"
            place, actual = (later[0].place, f"{len(later)} events") if later else (error.place, expected)
            yield expect(place, expected, actual, message, holds=not later)


@check("stream-errors-replace-the-finish", EVENTS)
def _stream_errors_replace_the_finish(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that at least one choice of a failed stream has no finish reason."""
    errors = stream.error_events
    expected = stream.asked.prompts * stream.asked.n
    good = [c for c in stream.choices if c.finish is not None and c.finish.type in {"stop", "length"}]
    all_ended = bool(good) and len(good) >= expected
    if errors and (all_ended or stream.answered or was_refused(stream)):
        message = "every choice finished normally, but the stream carries an error"
        actual = "an error and a finish" if all_ended else "an error"
        yield expect(errors[0].place, "an error or a finish", actual, message, holds=not all_ended)


def _asks_for_text(stream: Stream) -> bool:
    """True if the server needs a tokenizer for a request: for a text prompt, a stop string or an echo."""
    asked = stream.asked
    return asked.input_ids is None or bool(asked.stop or asked.stop_regex or asked.echo)


@check("ids-need-no-tokenizer", about(chat=False))
def _ids_need_no_tokenizer(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a server without a tokenizer answers a request of token ids with token ids."""
    if target.advertised.tokenizer is not False or _asks_for_text(stream):
        return
    dialect = dialect_of(stream)
    if dialect is not None and not dialect.tells_ids:
        return
    status = stream.exchange.status
    if status is None or status in NOT_ABOUT_THE_REQUEST:
        return
    if any(bad_values(stream, target)) or was_refused(stream):
        return
    carried = any(choice.output_ids is not None for choice in stream.choices)
    message, expected = f"a request of token ids got no ids (status {status})", "a record with output ids"
    yield expect(end_place(stream), expected, expected if carried else status, message, holds=carried)


_MEANWHILE = 4
"""The minimum number of events of other requests during a request that show that the server let the request
wait. With fewer events, the server may have refused the request at once.
"""
_TIMEOUT = re.compile(r"time[d -]*out|deadline|too long", re.IGNORECASE)


def _events_between(streams: tuple[Answer, ...], start: float, end: float) -> int:
    """Return the number of events that streams got between two times."""
    beside = (
        (stream, began(stream.exchange)) for stream in streams if stream.asked.stream and stream.answered
    )
    return sum(
        start <= sent + event.place.time <= end
        for stream, sent in beside
        if sent is not None and sent < end
        for event in stream.load().events
    )


@check_run("waiting-timeout-is-named")
def _waiting_timeout_is_named(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the error message of a request that waited too long names the time-out.

    A request has waited if other requests got tokens in the meantime.
    """
    if WAITING_TIMEOUT not in target.capabilities:
        return
    for stream in filter(put_off, streams):
        start, end = began(stream.exchange), over(stream.exchange)
        if start is None or end is None or _events_between(streams, start, end) < _MEANWHILE:
            continue
        words = words_of(stream.error)
        message = f"the words for a request that waited too long do not name the time-out: {words!r}"
        yield expect(end_place(stream), "a time-out", words, message, holds=bool(_TIMEOUT.search(words)))
