"""Checks of the chapter on channels. A parser splits one text into content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from tokenwire.checks.about import about, ended, streamed, undisturbed_choices
from tokenwire.checks.check import Target, check, compare
from tokenwire.checks.delivery import interval_of
from tokenwire.checks.difference import first_difference
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.chance import goes_apart
from tokenwire.checks.reading.channels import (
    CALLED,
    CHANNEL_WORDS,
    SPENT,
    Channels,
    MarkedText,
    differences,
    offered,
    piece_place,
    said_of,
    taken_apart,
    tokens_of,
    written,
)
from tokenwire.checks.reading.fields import end_place, start_place, total_count
from tokenwire.checks.reading.right_channels import right_marked_text
from tokenwire.checks.usage import reasoning_tokens
from tokenwire.dialects.dialect import is_chat, policy_of
from tokenwire.dialects.markup import as_object
from tokenwire.record import CallPiece, Choice, Delivery, Place, Stream, ToolCall, integer
from tokenwire.requirement import Level
from tokenwire.target.determinism import Comparison

_CHANNELS = ("reasoning", "text", CALLED)
_TAKEN_APART = about(chat=True, answered=True, ended=True)
_CALLS = about(chat=True, streamed=True)


def _finished(stream: Stream) -> Iterator[Channels]:
    """Yield the channels of each complete choice of a chat answer."""
    for choice in undisturbed_choices(stream) if is_chat(stream) else ():
        yield Channels.of(stream, choice)


def _marked_text(stream: Stream, channels: Channels, target: Target) -> MarkedText | None:
    return said_of(stream, channels.choice, target.markup, target.detokenizer)


def _disputed_by_its_channels(stream: Stream, channels: Channels, target: Target) -> str:
    """Describe why the markup of a choice is disputed, as a clause. Empty if it is not disputed.

    This is for a choice whose tokens are unknown, so that only its channels show the sampled text.
    """
    tools = offered(stream)
    if any(content.strip() for content in channels.contents[1:]):
        return "text follows a tool call"
    if tools is not None and any(call.name not in tools for call in channels.calls):
        return "a call names a tool that the request does not offer"
    if any(as_object(call.arguments) is None for call in channels.calls):
        return "a tool call is malformed"
    markers = target.markup.markers(thoughts=True, calls=True)
    if any(marker in text for marker in markers for text in (channels.reasoning, channels.content)):
        return "the text contains a marker"
    return ""


def _pairs(comparison: Comparison) -> Iterator[tuple[Channels, Channels]]:
    """Yield pairs of the same choice in two answers to one request, if a parser may have split one
    of them.
    """
    ours = {channels.choice.index: channels for channels in _finished(comparison.baseline)}
    for theirs in _finished(comparison.other):
        if theirs.choice.index in ours:
            pair = ours[theirs.choice.index], theirs
            sides = zip((comparison.baseline, comparison.other), pair, strict=True)
            if any(taken_apart(stream, channels.choice) for stream, channels in sides):
                yield pair


def _disputed_pair(comparison: Comparison, pair: tuple[Channels, Channels], target: Target) -> str:
    """Describe why the markup of two answers is disputed.

    Empty if the markup is not disputed. If the tokens are known, they decide. Otherwise the whole answer must
    show disputed markup, or both streams must show it. Markup that only one stream shows may be an error of
    that stream.
    """
    sides = tuple(zip((comparison.baseline, comparison.other), pair, strict=True))
    stated = [
        known for stream, channels in sides if (known := _marked_text(stream, channels, target)) is not None
    ]
    if stated:
        return next((known.disputed for known in stated if known.disputed), "")
    ours, theirs = (_disputed_by_its_channels(stream, channels, target) for stream, channels in sides)
    return ours if _with_whole(comparison) else ours and theirs


def _compared(comparison: Comparison, source: str, target: Target) -> Iterator[Observation]:
    """Check that two answers have the same channels, if their markup is not disputed."""
    for pair in _pairs(comparison):
        if _disputed_pair(comparison, pair, target):
            continue
        ours, theirs = pair
        found = observe_differences(ours, theirs, source, by_chance=_by_chance(comparison, pair, target))
        yield from found
        if not found:
            place = theirs.place(CALLED if theirs.calls else "reasoning")
            yield expect(place, written(ours), written(theirs), holds=True)


def _by_chance(comparison: Comparison, pair: tuple[Channels, Channels], target: Target) -> bool:
    """True if chance may explain a difference. If both texts are known and equal, chance is excluded."""
    sides = zip((comparison.baseline, comparison.other), pair, strict=True)
    first, second = (_marked_text(stream, channels, target) for stream, channels in sides)
    same = first is not None and second is not None and first.text == second.text
    return not same and goes_apart((pair[0].choice, pair[1].choice))


def observe_differences(
    ours: Channels, theirs: Channels, source: str, *, by_chance: bool = False
) -> list[Observation]:
    """Return a violation for each difference between the channels of two choices."""
    return [
        expect(
            theirs.place(found.channel),
            found.expected,
            found.actual,
            found.message(source),
            holds=False,
            related=(ours.place(found.channel),),
            by_chance=by_chance,
        )
        for found in differences(ours, theirs)
    ]


def _with_whole(comparison: Comparison) -> bool:
    return comparison.baseline.delivery is Delivery.WHOLE and streamed(comparison.other)


@compare("stream-channels-equal-whole")
def _stream_channels_equal_whole(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """Check that a stream has the same channels as the whole answer."""
    if _with_whole(comparison):
        yield from _compared(comparison, "and in the whole answer", target)


def _other_interval(comparison: Comparison, target: Target) -> bool:
    both = (comparison.baseline, comparison.other)
    first, second = (interval_of(stream, target) for stream in both)
    return all(map(streamed, both)) and first != second


@compare("channels-independent-of-interval")
def _channels_independent_of_interval(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """Check that streams of one request have the same channels at every stream interval."""
    if _other_interval(comparison, target):
        interval = interval_of(comparison.baseline, target)
        yield from _compared(comparison, f"and at interval {interval or 'unknown'}", target)


@compare("disputed-markup-may-differ")
def _disputed_markup_may_differ(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """Report texts with disputed markup whose channels differ between two answers."""
    if not _with_whole(comparison) and not _other_interval(comparison, target):
        return
    source = "and in the whole answer" if _with_whole(comparison) else "and at the other interval"
    for pair in _pairs(comparison):
        disputed = _disputed_pair(comparison, pair, target)
        if disputed:
            found = observe_differences(*pair, source)
            for seen in found:
                yield seen._replace(message=f"{disputed}: {seen.message}")
            if not found:
                yield expect(pair[1].place("text"), "one reading", "one reading", holds=True)


@compare("border-space-may-differ")
def _border_space_may_differ(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Report differences in white space at the edges of a channel. This white space is not part of the
    channel's text.
    """
    if not _with_whole(comparison):
        return
    for pair in _pairs(comparison):
        ours, theirs = pair
        if any(differences(*pair)):
            continue
        for channel, expected, actual in (
            ("reasoning", ours.reasoning, theirs.reasoning),
            ("text", ours.content, theirs.content),
        ):
            message = f"the {CHANNEL_WORDS[channel]} is {actual!r}, with different white space"
            yield expect(theirs.place(channel), expected, actual, message, related=(ours.place(channel),))


