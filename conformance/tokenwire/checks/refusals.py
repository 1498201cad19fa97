"""Checks of refusals: which requests must be refused, what an error must report, and which internals it must
not show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tokenwire.checks.about import ANY, about
from tokenwire.checks.check import Relation, Target, check, check_rows, check_run, select
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading import bad_values as bad
from tokenwire.checks.reading.fields import end_place, start_place
from tokenwire.checks.reading.refusals import (
    ABOUT_ACCESS_OR_LOAD,
    NOT_ABOUT_THE_REQUEST,
    asks_for_nothing,
    sent_malformed_ids,
    was_refused,
    words_of,
)
from tokenwire.dialects.dialect import dialect_of, gives_results, policy_of
from tokenwire.record import Answer, Stream
from tokenwire.target.honesty import SCENARIO, UNKNOWN_PATH

_OK = 200

# Requests that must be refused.

Fault = Callable[[Stream, Target], str]
"""A function that describes the error in a request, as the beginning of a sentence that ends with `answered`.

It returns an empty string if the request has no error.
"""


@dataclass(frozen=True)
class Refused(Relation):
    """A request with an error must be refused with a 4xx status."""

    fault: Fault


def observe_refusal(row: Refused, stream: Stream, target: Target) -> Iterator[Observation]:
    """Observe that a wrong request was refused.

    Nothing is observed without a response, or if the status does not depend on the content of the request.
    """
    status = stream.exchange.status
    if status is None or status in NOT_ABOUT_THE_REQUEST:
        return
    if fault := row.fault(stream, target):
        in_band = status == _OK and stream.error is not None
        beside = f" and an error without a 4xx code, {words_of(stream.error)[:60]!r}," if in_band else ""
        message = f"{fault} answered with status {status}{beside} instead of being refused"
        yield expect(start_place(stream), "a 4xx status", status, message, holds=was_refused(stream))


def _if(wrong: Callable[[Stream], object], words: str) -> Fault:
    return lambda stream, _: words if wrong(stream) else ""


def _with(values: Callable[[Stream, Target], Iterable[bad.BadValue]]) -> Fault:
    """Return a function that names the first bad value of a request."""

    def fault(stream: Stream, target: Target) -> str:
        first = next(iter(values(stream, target)), None)
        return f"a request with {first.words}, was" if first is not None else ""

    return fault


def _unknown_parameters(stream: Stream, target: Target) -> Iterator[bad.BadValue]:
    return bad.unknown_parameter_ids(stream, target.advertised.vocab_size)


def _unreadable(stream: Stream, _target: Target) -> str:
    problem = bad.unreadable_body(stream.exchange.request)
    return f"a request whose body is wrong ({problem}) was" if problem else ""


def _has_no_prompt(stream: Stream) -> bool:
    return bool(stream.asked.sent) and not stream.asked.sent.keys() & {"input_ids", "text", "messages"}


def _is_empty(value: object) -> bool:
    return value == "" or (isinstance(value, list) and (not value or "" in value))


def _holds_nothing(stream: Stream) -> bool:
    """True if an input for a result, such as an embedding, is an empty text, or an empty list of texts."""
    sent = stream.asked.sent.get("text")
    by_text = gives_results(stream) and stream.asked.input_ids is None
    return by_text and sent is not None and any(map(_is_empty, sent.values))


def _too_long(stream: Stream, target: Target) -> str:
    """Describe an input that exceeds the context, if the request does not allow truncation. Empty if there is
    none.
    """
    asked, length = stream.asked, target.advertised.context_length
    if length is None or asked.truncate is not None or not gives_results(stream):
        return ""
    longer = any(len(ids) > length for ids in asked.input_ids or ())
    return "an input beyond the context was" if longer else ""


def _needs_a_tokenizer(stream: Stream, target: Target) -> str:
    """Describe a request that needs a tokenizer, if the server has none. Empty otherwise."""
    asked = stream.asked
    if target.advertised.tokenizer is not False or not asked.sent:
        return ""
    of_text = asked.input_ids is None and asked.sent.keys() & {"text", "messages"}
    return "a request that needs a tokenizer was" if of_text or asked.stop or asked.stop_regex else ""


def _unknown_effort(stream: Stream, _target: Target) -> str:
    """Describe a reasoning effort that the endpoint does not define."""
    dialect, body = dialect_of(stream), stream.exchange.request.body
    effort = dialect.request.reasoning.unknown_effort(body) if dialect is not None else None
    return "" if effort is None else f"a request with the reasoning effort {effort[:40]!r} was"


check_rows(
    observe_refusal,
    Refused("empty-input-ids-refused", ANY, _if(asks_for_nothing, "an empty list of input_ids was")),
    Refused("malformed-input-ids-refused", ANY, _if(sent_malformed_ids, "malformed input_ids were")),
    Refused(
        "unknown-prompt-ids-refused",
        ANY,
        _with(lambda stream, target: bad.unknown_prompt_ids(stream.asked, target.advertised.vocab_size)),
    ),
    Refused(
        "unknown-chosen-ids-refused",
        ANY,
        _with(lambda stream, target: bad.unknown_chosen_ids(stream.asked, target.advertised.vocab_size)),
    ),
    Refused("unknown-parameter-ids-refused", ANY, _with(_unknown_parameters)),
    Refused("wrong-types-refused", ANY, _with(lambda stream, _: bad.wrong_types(stream.asked))),
    Refused(
        "impossible-values-refused",
        ANY,
        _with(lambda stream, _: bad.impossible_values(stream.asked, policy_of(stream).least)),
    ),
    Refused(
        "misfitting-lists-refused",
        ANY,
        _with(lambda stream, _: bad.misfitting_lists(stream.asked, stream.exchange.request)),
    ),
    Refused("misfitting-rows-refused", ANY, _with(lambda stream, _: bad.misfitting_rows(stream.asked))),
    Refused("unreadable-bodies-refused", ANY, _unreadable),
    Refused("empty-inputs-refused", ANY, _if(_holds_nothing, "an input without any token was")),
    Refused("long-inputs-refused", ANY, _too_long),
    Refused("missing-prompts-refused", ANY, _if(_has_no_prompt, "a request without a prompt was")),
    Refused("text-needs-a-tokenizer", ANY, _needs_a_tokenizer),
    Refused("unknown-efforts-refused", ANY, _unknown_effort),
)


@dataclass(frozen=True)
class _RefusedEarly(Relation):
    """A chat stream that enables a field which only whole answers have must be refused with status 400."""

    wish: str
    """The name of the field in `Asked`."""
    field: str
    """The common part of the field's names on the wire."""
    alone: bool = False
    """True if another requirement covers requests that also enable token ids."""

    def applies(self, stream: Stream) -> bool:
        """True if a request enables the field in a stream, and the dialect must refuse it."""
        asked, status = stream.asked, stream.exchange.status
        if not (policy_of(stream).tito_stream_refused and asked.stream and getattr(asked, self.wish)):
            return False
        return status is not None and status not in NOT_ABOUT_THE_REQUEST


