"""Checks of the chapter on constraints: texts must satisfy the requested constraint, and tool calls the tool
rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.checks.about import ANY, about
from tokenwire.checks.channels import observe_arguments
from tokenwire.checks.check import Target, check_finished, check_rows
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.channels import CALLED, SPENT, Channels, piece_place, said_of, taken_apart
from tokenwire.checks.refusals import Refused, observe_refusal
from tokenwire.constraint import Constraint, UntoldError
from tokenwire.dialects.dialect import is_chat
from tokenwire.record import Choice, Place, Stream

_WHOLE = about(finished=True, ended=True)
_CHAT = about(finished=True, ended=True, chat=True)


def _check_words(
    place: Place, constraint: Constraint, *texts: str, cut: bool = False
) -> Iterator[Observation]:
    """Check that one of the texts satisfies a constraint, or is the beginning of a text that satisfies it.

    Texts that cannot be decided are skipped.
    """
    if not texts:
        yield left_out(place, "the sampled text is unknown, and the constraint may cover its markup")
        return
    what = "the beginning of a word" if cut else "a word"
    expected = f"{what} of {constraint.kind} {str(constraint.value)[:80]}"
    try:
        holds = any(constraint.admits(text, cut=cut) for text in texts)
    except UntoldError as error:
        yield left_out(place, f"undecided if the text satisfies the constraint: {error}")
        return
    message = f"{texts[0][-60:]!r} is not {what} of {constraint.wire_name}"
    yield expect(place, expected, texts[0], message, holds=holds)


def _texts(constraint: Constraint, choice: Choice, stream: Stream, target: Target) -> list[str]:
    """Return the content of a choice, and the whole sampled text if the constraint may cover markup.

    The result is empty if the sampled text is needed but unknown. If the endpoint sends no text, the ids are
    decoded.
    """
    if choice.text is None and not is_chat(stream):
        return [*_spelled(choice, stream, target)]
    content = choice.text or ""
    if constraint.kind not in ("regex", "grammar") or "<" not in constraint.value or not is_chat(stream):
        return [content]
    sampled = said_of(stream, choice, target.markup, target.detokenizer)
    return [] if sampled is None else [content, sampled.text]


def _spelled(choice: Choice, stream: Stream, target: Target) -> Iterator[str]:
    """Yield the text of a choice's ids including special tokens, first with and then without the last id."""
    ids = choice.output_ids
    if target.tokenizer is None or not ids or not all(type(token) is int for token in ids):
        return
    for part in () if taken_apart(stream, choice) else (ids, ids[:-1]):
        text = target.tokenizer.decode(tuple(part), skip_special_tokens=False) if part else ""
        if text is not None:
            yield text


def _constraint(choice: Choice, stream: Stream) -> Constraint | None:
    """Return the constraint on the text of a choice.

    None if the choice has tool calls, or if its text was not sampled under the constraint.
    """
    asked = stream.asked
    shows_more = choice.has_calls or asked.echo or not asked.skip_special_tokens
    return asked.constraints[0] if len(asked.constraints) == 1 and not shows_more else None


def _cut_by_its_request(choice: Choice, stream: Stream) -> bool:
    """True if a stop string, regex or id of the request may have ended a choice."""
    asked, finish = stream.asked.of(choice.index), choice.finish
    stops = (*asked.stop, *asked.stop_token_ids, *asked.stop_regex)
    return finish is not None and bool(stops) and finish.matched in (None, *stops)


def _words(choice: Choice, stream: Stream, target: Target, *, reasons: bool) -> Iterator[Observation]:
    constraint, finish = _constraint(choice, stream), choice.finish
    if constraint is None or finish is None or finish.type != "stop" or bool(choice.reasoning) != reasons:
        return
    texts, cut = _texts(constraint, choice, stream, target), _cut_by_its_request(choice, stream)
    yield from _check_words(choice.last_at("text"), constraint, *texts, cut=cut)
    spelled = [] if reasons or cut else [*_spelled(choice, stream, target)]
    if spelled and not any("<" in text for text in texts):
        yield from _check_words(choice.last_at("output_ids"), constraint, *spelled)