@check("channels-hold-no-markers", _TAKEN_APART)
def _channels_hold_no_markers(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that no channel contains a marker that the parser removes."""
    for channels in _finished(stream):
        stated = _marked_text(stream, channels, target)
        if stated is None or not stated.settled or not channels.choice.parsed:
            continue
        known = target.markup.markers(thoughts=bool(channels.reasoning), calls=bool(channels.calls))
        kept = (stated.reading.reasoning, *stated.reading.contents)  # with markers that close nothing
        markers = [marker for marker in known if not any(marker in text for text in kept)]
        parts = (("reasoning", channels.reasoning), ("text", channels.content))
        for channel, text in parts if markers else ():
            shown = next((marker for marker in markers if marker in text), None)
            message = f"the {CHANNEL_WORDS[channel]} contains the marker {shown!r}"
            yield expect(channels.place(channel), "no marker", text, message, holds=shown is None)


@check("channels-hold-all-text", _TAKEN_APART)
def _channels_hold_all_text(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the channels of a choice together contain all text of its tokens, except the markers."""
    for channels in _finished(stream):
        stated = _marked_text(stream, channels, target)
        if stated is not None and stated.settled and _has_markup(stated, channels):
            yield _compare_channels(channels, stated)


def _has_markup(stated: MarkedText, channels: Channels) -> bool:
    """True if the text contains markup in a format that the suite knows."""
    reading = stated.reading
    found = reading.cut is not None or bool(reading.reasoning or reading.calls)
    return stated.explains(channels) and (found or channels.choice.parsed or stated.tools is not None)


@check("script-channels-are-right", _TAKEN_APART)
def _script_channels_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the channels of a choice equal those of the right answer. This check needs neither ids nor
    logprobs.
    """
    model = target.model
    for channels in _finished(stream):
        right = None if model is None else right_marked_text(model, stream, channels.choice, target.markup)
        if right is None or not right.settled or not _has_markup(right, channels):
            continue
        if (
            right.reading.cut is None or not channels.input_is_object
        ):  # arguments that are an object cannot be cut off
            yield _compare_channels(channels, right, "the right answer has")


def _compare_channels(channels: Channels, stated: MarkedText, source: str = "the tokens say") -> Observation:
    holds = stated.held_by(channels)
    reading = stated.reading if holds else stated.nearest(channels)
    calls = [[call.name, call.arguments] for call in reading.calls]
    due = [reading.reasoning, "".join(reading.contents), calls]
    reported = [channels.reasoning, channels.content, written(channels)]
    unlike = (name for name, a, b in zip(_CHANNELS, due, reported, strict=True) if not _alike(a, b))
    differing = next(unlike, "")
    message = f"the channels do not contain what {source}"
    if reading.cut:
        message = f"no channel contains the end of the text: {reading.cut!r}"
    if differing:
        position, channel = _CHANNELS.index(differing), CHANNEL_WORDS[differing]
        stands, told = _from_where_they_part(reported[position], due[position])
        message = f"{source} {told} for the {channel}, and the channel contains {stands}"
    place = channels.place(differing or "text")
    actual = dict(zip(("reasoning", "content", "calls"), reported, strict=True))
    return expect(place, stated.text, actual, message, holds=holds)


_BEFORE, _BEHIND = 24, 40
"""The number of characters that are quoted before and after the first difference of two texts."""


def _from_where_they_part(reported: Any, due: Any) -> tuple[str, str]:
    """Quote two values. If both are texts, quote them from shortly before their first difference."""
    if not isinstance(reported, str) or not isinstance(due, str):
        return repr(reported), repr(due)
    position = first_difference(reported, due) or 0
    start, end = max(0, position - _BEFORE), position + _BEHIND
    quoted = (
        f"{'…' if start else ''}{text[start:end]}{'…' if text[end:] else ''}" for text in (reported, due)
    )
    first, second = map(repr, quoted)
    return first, second


def _alike(due: Any, reported: Any) -> bool:
    if isinstance(due, str):
        return "".join(due.split()) == "".join(reported.split())
    return len(due) == len(reported) and all(
        a[0] == b[0] and as_object(b[1]) == a[1] for a, b in zip(due, reported, strict=True)
    )


@check("unmatched-stop-moves-no-text", about("stop", chat=True, streamed=True, ended=True))
def _unmatched_stop_moves_no_text(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that text held back for a possible stop string stays in its channel."""
    for channels in _finished(stream):
        stated = _marked_text(stream, channels, target)
        whole = stated is not None and not stated.stopped and stated.reading.cut is None
        if stated is not None and whole and stated.settled and _has_markup(stated, channels):
            yield _compare_channels(channels, stated)


def _pieces(stream: Stream) -> Iterator[tuple[Place, CallPiece, bool]]:
    """Yield the pieces of the tool calls of a stream, each with its place, and True if it is the first of its
    call.
    """
    for choice in stream.choices:
        for call in choice.calls:
            for position, (emission, piece) in enumerate(call.pieces):
                yield piece_place(emission, piece), piece, position == 0


@check("call-opens-with-its-name", _CALLS)
def _call_opens_with_its_name(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the first piece of a call has an index, an id, a type and a name."""
    for place, piece, first in _pieces(stream):
        if first:
            named = {"id": piece.id, "type": piece.type, "name": piece.name}
            lacks = ["index"] if integer(piece.index) is None else []
            lacks += [name for name, value in named.items() if not isinstance(value, str) or not value]
            reported = {"index": piece.index, **named}
            message = f"the first piece of a tool call has no {' and no '.join(lacks)}"
            expected = "index, id, type and name"
            yield expect(place, expected, reported, message, holds=not lacks)


@check("call-is-named-once", _CALLS)
def _call_is_named_once(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that later pieces of a call have no id and no name.

    Some clients append a repeated value to the earlier one, and other clients keep only the last value.
    """
    for choice in stream.choices:
        for call in choice.calls:
            for emission, piece in call.pieces[1:]:
                actual = {"id": piece.id, "name": piece.name}
                again = [f"{name} {value!r}" for name, value in actual.items() if value is not None]
                message = f"a later piece of a tool call has the {' and the '.join(again)}"
                place, holds = piece_place(emission, piece), not again or _opens_another(call, piece)
                yield expect(place, "arguments alone", actual, message, holds=holds)


def _opens_another(call: ToolCall, piece: CallPiece) -> bool:
    """True if a piece begins another call under the same index: it has a name and a different id."""
    return bool(piece.name and isinstance(piece.id, str) and piece.id not in ("", call.id))


@check("calls-are-numbered", about(chat=True))
def _calls_are_numbered(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the tool calls of a choice are numbered from 0, in the order of their first pieces."""
    for choice in stream.choices:
        for due, call in enumerate(choice.calls):
            emission, piece = call.pieces[0]
            if streamed(stream) or piece.index is not None:
                message = f"tool call {due} of choice {choice.index} has the index {piece.index!r}"
                yield expect(piece_place(emission, piece), due, piece.index, message)
            for emission, piece in call.pieces[1:]:
                if _opens_another(call, piece):
                    message = (
                        f"the call {piece.id!r} has the index {piece.index!r}, like the call {call.id!r}"
                    )
                    place = piece_place(emission, piece)
                    yield expect(place, "an index of its own", piece.index, message, holds=False)


@check("call-ids-are-unique", about(chat=True))
def _call_ids_are_unique(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that no two calls have the same id, because the client returns a result with the id of
    its call.
    """
    held: set[str] = set()
    for choice in stream.choices:
        for call in choice.calls:
            call_id = call.id if isinstance(call.id, str) else ""
            yield expect(
                piece_place(*call.pieces[0]),
                "an id of its own",
                call.id,
                f"tool call {call.index} of choice {choice.index} has the id {call.id!r}"
                + (", like another call of the answer" if call_id else ""),
                holds=bool(call_id) and call_id not in held,
            )
            held.add(call_id)


def observe_arguments(call: ToolCall, message: str) -> Observation:
    """Check that the arguments of a call are a JSON object."""
    holds = as_object(call.arguments) is not None
    return expect(piece_place(*call.pieces[-1]), "a JSON object", call.arguments, message, holds=holds)


@check("arguments-are-json", _TAKEN_APART)
def _arguments_are_json(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the arguments of a call are JSON that a client can parse."""
    for channels in _finished(stream):
        if not channels.called:
            continue
        stated = _marked_text(stream, channels, target)
        if stated is not None and not stated.settled:
            continue
        for call in channels.calls:
            message = f"the arguments of {call.name!r} are not a JSON object: {call.arguments[-60:]!r}"
            seen = observe_arguments(call, message)
            # The model itself may have written invalid JSON. Without its tokens we cannot exclude this.
            yield seen if stated is not None else seen._replace(level=Level.MAY)


@check("spent-budget-is-told", _TAKEN_APART)
def _spent_budget_is_told(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a choice does not finish as a complete tool call if its budget ended within the call."""
    for channels in _finished(stream):
        stated, finish = _marked_text(stream, channels, target), channels.choice.finish
        if stated is None or finish is None or not stated.spent or not stated.reading.cut:
            continue
        message = f"the budget ended the choice within a tool call, and it finished with {finish.type!r}"
        yield expect(channels.place("finish"), SPENT, finish.type, message, holds=finish.type == SPENT)


@check("stop-within-a-call-is-told", _TAKEN_APART)
def _stop_within_a_call_is_told(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a choice does not finish as a complete tool call if a stop string ended it within
    the call.
    """
    for channels in _finished(stream):
        stated = _marked_text(stream, channels, target)
        stopped = stated is not None and (stated.stopped or stated.unfound) and not stated.spent
        if stated is not None and stopped and stated.reading.cut:
            message = "a stop string ended the choice within a tool call, and it finished with 'tool_calls'"
            finish = CALLED if channels.called else "another"
            yield expect(channels.place("finish"), "another", finish, message)


@check("finish-of-calls-has-a-call", _TAKEN_APART)
def _finish_of_calls_has_a_call(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a choice that finishes with tool_calls has a call."""
    for channels in _finished(stream):
        if channels.called:
            message, calls = "the choice finished with tool_calls, and has none", written(channels)
            yield expect(channels.place("finish"), "a tool call", calls, message, holds=bool(calls))


@check("calls-finish-as-calls", _TAKEN_APART)
def _calls_finish_as_calls(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a choice that ends with complete calls finishes with tool_calls."""
    asked = stream.asked
    named = asked.tools is not None and asked.tools.name
    if named or asked.stop or asked.stop_regex or asked.stop_token_ids:
        return
    for channels in _finished(stream):
        finish = channels.choice.finish
        if finish is None or finish.type not in {CALLED, "stop"}:
            continue
        if channels.calls and all(as_object(call.arguments) is not None for call in channels.calls):
            message = f"the choice has {len(channels.calls)} tool calls, and finished with {finish.type!r}"
            yield expect(channels.place("finish"), CALLED, finish.type, message)


@check("tool-choice-is-kept", _TAKEN_APART)
def _tool_choice_is_kept(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the tool calls of a choice obey tool_choice.

    A choice must call a tool if tool_choice requires a call, only the named tool if it names a tool, and none
    if it forbids calls.
    """
    rule = stream.asked.tools
    if rule is None or rule.demand not in ("none", "required"):
        return
    wanted = rule.name or rule.demand
    for channels in _finished(stream):
        finish, names = channels.choice.finish, [call.name for call in channels.calls]
        early = finish is None or finish.type not in {CALLED, "stop"} or stream.asked.stop
        if rule.demand == "none" or names or not early:
            demanded = bool(names) and (not rule.name or {*names} == {rule.name})
            kept = not names if rule.demand == "none" else demanded
            message = f"the request says tool_choice {wanted!r}, and the choice calls {names or 'nothing'}"
            place = channels.place(CALLED if names else "finish")
            yield expect(place, wanted, names, message, holds=kept)


@check("parsed-tokens-are-delivered", _TAKEN_APART)
def _parsed_tokens_are_delivered(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that ids and logprobs are delivered even for text that a parser holds back or removes."""
    if not policy_of(stream).hidden_in_logprobs:
        return
    finished = list(_finished(stream))
    if not any(channels.choice.parsed for channels in finished) or len(finished) != len(stream.choices):
        return
    due = total_count(stream, [channels.choice for channels in finished])
    for what, entries in (
        ("output_ids", [channels.choice.output_ids for channels in finished]),
        ("logprobs_content", [tokens_of(channels.choice) for channels in finished]),
    ):
        known = [len(found) for found in entries if found is not None]
        if due is not None and known and len(known) == len(entries):
            name = "output ids" if what == "output_ids" else "entries of logprobs"
            message = f"the answer has {sum(known)} {name} for {due} completion tokens"
            place = finished[-1].place(what) if what == "output_ids" else end_place(stream)
            yield expect(place, due, sum(known), message)


@check("choices-are-parsed-alone", _TAKEN_APART)
def _choices_are_parsed_alone(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that choices of one answer with equal text have equal channels."""
    finished = [(channels, _marked_text(stream, channels, target)) for channels in _finished(stream)]
    if len(finished) < 2:
        return
    for (ours, first), (theirs, second) in combinations(finished, 2):
        if first is None or second is None or first.text != second.text or not first.settled:
            continue
        if not (ours.choice.parsed or theirs.choice.parsed):
            continue
        source = f"and in choice {ours.choice.index}, which has the same text,"
        found = observe_differences(ours, theirs, source)
        yield from found
        if not found:
            yield expect(theirs.place("text"), written(ours), written(theirs), holds=True)


@compare("reasoning-tokens-equal-whole")
def _reasoning_tokens_equal_whole(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Check that a stream reports the same number of reasoning tokens as the whole answer."""
    ours, theirs = comparison.baseline, comparison.other
    if not _with_whole(comparison) or not (ended(ours) and ended(theirs)):
        return
    expected, actual = reasoning_tokens(ours), reasoning_tokens(theirs)
    if expected is None or actual is None or not _reasons(ours, theirs):
        return
    pairs: list[tuple[Choice, Choice]] = list(zip(ours.choices, theirs.choices, strict=False))
    yield expect(
        theirs.usage_place or end_place(theirs),
        expected,
        actual,
        f"reasoning_tokens is {actual} in the stream, but {expected} in the whole answer",
        related=(ours.usage_place or start_place(ours),),
        by_chance=expected != actual and any(map(goes_apart, pairs)),
    )


def _reasons(*streams: Stream) -> bool:
    return any(choice.reasoning for stream in streams for choice in stream.choices)


@check("reasoning-is-counted")
def _reasoning_is_counted(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that reasoning_tokens in the usage is above 0 if the answer has reasoning."""
    count = reasoning_tokens(stream)
    if count is not None and ended(stream) and _reasons(stream):
        place = stream.usage_place or end_place(stream)
        message = f"reasoning_tokens is {count}, but the answer has reasoning"
        yield expect(place, "more than 0", count, message, holds=count > 0)
