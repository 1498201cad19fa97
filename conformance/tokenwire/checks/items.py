"""Checks of the chapter on typed items: the events of Responses and Messages, and the response that they add
up to.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenwire.checks.about import ANSWERED, EVENTS, ended, finished_choices
from tokenwire.checks.channels import observe_differences
from tokenwire.checks.check import Relation, Target, check, check_rows, check_run, compare_rows, select
from tokenwire.checks.evidence import Observation, Row, equal, expect, expect_each, in_wire_order
from tokenwire.checks.reading.channels import CALLED, SPENT, Channels, offered, piece_place
from tokenwire.checks.reading.fields import end_place, read_once, usage_count
from tokenwire.checks.reading.refusals import was_refused
from tokenwire.dialects.dialect import dialect_of, has_items, policy_of
from tokenwire.dialects.event_grammar import EventGrammar, FinalObject, Rule, Walk
from tokenwire.dialects.markup import as_object
from tokenwire.record import Answer, Choice, Delivery, Event, Stream, as_list, fact
from tokenwire.requirement import Level
from tokenwire.target.determinism import Comparison
from tokenwire.typed_table import counted
from tokenwire.wire.json_pointer import ABSENT, find, gather, parse


def _grammar(stream: Answer) -> EventGrammar | None:
    dialect = dialect_of(stream)
    return dialect.grammar if dialect is not None else None


@read_once
def _walk(stream: Stream) -> Walk | None:
    """Return the events of a stream, parsed by the event grammar of its endpoint. None if the endpoint has no
    grammar.
    """
    grammar = _grammar(stream)
    return grammar.walk(stream.events) if grammar is not None else None


@dataclass(frozen=True)
class _Placed(Relation):
    """Events must satisfy one rule of the endpoint's event grammar."""

    rule: Rule