@check_finished("finished-text-is-a-word", _WHOLE)
def _finished_text_is_a_word(choice: Choice, stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a complete text satisfies its constraint."""
    yield from _words(choice, stream, target, reasons=False)


@check_finished("reasoning-keeps-the-constraint", _CHAT)
def _reasoning_keeps_the_constraint(choice: Choice, stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the text after reasoning satisfies the constraint."""
    yield from _words(choice, stream, target, reasons=True)


@check_finished("cut-text-begins-a-word", _WHOLE)
def _cut_text_begins_a_word(choice: Choice, stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a text cut off by the budget is the beginning of a text that satisfies its constraint."""
    constraint, finish, rule = _constraint(choice, stream), choice.finish, stream.asked.tools
    if constraint is None or finish is None or finish.type != SPENT:
        return
    if rule is None or rule.demand != "auto":  # under "auto" the text may be an incomplete tool call
        texts = _texts(constraint, choice, stream, target)
        yield from _check_words(choice.last_at("text"), constraint, *texts, cut=True)


def _bad_constraint(stream: Stream, _target: Target) -> str:
    asked = stream.asked
    faults = [constraint.fault for constraint in asked.constraints]
    faults += asked.tools.faults if asked.tools else ()
    fault = next(filter(None, faults), "")
    return f"a request in which {fault} was" if fault else ""


def _clashing_constraints(stream: Stream, _target: Target) -> str:
    asked = stream.asked
    names = [constraint.wire_name for constraint in asked.constraints]
    if names and asked.tools is not None and asked.tools.demand == "required":
        names.append("tool_choice")
    return f"a request with both {' and '.join(names)} for one text was" if len(names) > 1 else ""


check_rows(
    observe_refusal,
    Refused("bad-constraints-refused", ANY, _bad_constraint),
    Refused("clashing-constraints-refused", ANY, _clashing_constraints),
)


def _calling(choice: Choice, stream: Stream) -> Channels | None:
    """Return the channels of a choice if it is complete and has tool calls."""
    whole = choice.finish is not None and choice.finish.type in {CALLED, "stop"}
    return Channels.of(stream, choice) if whole and choice.has_calls and not stream.asked.stop else None


@check_finished("one-call-at-most", _CHAT)
def _one_call_at_most(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that an answer has at most one tool call if the request disables parallel calls."""
    rule = stream.asked.tools
    if rule is not None and rule.alone and choice.has_calls:
        names = [call.name for call in choice.calls]
        message = f"the request allows at most one call, and the choice calls {names}"
        yield expect(choice.last_at("calls"), "one call", names, message, holds=len(names) == 1)


@check_finished("demanded-arguments-are-an-object", _CHAT)
def _demanded_arguments_are_an_object(
    choice: Choice, stream: Stream, _target: Target
) -> Iterator[Observation]:
    """Check that the arguments of a forced call are an object."""
    rule, channels = stream.asked.tools, _calling(choice, stream)
    if rule is None or rule.demand != "required" or channels is None:
        return
    for call in channels.calls:
        message = f"the arguments of the required call {call.name!r} are {call.arguments[:60]!r}"
        yield observe_arguments(call, message)


@check_finished("strict-arguments-fit", _CHAT)
def _strict_arguments_fit(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the arguments of a call to a strict tool fit the tool's schema."""
    rule, channels = stream.asked.tools, _calling(choice, stream)
    for call in channels.calls if rule is not None and channels is not None else ():
        schema = rule.parameters.get(call.name) if rule is not None and call.name in rule.strict else None
        if schema is not None:
            yield from _check_words(piece_place(*call.pieces[-1]), schema, call.arguments)
