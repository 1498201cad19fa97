"""Checks of the chapter on errors: bad requests, servers that survive them, and errors inside streams."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from tokenwire.checks.check import Target, check, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.bad_values import (
    BadValue,
    bad_values,
    impossible_values,
    misfitting_lists,
    unknown_chosen_ids,
    unknown_parameter_ids,
    unknown_prompt_ids,
    unreadable_body,
    wrong_types,
)
from tokenwire.checks.reading.fields import end_place, start_place
from tokenwire.checks.refusals import NOT_ABOUT_THE_REQUEST, observe_refusal, was_refused, words_of
from tokenwire.dialects.dialect import dialect_of, is_chat, policy_of
from tokenwire.record import Answer, Event, Stream, integer
from tokenwire.target.death import DIED, error_code, failure
from tokenwire.wire.exchange import Ending


def _refused(stream: Stream, bad: Iterable[BadValue]) -> Iterator[Observation]:
    """Look whether a request was refused that holds a bad value; the first one is named."""
    first = next(iter(bad), None)
    if first is not None:
        yield from observe_refusal(stream, f"a request with {first.words}, was")


@check("unknown-prompt-ids-refused")
def unknown_prompt_ids_refused(stream: Stream, target: Target) -> Iterator[Observation]:
    """What is no id of the model is not run."""
    yield from _refused(stream, unknown_prompt_ids(stream.asked, target.advertised.vocab_size))


@check("unknown-chosen-ids-refused")
def unknown_chosen_ids_refused(stream: Stream, target: Target) -> Iterator[Observation]:
    """There is no logprob of what is no id."""
    yield from _refused(stream, unknown_chosen_ids(stream.asked, target.advertised.vocab_size))


@check("unknown-parameter-ids-refused")
def unknown_parameter_ids_refused(stream: Stream, target: Target) -> Iterator[Observation]:
    """Neither stop ids nor biased ids are indices out of range."""
    vocabulary = target.advertised.vocab_size
    yield from _refused(stream, unknown_parameter_ids(stream.asked, stream.exchange.request, vocabulary))


@check("wrong-types-refused")
def wrong_types_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A field of the wrong type is an error of the request."""
    yield from _refused(stream, wrong_types(stream.asked))


@check("impossible-values-refused")
def impossible_values_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A number that asks for what cannot be is not turned into another."""
    yield from _refused(stream, impossible_values(stream.asked, policy_of(stream).least))


@check("unreadable-bodies-refused")
def unreadable_bodies_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """What is not a JSON object is an error of the request."""
    problem = unreadable_body(stream.exchange.request)
    if problem:
        yield from observe_refusal(stream, f"a body was sent, and {problem}; it was")


@check("missing-prompts-refused")
def missing_prompts_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Without a prompt there is nothing to go on from."""
    if stream.asked.sent and not stream.asked.sent.keys() & {"input_ids", "text", "messages"}:
        yield from observe_refusal(stream, "a request without a prompt was")


@check("misfitting-lists-refused")
def misfitting_lists_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A list with an entry for each prompt has as many of them."""
    yield from _refused(stream, misfitting_lists(stream.asked, stream.exchange.request))


@check_run("refusal-names-the-value")
def refusal_names_the_value(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Who reads the refusal finds the mistake. An endpoint that answers prompts as texts, and none as ids,
    may speak of the ids instead.
    """
    answered: dict[str, set[bool]] = {}
    refused: list[Answer] = []
    for stream in streams:
        if stream.answered:
            answered.setdefault(stream.dialect, set()).add(stream.asked.input_ids is None)
        if was_refused(stream):
            refused.append(stream)
    for stream in refused:
        bad = list(bad_values(stream, target))
        forms = answered.get(stream.dialect)
        if not bad or (forms and (stream.asked.input_ids is None) not in forms):
            continue
        stated = words_of(stream.error)
        named = any(_names(stated, one) for one in bad)
        values = dict.fromkeys(f"{one.wire_name} or {json.dumps(one.value)[:40]}" for one in bad)
        expected = f"words that name {' or '.join(values)}"
        message = f"the refusal names neither {bad[0].wire_name} nor the value"
        yield expect(start_place(stream), expected, stated[:200], message, holds=named)


def _names(stated: str, bad: BadValue) -> bool:
    """Whether a message holds the field's name or its value, as words of their own."""
    name = rf"(?i:(?<!\w){re.escape(bad.wire_name)}s?(?!\w))"
    values = {json.dumps(bad.value), json.dumps(bad.value, separators=(",", ":")), str(bad.value)}
    return bool(re.search(name, stated)) or any(
        re.search(rf"(?<![\w.-]){re.escape(value)}(?!\w)", stated) for value in values
    )


_OF_A_WORKER = frozenset({502, 504})
"""With these a gateway that is well says that the worker behind it gave no answer."""