def _observe_early_refusal(row: _RefusedEarly, stream: Stream, _target: Target) -> Iterator[Observation]:
    if row.applies(stream) and not (row.alone and stream.asked.return_token_ids):
        status = stream.exchange.status
        message = f"a chat stream that asks for {row.field} was answered with status {status}"
        holds = stream.refused and status == 400
        yield expect(start_place(stream), "status 400 before any event", status, message, holds=holds)


_CHAT = about(chat=True)
_EARLY = (
    _RefusedEarly(
        "chat-stream-refuses-prompt-ids", _CHAT, "return_prompt_token_ids", "prompt_token_ids", alone=True
    ),
    _RefusedEarly("chat-stream-refuses-meta-info", _CHAT, "return_meta_info", "meta_info"),
    _RefusedEarly("chat-stream-refuses-token-ids", _CHAT, "return_token_ids", "token_ids"),
)
check_rows(_observe_early_refusal, *_EARLY)


@check("refusal-names-the-field", _CHAT)
def _refusal_names_the_field(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the refusal of a chat stream names the field, and says that whole answers have it."""
    fields = [row.field for row in _EARLY if row.applies(stream)]
    if not fields or not was_refused(stream):
        return
    stated = words_of(stream.error)
    holds = any(field in stated for field in fields) and "stream" in stated
    expected = f"a message that names {' or '.join(fields)} and says how to get it: without a stream"
    message = "the refusal does not name the field, or does not say that a whole answer has it"
    yield expect(start_place(stream), expected, stated, message, holds=holds)


# The format of a refusal.

_SHAPES = '{"error": {"message": …}}, {"error": …} or {"object": "error", "message": …, "code": …}'
"""The formats that the schema of errors allows. All are listed, because it is unknown which one the server
intended.
"""


@check("refusal-is-json")
def _refusal_is_json(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a refusal is a JSON error object with a message."""
    if not stream.refused or not was_refused(stream):
        return
    faults = [event.problem for event in stream.events if event.problem]
    stated = words_of(stream.error)
    if any(event.schema_errors for event in stream.events) and stated:
        faults = [f"{stated[:80]!r} does not have the shape of an error: {_SHAPES}"]
    elif not faults and not stated:
        faults = ["the error has no message"]
    expected = "a JSON error with a message"
    actual = stated[:200] or "no message"
    yield expect(start_place(stream), expected, actual, "; ".join(faults[:2]), holds=not faults)


@check_run("refusal-names-the-value")
def _refusal_names_the_value(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a refusal names the wrong field or value.

    If the endpoint answers no ids, streams or batches at all, it may refuse these instead.
    """
    answered: dict[str, set[tuple[str, bool]]] = {}
    refused: list[Answer] = []
    for stream in streams:
        if stream.answered:
            answered.setdefault(stream.dialect, set()).update(_ways(stream))
        if was_refused(stream):
            refused.append(stream)
    for stream in refused:
        wrong = list(bad.bad_values(stream, target))
        forms = answered.get(stream.dialect)
        if not wrong or (forms and not forms.issuperset(_ways(stream))):
            continue
        stated = words_of(stream.error)
        named = any(_names(stated, value) for value in wrong)
        values = dict.fromkeys(f"{value.wire_name} or {json.dumps(value.value)[:40]}" for value in wrong)
        expected = f"a message that names {' or '.join(values)}"
        message = f"the refusal names neither {wrong[0].wire_name} nor the value"
        yield expect(start_place(stream), expected, stated[:200], message, holds=named)


def _ways(stream: Answer) -> tuple[tuple[str, bool], ...]:
    """Return the options of a request that an endpoint may not support: ids, a stream, a batch."""
    asked = stream.asked
    return ("ids", asked.input_ids is not None), ("stream", asked.stream), ("batch", asked.batch)


def _names(stated: str, value: bad.BadValue) -> bool:
    """True if a message contains the field's name or its value as a separate word."""
    name = rf"(?i:(?<!\w){re.escape(value.wire_name)}s?(?!\w))"
    written = {json.dumps(value.value), json.dumps(value.value, separators=(",", ":")), str(value.value)}
    return bool(re.search(name, stated)) or any(
        re.search(rf"(?<![\w.-]){re.escape(text)}(?!\w)", stated) for text in written
    )


_INTERNALS = re.compile(
    r"""Traceback\ \(most\ recent\ call\ last\)
    | File\ "[^"]+",\ line\ \d+
    | (?<![\w.:/@+-])/(?:[\w.@+-]+/)+[\w.+-]+\.(?:py|rs|go|cc|cpp|cu|js|ts)\b
    | (?<![\w/.-])[\w/.-]+\.(?:rs|go|cpp|cc):\d+""",
    re.VERBOSE,
)
"""Matches a line of a traceback, the path of a source file, or a source file with a line number."""


def _place_of_words(error: object) -> str:
    """Return the JSON pointer of the message in an error body. Empty if it has no message."""
    if not isinstance(error, Mapping):
        return ""
    for name in ("message", "error", "detail"):
        stated = error.get(name)
        if isinstance(stated, Mapping) and (deeper := _place_of_words(stated)):
            return f"/{name}{deeper}"
        if stated and isinstance(stated, (str, list)):
            return f"/{name}"
    return ""


@select
def _refused(stream: Stream) -> bool:
    return stream.refused and was_refused(stream)


@check_run("refusals-have-one-shape")
def _refusals_have_one_shape(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that all refusals of an endpoint have their message at the same place."""
    places: dict[str, dict[str, list[Answer]]] = {}
    for stream in _refused(streams):
        if where := _place_of_words(stream.error):
            places.setdefault(stream.dialect, {}).setdefault(where, []).append(stream)
    for by_place in places.values():
        usual = max(by_place, key=lambda where: len(by_place[where]))
        for where, refused in by_place.items():
            for stream in refused:
                yield expect(
                    start_place(stream),
                    f"a message at {usual}",
                    f"a message at {where}",
                    f"the refusal has its message at {where}, but others of this endpoint at {usual}",
                    holds=where == usual,
                    related=(start_place(by_place[usual][0]),),
                )


@check("errors-keep-internals")
def _errors_keep_internals(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that errors do not reveal paths and lines of the server's source code, which help attackers."""
    errors = [(event.place, json.dumps(event.error)) for event in stream.error_events]
    if (stream.exchange.status or 0) >= 400:
        body = stream.exchange.body.decode(errors="replace")
        errors = [(start_place(stream), json.dumps(stream.error) + body)]
    for place, words in errors:
        shown = _INTERNALS.search(words.replace('\\"', '"'))
        if shown or was_refused(stream) or stream.answered:
            message = f"the error shows {shown.group()[:120]!r}" if shown else ""
            actual = shown.group()[:120] if shown else "words about the request"
            yield expect(place, "words about the request", actual, message, holds=shown is None)


def _refused_delivers_nothing(_row: Relation, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a refusal delivers no tokens, because the request was not run."""
    if not was_refused(stream):
        return
    bearing = [
        emission
        for emission in stream.emissions()
        if emission.output_ids or emission.text or any(emission.series.values())
    ]
    first = bearing[0] if bearing else None
    message = "the request was refused, but a token was delivered"
    place = first.at("output_ids") if first else end_place(stream)
    actual = {"output_ids": first.output_ids, "text": first.text} if first else "a refusal and nothing else"
    yield expect(place, "a refusal and nothing else", actual, message, holds=first is None)


check_rows(
    _refused_delivers_nothing,
    Relation("refused-stream-delivers-nothing", about("stream")),
    Relation("refused-answer-delivers-nothing", about(unasked=("stream",))),
)


@check("unknown-paths-are-not-found")
def _unknown_paths_are_not_found(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a request to an unknown path gets status 404."""
    exchange = stream.exchange
    if exchange.scenario != SCENARIO or exchange.label != UNKNOWN_PATH:
        return
    if exchange.status is None or exchange.status in ABOUT_ACCESS_OR_LOAD:
        return
    message = f"{exchange.request.path}, which no server has, was answered with status {exchange.status}"
    place = start_place(stream)
    yield expect(place, 404, exchange.status, message)
