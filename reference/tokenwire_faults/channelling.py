"""Faults of the parsers that split the text of a chat into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, Object, calls_of, choices_of, messages_of
from tokenwire_faults.fault import Fault
from tokenwire_reference.extras.channels.formats import (
    END_THINK,
    END_TOOL_CALL,
    THINK,
    TOOL_CALL,
    channel_format,
    hermes,
)
from tokenwire_reference.extras.channels.parser import (
    Call,
    Channel,
    ChannelParser,
    Delta,
    Format,
    NotACallError,
    Parse,
)

Deltas = Iterator[Delta]


@act_at("deltas")
def _text_before_a_call_is_lost(deltas: list[Delta]) -> Deltas:
    for place, delta in enumerate(deltas):
        if delta.channel is not Channel.CONTENT or not any(later.name for later in deltas[place:]):
            yield delta


@act_at("deltas")
def _text_that_may_begin_a_marker_is_lost(ended: bool, deltas: list[Delta]) -> Deltas:
    for delta in deltas:
        begun = [size for size in range(1, len(TOOL_CALL)) if delta.text.endswith(TOOL_CALL[:size])]
        waits = ended and delta is deltas[-1] and delta.channel is Channel.CONTENT and begun
        yield replace(delta, text=delta.text[: -max(begun)]) if waits else delta


@act_at("deltas")
def _marker_leaks_between_calls(deltas: list[Delta]) -> Deltas:
    for delta in deltas:
        if delta.name is not None and delta.call > 0:
            yield Delta(Channel.CONTENT, f"\n{END_TOOL_CALL}\n")
        yield delta


def _place(delta: Delta) -> tuple[Channel, int]:
    return delta.channel, delta.call


@act_at("deltas")
def _line_break_behind_a_call_is_content(fault: Fault, ended: bool, deltas: list[Delta]) -> Deltas:
    leak = Delta(Channel.CONTENT, "\n")
    for delta in deltas:
        last: Delta | None = fault.memory.get("last")
        if last is not None and last.channel is Channel.CALL and _place(last) != _place(delta):
            yield leak
        fault.memory["last"] = delta
        yield delta
    last = fault.memory.get("last")
    if ended and last is not None and last.channel is Channel.CALL:
        yield leak


@act_at("format")
def _reasoning_never_ends(usual: Format) -> Format:
    return partial(_thinking, usual, ())


@act_at("format")
def _call_within_reasoning_is_made(usual: Format) -> Format:
    return partial(_thinking, usual, (END_THINK, TOOL_CALL))


def _thinking(usual: Format, markers: tuple[str, ...], parser: ChannelParser) -> Parse[None]:
    """Parse reasoning up to one of the given markers. Answers without these markers are parsed correctly."""
    try:
        yield from parser.skip_space()
        yield from parser.expect(THINK)
    except NotACallError:
        yield from parser.read_again(usual(parser))
        return
    yield from parser.skip_space()
    found = yield from parser.text_until(markers, partial(parser.give, Channel.REASONING))
    if found == TOOL_CALL:
        yield from parser.read_again(hermes(parser, {}))
    elif found:
        yield from parser.skip_space()
        yield from hermes(parser, {})


@act_at("deltas")
def _samples_share_a_parser(fault: Fault, parser: ChannelParser, deltas: list[Delta]) -> Deltas:
    parsers: dict[int, ChannelParser] = fault.memory.setdefault("parsers", {})
    parsers[id(parser)] = parser
    others = [known.reasoning for known in parsers.values() if known is not parser]
    reasoned = any(place is not None and place[1] is not None for place in others)
    for delta in deltas:
        moved = reasoned and delta.channel is Channel.REASONING
        yield replace(delta, channel=Channel.CONTENT) if moved else delta


@act_at("deltas")
def _unmatched_stop_moves_text(fault: Fault, deltas: list[Delta]) -> Deltas:
    memory, stop = fault.memory, fault.request.get("stop") or ()
    longest = max(map(len, [stop] if isinstance(stop, str) else stop), default=1)
    for delta in deltas:
        latest: Delta | None = memory.get("latest")
        if latest is not None and _place(latest) != _place(delta):
            memory |= {"left": latest, "late": longest - 1}
        memory["latest"] = delta
        moved = delta.text[: memory.get("late", 0)]
        memory["late"] = memory.get("late", 0) - len(moved)
        if delta.name is not None or delta.text != moved:
            yield replace(delta, text=delta.text[len(moved) :])
        if moved:
            yield replace(memory["left"], text=moved, name=None)


@act_at("deltas")
def _content_comes_out_of_order(fault: Fault, ended: bool, deltas: list[Delta]) -> Deltas:
    memory = fault.memory

    def late() -> Deltas:
        if "first" in memory and "sent" not in memory:
            memory["sent"] = True
            yield memory["first"]

    for delta in deltas:
        if delta.channel is not Channel.CONTENT or "sent" in memory:
            yield delta
        elif "first" not in memory:
            memory["first"] = replace(delta, text=delta.text[:1])
            if delta.text[1:]:
                yield replace(delta, text=delta.text[1:])
                yield from late()
        else:
            yield delta
            yield from late()
    if ended:
        yield from late()


@act_at("deltas")
def _arguments_lose_their_end(fault: Fault, deltas: list[Delta]) -> Deltas:
    calls: dict[int, Call] = fault.memory.setdefault("calls", {})
    for delta in deltas:
        text = delta.text
        if delta.channel is Channel.CALL:
            call = calls.setdefault(delta.call, Call(delta.name or ""))
            call.arguments += text
            if call.whole:
                fault.memory["cut"] = True
                text = text[:-2]
        if text or delta.name is not None:
            yield replace(delta, text=text)


@act_at("deltas")
def _arguments_lose_other_scripts(deltas: list[Delta]) -> Deltas:
    for delta in deltas:
        text = delta.text.encode("ascii", "ignore").decode() if delta.channel is Channel.CALL else delta.text
        if text or delta.name is not None:
            yield replace(delta, text=text)


@act_at("event", "arguments-lose-their-end")
def _claim_a_call(fault: Fault, event: Object) -> None:
    for choice in choices_of(event) if "cut" in fault.memory else ():
        if choice.get("finish_reason") == "stop":
            choice["finish_reason"] = "tool_calls"


@act_at("deltas")
def _end_of_reasoning_is_lost(fault: Fault, deltas: list[Delta]) -> Deltas:
    for delta in deltas:
        if delta.channel is not Channel.REASONING:
            yield delta
            continue
        if "waits" in fault.memory:
            yield fault.memory["waits"]
        fault.memory["waits"] = delta


@act_at("deltas")
def _cut_call_is_closed(fault: Fault, ended: bool, deltas: list[Delta]) -> Deltas:
    calls: dict[int, Call] = fault.memory.setdefault("calls", {})
    for delta in deltas:
        if delta.channel is Channel.CALL:
            calls.setdefault(delta.call, Call("")).arguments += delta.text
        yield delta
    for index, call in calls.items() if ended else ():
        if not call.whole:
            yield Delta(Channel.CALL, _closers(call.arguments), index)


def _closers(arguments: str) -> str:
    """Return the quotes and brackets that complete truncated arguments to JSON."""
    closers, string, escaped = "", False, False
    for character in arguments:
        if string:
            string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            string = True
        elif character in "{[":
            closers = ("}" if character == "{" else "]") + closers
        elif character in "}]":
            closers = closers[1:]
    return '"' * string + closers


@act_at("deltas")
def _empty_arguments_are_no_json(fault: Fault, deltas: list[Delta]) -> Deltas:
    for delta in deltas:
        text = delta.text
        if delta.channel is Channel.CALL:
            before = "" if delta.name is not None else fault.memory.get("open", "")
            begun = fault.memory["open"] = before + text
            # The opening brace is held back until the next character, because `{}` is dropped.
            text = {"{": "", "{}": ""}.get(begun, begun if before == "{" else text)
        if text or delta.name is not None:
            yield replace(delta, text=text)


def _offers_tools(fault: Fault) -> bool:
    return bool(fault.request.get("tools")) and fault.request.get("tool_choice") != "none"


@act_at("format")
def _text_vanishes_without_tools(fault: Fault, usual: Format) -> Format:
    return usual if _offers_tools(fault) else (channel_format("hermes", "qwen3", {}) or usual)


@act_at("deltas", "text-vanishes-without-tools")
def _give_no_call(fault: Fault, deltas: list[Delta]) -> Deltas:
    for delta in deltas:
        if _offers_tools(fault) or delta.channel is not Channel.CALL:
            yield delta


@act_at("events")
def _ids_of_markers_are_lost(event: Object) -> Iterable[Object]:
    silent = any(
        not any(choice.get("delta", {}).values()) and choice.get("finish_reason") is None
        for choice in choices_of(event)
    )
    return [] if silent else [event]


@act_at("answers", "tool-calls-hide-length", "tool-calls-hide-the-stop")
def _claim_calls(fault: Fault, answer: Json) -> None:
    hidden = "length" if fault.known.name == "tool-calls-hide-length" else "stop"
    for choice, message in zip(choices_of(answer), messages_of(answer), strict=True):
        if message.get("tool_calls"):
            fault.memory["calling"] = True
        if "calling" in fault.memory and choice.get("finish_reason") == hidden:
            choice["finish_reason"] = "tool_calls"


@act_at("answers")
def _tool_calls_without_a_call(answer: Json) -> None:
    for choice in choices_of(answer):
        if choice.get("finish_reason") == "stop" and {"message", "delta"} & choice.keys():
            choice["finish_reason"] = "tool_calls"


@act_at("answers")
def _call_ids_change(fault: Fault, answer: Json) -> None:
    for call in calls_of(answer):
        fault.memory["pieces"] = fault.memory.get("pieces", 0) + 1
        call["id"] = f"call_{fault.memory['pieces']}"


@act_at("event")
def _call_opens_without_a_name(fault: Fault, event: Object) -> None:
    for call in calls_of(event):
        name, function = fault.memory.get("name"), call["function"]
        fault.memory["name"] = function.get("name")
        function["name"] = name


@act_at("event")
def _later_pieces_have_an_empty_name(event: Object) -> None:
    for call in calls_of(event):
        if not call.get("id"):
            call["id"] = call["function"]["name"] = ""


@act_at("deltas")
def _reasoning_comes_last(fault: Fault, parser: ChannelParser, ended: bool, deltas: list[Delta]) -> Deltas:
    late: list[Delta] = fault.memory.setdefault(f"late {id(parser)}", [])
    late += [delta for delta in deltas if delta.channel is Channel.REASONING]
    yield from (delta for delta in deltas if delta.channel is not Channel.REASONING)
    if ended:
        yield from late