@check_run("requests-do-not-break-the-server")
def requests_do_not_break_the_server(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Every request, good or bad, ends in a record or a refusal. The gravest failures come first: the end of
    the server, then silence, then a status.

    A target that never gave a record may be no inference server at all.
    """
    if not any(stream.answered for stream in streams):
        return
    for death in target.deaths:
        yield expect(end_place(death.of), "a record or a refusal", DIED, death.words, holds=False)
    looked_at = []
    for stream in streams:
        if stream.exchange.ending in {Ending.CANCELLED, Ending.HUNG_UP}:
            continue
        if stream.exchange.status in _OF_A_WORKER:
            continue
        failed = failure(stream)
        if failed or stream.answered or was_refused(stream):
            looked_at.append((stream, failed))
    for stream, failed in sorted(looked_at, key=_gravest_first):
        yield expect(
            end_place(stream),
            "a record or a refusal",
            failed or "a record or a refusal",
            f"the request ended in a failure of the server ({failed})",
            holds=not failed,
        )


def _gravest_first(looked_at: tuple[Answer, str]) -> int:
    stream, failed = looked_at
    return 2 if not failed else int(stream.exchange.status is not None)


def _error_events(stream: Stream) -> tuple[Event, ...]:
    """The error events of a stream."""
    return stream.error_events if stream.asked.stream and stream.exchange.status == 200 else ()


@check("stream-errors-say-why")
def stream_errors_say_why(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A reader that sees an error event knows what happened, and whether to come again."""
    for event in _error_events(stream):
        stated, code = words_of(event.error), error_code(event.error)
        coded = code is not None or not policy_of(stream).numeric_error_codes
        missing = [name for name, there in (("message", stated), ("code", coded)) if not there]
        if missing or stream.answered or was_refused(stream):
            yield expect(
                event.place,
                "an error with a message and, as its dialect has them, a code",
                event.error,
                f"the error event has no {' and no '.join(missing)}",
                holds=not missing,
            )


def _choice_in_error(event: Event) -> int | None:
    """The index of the choice that an error event speaks of; None where it names none."""
    named = (one.get("index") for one in (event.data, event.error) if isinstance(one, Mapping))
    return next((index for one in named if (index := integer(one)) is not None), None)


def _events_of(stream: Stream, choice: int) -> set[int]:
    """The positions of the events that speak of a choice, errors among them."""
    own = {e.event.index for one in stream.choices if one.index == choice for e in one.emissions}
    failed = [event for event in stream.events if event.error is not None]
    return own | {event.index for event in failed if _choice_in_error(event) in (choice, None)}


@check("stream-errors-are-final")
def stream_errors_are_final(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Nothing but the end mark follows an error event; of its choice only, where it names one."""
    seen: set[int | None] = set()
    for position, error in enumerate(stream.events if _error_events(stream) else ()):
        if error.error is None:
            continue
        choice = _choice_in_error(error)
        if choice in seen or None in seen:
            continue
        seen.add(choice)
        later = [event for event in stream.events[position + 1 :] if not event.done]
        if choice is not None:
            own = _events_of(stream, choice)
            later = [event for event in later if event.index in own]
        if later or stream.answered or was_refused(stream):
            yield expect(
                later[0].place if later else error.place,
                "only the end mark after an error event",
                f"{len(later)} events" if later else "only the end mark after an error event",
                f"{len(later)} events follow the error event"
                + ("" if choice is None else f" of choice {choice}"),
                holds=not later,
            )


@check("stream-errors-replace-the-finish")
def stream_errors_replace_the_finish(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Where a stream failed, not every choice can have come to its end."""
    errors = _error_events(stream)
    expected = stream.asked.prompts * stream.asked.n
    good = [c for c in stream.choices if c.finish is not None and c.finish.type in {"stop", "length"}]
    all_ended = bool(good) and len(good) >= expected
    if errors and (all_ended or stream.answered or was_refused(stream)):
        yield expect(
            errors[0].place,
            "an error or a finish",
            "an error and a finish" if all_ended else "an error",
            "every choice finished as if all were well, and the stream carries an error",
            holds=not all_ended,
        )


def _asks_for_text(stream: Stream) -> bool:
    """Whether a request needs the text of ids, or ids of text."""
    asked = stream.asked
    return asked.input_ids is None or bool(asked.stop or asked.stop_regex or asked.echo)


@check("ids-need-no-tokenizer")
def ids_need_no_tokenizer(stream: Stream, target: Target) -> Iterator[Observation]:
    """Ids in, ids out: no text is needed on the way."""
    if target.advertised.tokenizer is not False or is_chat(stream) or _asks_for_text(stream):
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
    message = f"a request of token ids got no ids (status {stream.exchange.status})"
    actual = "a record with output ids" if carried else stream.exchange.status
    yield expect(end_place(stream), "a record with output ids", actual, message, holds=carried)


@check("text-needs-a-tokenizer")
def text_needs_a_tokenizer(stream: Stream, target: Target) -> Iterator[Observation]:
    """What a server without a tokenizer cannot do, it refuses."""
    stated = stream.asked.sent.keys() & {"text", "messages"}
    if target.advertised.tokenizer is not False or not stream.asked.sent:
        return
    if (stream.asked.input_ids is None and stated) or stream.asked.stop or stream.asked.stop_regex:
        yield from observe_refusal(stream, "a request that needs a tokenizer was")