def _placed(row: _Placed, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Observe each event that breaks the rule.

    If no event breaks it, observe the last event to which the rule applied.
    """
    walk = _walk(stream)
    if walk is None or not stream.answered:
        return
    misplaced = [found for found in walk.misplaced if found.rule is row.rule]
    for found in misplaced:
        yield expect(found.event.place, "what the grammar has there", found.words, found.words, holds=False)
    if not misplaced and row.rule in walk.seen:
        yield expect(walk.seen[row.rule].place, "as the grammar has it", "as the grammar has it", holds=True)


_ENDS = _Placed("stream-ends-once", EVENTS, Rule.ENDS)
check_rows(
    _placed,
    _Placed("deltas-belong-to-what-is-open", EVENTS, Rule.OPEN),
    _Placed("what-opens-is-closed", EVENTS, Rule.CLOSED),
    _Placed("items-are-numbered", EVENTS, Rule.NUMBERED),
    _Placed("done-event-follows-its-deltas", EVENTS, Rule.DONE),
)


@check("event-name-is-its-type", EVENTS)
def _event_name_is_its_type(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the name of an event equals its type. The name is optional if clients read only the type."""
    named = policy_of(stream).events_are_named
    if named == "never" or not stream.answered:
        return
    for event in stream.events:
        kind = event.data.get("type") if isinstance(event.data, Mapping) else None
        if isinstance(kind, str):
            name = repr(event.name) if event.name else "nothing"
            message = f"the event of type {kind} is named {name}"
            seen = expect(event.at("/type"), kind, event.name, message)
            yield seen._replace(level=Level.SHOULD) if named == "optional" and not event.name else seen


@check("events-are-numbered", EVENTS)
def _events_are_numbered(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the sequence numbers of a stream count its events from 0.

    The number 1.0 equals 1. Events of an extension need no number.
    """
    grammar = _grammar(stream)
    if grammar is None or not grammar.numbered or not stream.answered:
        return
    numbers = ((e, find(e.data, parse(grammar.numbered))) for e in stream.events if not e.done)
    counted = (
        (event, number)
        for event, number in numbers
        if number is not ABSENT or grammar.kind_of(event.data) in grammar.known
    )
    rows: Iterator[Row] = (
        (
            event,
            "",
            number == due and type(number) in {int, float},
            due,
            "none" if number is ABSENT else number,
        )
        for due, (event, number) in enumerate(counted)
    )
    yield from expect_each(rows, "the sequence number is {actual}, and {expected} is the next")


@check(_ENDS.requirement, _ENDS.about)
def _stream_ends_once(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a stream begins with the right event, and that exactly one event ends it."""
    walk = _walk(stream)
    yield from _placed(_ENDS, stream, target)
    if walk is not None and stream.answered and ended(stream) and walk.end is None:
        ends = " or ".join(walk.grammar.ends)
        message = f"the stream is over without {ends}"
        yield expect(end_place(stream), ends, "no such event", message, holds=False)


@check("deltas-add-up", EVENTS)
def _deltas_add_up(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the deltas of an item, joined together, equal the content of its closing events."""
    walk = _walk(stream)
    repeated = walk.joined() if walk is not None else ()
    rows: Iterator[Row] = (
        (event, pointer, stated == joined, joined, stated) for event, pointer, stated, joined in repeated
    )
    yield from in_wire_order(
        expect_each(rows, "the event's content differs from the joined deltas before it")
    )


@check("other-events-may-come", EVENTS)
def _other_events_may_come(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Report each type of event that the event grammar of the endpoint does not have."""
    grammar = _grammar(stream)
    if grammar is None or not stream.events:
        return
    named: dict[str, Event] = {}
    for event in stream.events if stream.answered else ():
        kind = "" if event.done else grammar.kind_of(event.data)
        if kind and kind not in grammar.known:
            named.setdefault(kind, event)
    for kind, event in named.items():
        message = f"events of type {kind} are in no grammar here, and their content is not judged"
        yield expect(event.at("/type"), "a known type", kind, message, holds=False)
    if not named:
        yield expect(stream.events[0].at("/type"), "known types", "known types", holds=True)


def _json_type(value: Any) -> str:
    """Return the name of a value's JSON type."""
    if value is ABSENT or value is None:
        return "missing" if value is ABSENT else "null"
    names = {bool: "boolean", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "number")


def _identity(item: Any, pointers: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of an item's constant fields by pointer. Missing fields are left out."""
    found = {pointer: gather(item, parse(pointer)) for pointer in pointers}
    return {pointer: values for pointer, values in found.items() if values}


@check("closed-items-stand-in-the-response", EVENTS)
def _closed_items_stand_in_the_response(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the last event repeats the closed items, ordered by their index."""
    walk = _walk(stream)
    final = walk.grammar.final if walk is not None else None
    if walk is None or final is None or walk.end is None:
        return
    place = walk.end.at(final.object + final.items)
    repeated = find(walk.end.data, parse(final.object + final.items))
    rules = walk.grammar.frames
    closed = {
        frame.index: find(frame.closed.data, parse(rules[frame.name].object))
        for frame in walk.frames
        if frame.closed is not None and not rules[frame.name].within
    }
    if not isinstance(repeated, list) or not (closed or repeated):
        return
    due = [_identity(item, final.same) for _, item in sorted(closed.items())]
    actual = [_identity(item, final.same) for item in repeated]
    pairs = enumerate(zip(due, actual, strict=False))
    wrong = next((index for index, (item, repeat) in pairs if item != repeat), None)
    message = (
        f"item {wrong} of the response differs from the item that was closed"
        if wrong is not None
        else f"the response has {counted(len(actual), 'item')}, but {len(due)} were closed"
    )
    shown = slice(wrong, None if wrong is None else wrong + 1)
    yield expect(place, due[shown], actual[shown], message, holds=due == actual)


@check("item-ids-stay", EVENTS)
def _item_ids_stay(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the events of an item keep the id of its first event, and that its last event keeps the
    constant fields.
    """
    walk = _walk(stream)
    if walk is None:
        return
    for frame in walk.frames:
        rule = walk.grammar.frames[frame.name]
        if not rule.id:
            continue
        opened = find(frame.opened.data, parse(rule.object))
        due = find(opened, ("id",))
        named = (
            (event, rule.id, equal(due, name), due, name)
            for _, event in frame.all_events
            if (name := find(event.data, parse(rule.id))) is not ABSENT
        )
        yield from expect_each(
            named, f"{frame.words} began with the id {{expected!r}}, and has {{actual!r}} here"
        )
        if frame.closed is not None:
            closed = find(frame.closed.data, parse(rule.object))
            before, after = _identity(opened, rule.same), _identity(closed, rule.same)
            message = f"{frame.words} began with {before}, but ends with {after}"
            yield expect(frame.closed.at(rule.object), before, after, message)


@check("what-opens-is-empty", EVENTS)
def _what_opens_is_empty(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a part or block begins with an empty text, because deltas bring all of its text."""
    walk = _walk(stream)
    if walk is None:
        return
    for frame in walk.frames:
        rule = walk.grammar.frames[frame.name]
        texts = (
            (f"{rule.object}{name}", find(frame.opened.data, parse(rule.object + name)))
            for name in rule.empty
        )
        held = ((frame.opened, name, text == "", "", text) for name, text in texts if isinstance(text, str))
        yield from expect_each(held, f"{frame.words} begins with the text {{actual!r}}")


def _final(stream: Stream) -> FinalObject | None:
    """Return the grammar's description of the final object. None if the endpoint has no items."""
    grammar = _grammar(stream)
    return grammar.final if grammar is not None else None


def _objects(stream: Stream) -> Iterator[tuple[Event, str, Any]]:
    """Yield the response object of a whole answer, or of each event that has it: event, pointer, object."""
    final = _final(stream)
    if final is None or not stream.answered:
        return
    place = final.object if stream.asked.stream else ""
    for event in stream.events:
        if isinstance(found := find(event.data, parse(place)), Mapping):
            yield event, place, found


def _items_of(event: Event, place: str, found: Any, final: FinalObject) -> list[tuple[Event, str, Any]]:
    """List the items of a response object: event, pointer, item."""
    items = find(found, parse(final.items))
    named = enumerate(items if isinstance(items, list) else ())
    return [(event, f"{place}{final.items}/{index}", item) for index, item in named]


def _closed_items(stream: Stream) -> Iterator[tuple[Event, str, Any]]:
    """Yield each item that an event closes, and each item in a response object: event, pointer, item."""
    final, walk = _final(stream), _walk(stream)
    if final is None or walk is None:
        return
    for frame in walk.frames:
        rule = walk.grammar.frames[frame.name]
        if frame.closed is not None and not rule.within:
            yield frame.closed, rule.object, find(frame.closed.data, parse(rule.object))
    for event, place, found in _objects(stream):
        yield from _items_of(event, place, found, final)


@check("item-ids-are-unique", ANSWERED)
def _item_ids_are_unique(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the items of a stream have different ids, and that the items of each response object do."""
    final, walk = _final(stream), _walk(stream)
    if final is None or walk is None:
        return
    lists: list[list[tuple[Event, str, Any]]] = [[]]
    for frame in walk.frames:
        rule = walk.grammar.frames[frame.name]
        if not rule.within:
            lists[0].append((frame.opened, rule.object, find(frame.opened.data, parse(rule.object))))
    lists += [_items_of(event, place, found, final) for event, place, found in _objects(stream)]
    yield from in_wire_order(seen for items in lists for seen in _different_ids(items))


def _different_ids(items: Iterable[tuple[Event, str, Any]]) -> Iterator[Observation]:
    """Observe the id of each item of one list, which must differ from the ids before it."""
    taken: dict[str, int] = {}
    for number, (event, place, item) in enumerate(items):
        if isinstance(name := find(item, ("id",)), str):
            first = taken.setdefault(name, number)
            message = f"item {number} has the id {name!r}, like item {first}"
            yield expect(event.at(f"{place}/id"), "an id of its own", name, message, holds=first == number)


@check("closed-item-is-not-in-progress", ANSWERED)
def _closed_item_is_not_in_progress(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a closed or listed item does not have the status in_progress."""
    for event, place, item in _closed_items(stream):
        if isinstance(status := find(item, ("status",)), str):
            message = f"the item is closed, but its status is {status!r}"
            holds = status != "in_progress"
            yield expect(event.at(f"{place}/status"), "completed or incomplete", status, message, holds=holds)


@check("response-fields-stay", EVENTS)
def _response_fields_stay(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a constant field of the response keeps its first value in all later events."""
    final = _final(stream)
    given: dict[str, Any] = {}
    if final is None:
        return
    for event, place, found in _objects(stream):
        for pointer in final.stays:
            value = find(found, parse(pointer))
            if value is ABSENT or value is None:
                continue
            if pointer in given:
                message = f"{pointer[1:]} was {{expected!r}} in an earlier event, and is {{actual!r}} here"
                row = (event, place + pointer, equal(given[pointer], value), given[pointer], value)
                yield from expect_each([row], message)
            given.setdefault(pointer, value)


@check("finished-response-has-no-error", ANSWERED)
def _finished_response_has_no_error(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a completed or incomplete response does not contain an error."""
    final = _final(stream)
    if final is None:
        return
    for event, place, found in _objects(stream):
        status, error = find(found, ("status",)), find(found, parse(final.error))
        if status in final.whole and error is not ABSENT:
            message = f"the response is {status}, but has the error {error!r}"
            yield expect(event.at(place + final.error), None, error, message)


@dataclass(frozen=True)
class _Repeated(Relation):
    """The last event of a stream must have the fields that the whole answer to the same request has."""

    fields: Callable[[FinalObject], tuple[str, ...]]
    repeat_the_request: bool = False
    """True if the fields repeat what was requested. Requests that differ are then not compared."""


def _request(stream: Stream) -> dict[str, Any]:
    """Return the body of a request without what only a stream has."""
    body = stream.exchange.request.body
    fields = body if isinstance(body, Mapping) else {}
    return {name: value for name, value in fields.items() if name not in ("stream", "stream_options")}


def _repeated(row: _Repeated, comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Observe the JSON type of each field that is not null in the whole answer."""
    whole, stream = comparison.baseline, comparison.other
    final, walk = _final(stream), _walk(stream)
    if final is None or whole.delivery is not Delivery.WHOLE or walk is None or walk.end is None:
        return
    if row.repeat_the_request and _request(whole) != _request(stream):
        return
    last = find(walk.end.data, parse(final.object))
    for pointer in row.fields(final) if find(last, ("status",)) in final.whole else ():
        due, value = (find(side, parse(pointer)) for side in (whole.events[0].data, last))
        if due is not ABSENT and due is not None:
            expected, actual = _json_type(due), _json_type(value)
            message = f"{pointer[1:]} is {actual} in the last event, and {expected} in the whole answer"
            yield expect(walk.end.at(final.object + pointer), expected, actual, message)


compare_rows(
    _repeated,
    _Repeated("last-event-has-the-usage", EVENTS, lambda final: (final.usage,)),
    _Repeated("last-event-has-the-fields-of-the-whole", EVENTS, lambda final: final.stays, True),
)


@check("last-event-tells-the-status", EVENTS)
def _last_event_tells_the_status(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the event that ends a stream matches the status of its response."""
    walk = _walk(stream)
    if walk is None or walk.end is None or not walk.grammar.status:
        return
    kind = walk.grammar.kind_of(walk.end.data)
    status = find(walk.end.data, parse(walk.grammar.status))
    if (due := walk.grammar.ends.get(kind)) is not None and status is not ABSENT:
        reason = stream.choices[0].finish.raw if stream.choices and stream.choices[0].finish else None
        message = f"the event {kind} has a response with the status {status!r} ({reason})"
        yield expect(walk.end.at(walk.grammar.status), due, status, message)


@check("cut-item-is-incomplete", ANSWERED)
def _cut_item_is_incomplete(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the last item of a response has the status incomplete if the budget ended the response."""
    grammar = _grammar(stream)
    final = grammar.final if grammar is not None else None
    if final is None:
        return
    pointer = f"{final.object}{final.items}" if stream.asked.stream else final.items
    for choice in finished_choices(stream):
        emission = choice.emissions[-1]
        items = find(emission.event.data, parse(pointer))
        if choice.finish is not None and choice.finish.type == SPENT and isinstance(items, list) and items:
            place = emission.event.at(f"{pointer}/{len(items) - 1}/status")
            status = find(items[-1], ("status",))
            if status in (None, ABSENT) and find(items[-1], ("type",)) == _REASONING:
                continue  # the status of reasoning is optional
            message = f"the budget ended the last item, but its status is {status!r}"
            yield expect(place, "incomplete", None if status is ABSENT else status, message)


@check("message-start-counts-the-prompt", EVENTS)
def _message_start_counts_the_prompt(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the first event of a stream reports as many prompt tokens as the last one."""
    dialect = dialect_of(stream)
    if dialect is None or not finished_choices(stream):
        return
    due = usage_count(stream, "prompt_tokens")
    for event in stream.events:
        counts = dialect.begun_counts(event.data) or {}
        if due is not None and "prompt_tokens" in counts:
            count = counts["prompt_tokens"]
            message = f"the first event reports {count} prompt tokens, and the last one {due}"
            place = event.at("/message/usage")
            seen = expect(place, due or "at least 1", count, message, holds=equal(due, count) and due > 0)
            yield seen._replace(level=Level.SHOULD) if count else seen


@check("thinking-is-signed", ANSWERED)
def _thinking_is_signed(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that each thinking block has a signature. In a stream, a delta carries the signature."""
    walk, grammar = _walk(stream), _grammar(stream)
    frame_rules = grammar.frames if grammar is not None else {}
    for frame in walk.frames if walk is not None else ():
        rule = frame_rules[frame.name]
        kind = rule.signed.get(frame.kind)
        if kind is not None and frame.closed is not None:
            given = find(frame.opened.data, parse(f"{rule.object}/signature"))
            holds = bool(given and isinstance(given, str)) or any(name == kind for name, _ in frame.events)
            message = f"{frame.words} closes without a signature"
            yield expect(frame.closed.place, "a signature", "no signature", message, holds=holds)
    signed = {kind for rule in frame_rules.values() for kind in rule.signed}
    event = stream.events[0] if signed and not stream.asked.stream and stream.answered else None
    blocks = find(event.data, ("content",)) if event is not None else None
    for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if event is not None and find(block, ("type",)) in signed:
            given = find(block, ("signature",))
            actual = given if isinstance(given, str) else "no signature"
            place, holds = event.at(f"/content/{index}"), isinstance(given, str)
            yield expect(place, "a signature", actual, f"block {index} has no signature", holds=holds)


@check("call-input-is-an-object", ANSWERED)
def _call_input_is_an_object(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the joined input of a call is one JSON object, if the message finished with calls."""
    grammar = _grammar(stream)
    for choice in finished_choices(stream) if grammar is not None and grammar.once else ():
        called = choice.finish is not None and choice.finish.type == CALLED
        for call in choice.calls if called else ():
            place, text = piece_place(*call.pieces[-1]), call.arguments
            holds = not text or as_object(text) is not None
            message = f"the input of {call.name} joins to {text!r}, which is not a JSON object"
            yield expect(place, "one JSON object", text, message, holds=holds)


def _body(stream: Stream) -> Mapping[str, Any]:
    body = stream.exchange.request.body
    return body if isinstance(body, Mapping) else {}


_REASONING = "reasoning"
"""The type of an item that contains reasoning."""
_OF_THOUGHTS = ("thinking", "reasoning", "chat_template_kwargs", "system", "instructions", "tool_choice")
"""Request fields that differ between endpoints. Requests with such a field are not compared."""


@select
def _answers_messages(stream: Stream) -> bool:
    """Select the answers to messages that several endpoints can receive."""
    dialect, asked = dialect_of(stream), stream.asked
    talks = dialect is not None and dialect.chat and stream.answered and ended(stream)
    plain = asked.n == 1 and not asked.input_ids and not any(name in _OF_THOUGHTS for name in _body(stream))
    return talks and plain and bool(asked.prompt_key)


@fact(Stream)
def _conversation(stream: Stream) -> tuple[object, ...]:
    """Return a key of the conversation that is equal at all endpoints: the messages and the names of the
    tools.
    """
    return stream.asked.prompt_key, offered(stream)


@fact(Stream)
def _limits(stream: Stream) -> tuple[object, ...]:
    """Return a key of everything that may end a greedy answer early: the budget and the stop strings."""
    asked = stream.asked
    return asked.max_new_tokens, asked.stop, asked.ignore_eos


def _across_endpoints(
    streams: Iterable[Answer], key: Callable[[Answer], object]
) -> Iterator[tuple[Answer, Answer]]:
    """Yield pairs of answers with equal keys at two endpoints. The second endpoint has items."""
    asked: defaultdict[object, dict[str, Answer]] = defaultdict(dict)
    for stream in streams:
        asked[key(stream)].setdefault(stream.dialect, stream)
    for answers in asked.values():
        first = min(answers.values(), key=lambda answer: (has_items(answer), answer.exchange.name))
        yield from (
            (first, answer) for answer in answers.values() if answer is not first and has_items(answer)
        )


@check_run("endpoints-agree-on-channels")
def _endpoints_agree_on_channels(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that all endpoints with messages split the answer to one conversation into the same channels."""
    greedy = (stream for stream in _answers_messages(streams) if stream.asked.greedy)
    for first, second in _across_endpoints(greedy, lambda answer: (_conversation(answer), _limits(answer))):
        whole = (first.load(), second.load())
        (ours,), (theirs,) = ([Channels.of(stream, choice) for choice in stream.choices] for stream in whole)
        source = f"and at {first.exchange.request.path}"
        by_chance = _texts_go_apart(ours.choice, theirs.choice)
        found = observe_differences(ours, theirs, source, by_chance=by_chance)
        yield from found
        if not found:
            yield expect(theirs.place("text"), ours.content, theirs.content, holds=True)


def _texts_go_apart(first: Choice, second: Choice) -> bool:
    """True if two choices have different texts. The same text in other channels counts as equal."""
    texts = [f"{choice.reasoning or ''}{choice.text or ''}" for choice in (first, second)]
    return not any(texts[0].startswith(text) or text.startswith(texts[0]) for text in texts[1:])


@check_run("endpoints-agree-on-counts")
def _endpoints_agree_on_counts(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that all endpoints with messages report the same number of prompt tokens for one conversation."""
    for first, second in _across_endpoints(_answers_messages(streams), _conversation):
        yield from _same_prompt(first, second, f"at {first.exchange.request.path}")


def _same_prompt(first: Answer, second: Answer, where: str) -> Iterator[Observation]:
    """Check that the usage of two answers reports the same number of prompt tokens."""
    due, count = (usage_count(answer, "prompt_tokens") for answer in (first, second))
    if due is not None and count is not None:
        place = second.load().usage_place or end_place(second)
        yield expect(place, due, count, f"the prompt has {count} tokens, but {due} {where}")


class _Turn(NamedTuple):
    """A request and its answer, reduced to the values to which other turns refer.

    Each item is represented by a digest.
    """

    name: str
    """The id of the response."""
    previous: str
    """The id of the response that the request continues."""
    instructions: str
    """The instructions of the request. Later turns do not inherit them."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _digests(values: Any) -> tuple[str, ...]:
    texts = (json.dumps(value, sort_keys=True) for value in values) if isinstance(values, list) else ()
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts)


@fact(Stream)
def _turn(stream: Stream) -> _Turn | None:
    """Return the turn of an answer with items; None for other answers. The content of a message counts as an
    item.
    """
    if not has_items(stream):
        return None
    body, data = _body(stream), stream.document
    if "messages" in body:
        turns = as_list(body["messages"]) or []
        sent: Any = [turn.get("content") for turn in turns if isinstance(turn, Mapping)]
        given: Any = [data["content"]] if data.get("content") else []
    else:
        sent, given = body.get("input"), data.get("output")
    previous = str(body.get("previous_response_id") or "")
    instructions = str(body.get("instructions") or "")
    return _Turn(str(data.get("id")), previous, instructions, _digests(sent), _digests(given))


def _turns(streams: tuple[Answer, ...]) -> list[tuple[Answer, _Turn]]:
    return [(stream, turn) for stream in streams if (turn := _turn(stream)) is not None]


@check_run("own-items-are-accepted")
def _own_items_are_accepted(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that an endpoint accepts its own items as a part of the next input."""
    turns = _turns(streams)
    given = {(stream.dialect, item) for stream, turn in turns for item in turn.outputs}
    forms = {(stream.dialect, stream.asked.stream) for stream, _ in turns if stream.answered}
    for stream, turn in turns:
        repeats = any((stream.dialect, item) in given for item in turn.inputs)
        # If the endpoint never answers requests of this delivery mode, it refuses the mode and not the items.
        is_taken = (stream.dialect, stream.asked.stream) in forms
        if repeats and (stream.answered or (is_taken and was_refused(stream))):
            message = f"a turn with its own items was refused with status {stream.exchange.status}"
            actual = "an answer" if stream.answered else stream.exchange.status
            yield expect(end_place(stream), "an answer", actual, message, holds=stream.answered)


@check_run("previous-response-is-continued")
def _previous_response_is_continued(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that a request that names a previous response has the same prompt as a request that repeats the
    items of that response.
    """
    turns = _turns(streams)
    by_name = {turn.name: turn for _, turn in turns}
    spelled = {
        (turn.instructions, turn.inputs): stream
        for stream, turn in turns
        if not turn.previous and stream.answered
    }
    for stream, turn in turns:
        before = _before(turn, by_name) if turn.previous else None
        key = (turn.instructions, (*before, *turn.inputs)) if before is not None else None
        twin = spelled.get(key) if key is not None else None
        if stream.answered and twin is not None:
            yield from _same_prompt(twin, stream, "if the request repeats all items")


def _before(turn: _Turn, by_name: Mapping[str, _Turn]) -> tuple[str, ...] | None:
    """Return the inputs and outputs of all earlier turns. None if one of them is unknown."""
    found: tuple[str, ...] = ()
    seen: set[str] = set()
    while turn.previous:
        if turn.previous in seen or turn.previous not in by_name:
            return None
        seen.add(turn.previous)
        turn = by_name[turn.previous]
        found = (*turn.inputs, *turn.outputs, *found)
    return found
