"""Faults of the parsers that take the text of a chat apart: reasoning, content, tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tokenwire_faults.answer_shape import choices_of
from tokenwire_faults.catalogue import EVERYWHERE, STREAMED, fault
from tokenwire_faults.fault import AnswerFault, Fault, Json
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

PARSERS = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--model", "builtin:parrot")
"""The parrot says markers that it is told to say."""


class _InStreams(Fault):
    """A fault that whole answers do not have."""

    def deltas(self, parser: ChannelParser, deltas: list[Delta], *, ended: bool) -> list[Delta]:
        return list(self.streamed(parser, deltas, ended)) if self.request.get("stream") else deltas

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        """The deltas of one emission of a stream."""
        del parser, ended
        yield from deltas


@fault(
    "text-before-a-call-is-lost",
    "X27",
    upstream=("sgl-project/sglang issue #31915", "sgl-project/sglang issue #35564"),
    shows_in=STREAMED,
    server=(*PARSERS, "--api-dialect", "vllm"),
)
class TextBeforeACallIsLost(_InStreams):
    """Content is lost where a call begins in the same step."""

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for place, delta in enumerate(deltas):
            if delta.channel is not Channel.CONTENT or not any(later.name for later in deltas[place:]):
                yield delta


@fault(
    "text-that-may-begin-a-marker-is-lost",
    "X27",
    upstream=("sgl-project/sglang PR #36129",),
    shows_in=STREAMED,
    server=PARSERS,
)
class TextThatMayBeginAMarkerIsLost(_InStreams):
    """What waits at the end, because it may begin a marker, is not given."""

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            begun = [size for size in range(1, len(TOOL_CALL)) if delta.text.endswith(TOOL_CALL[:size])]
            waits = ended and delta is deltas[-1] and delta.channel is Channel.CONTENT and begun
            yield replace(delta, text=delta.text[: -max(begun)]) if waits else delta


@fault(
    "marker-leaks-between-calls",
    "X27",
    upstream=("sgl-project/sglang issue #24293", "sgl-project/sglang PR #29410"),
    shows_in=STREAMED,
    server=PARSERS,
)
class MarkerLeaksBetweenCalls(_InStreams):
    """The marker that closes a call is content where another call follows."""

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            if delta.name is not None and delta.call > 0:
                yield Delta(Channel.CONTENT, f"\n{END_TOOL_CALL}\n")
            yield delta


@fault(
    "line-break-behind-a-call-is-content",
    "X27",
    upstream=("sgl-project/sglang PR #29410",),
    shows_in=STREAMED,
    server=PARSERS,
)
class LineBreakBehindACallIsContent(_InStreams):
    """The white space of the marker that closes a call is content."""

    _last: Delta | None = None

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            if self._last is not None and _place(self._last) != _place(delta):
                yield from self._leaks()
            self._last = delta
            yield delta
        if ended:
            yield from self._leaks()

    def _leaks(self) -> Iterator[Delta]:
        if self._last is not None and self._last.channel is Channel.CALL:
            yield Delta(Channel.CONTENT, "\n")


@fault(
    "reasoning-never-ends",
    "X27",
    upstream=("vllm-project/vllm issue #55195",),
    shows_in=STREAMED,
    server=PARSERS,
)
class ReasoningNeverEnds(Fault):
    """In streams the marker behind the reasoning is not found: all that follows is reasoning, markers too."""

    def format(self, format: Format) -> Format:  # noqa: A002
        return partial(_thinking, format, ()) if self.request.get("stream") else format


@fault(
    "call-within-reasoning-is-made",
    "X27",
    shows_in=STREAMED,
    server=PARSERS,
)
class CallWithinReasoningIsMade(Fault):
    """In streams a call ends the reasoning that it stands in, and is made."""

    def format(self, format: Format) -> Format:  # noqa: A002
        return partial(_thinking, format, (END_THINK, TOOL_CALL)) if self.request.get("stream") else format


def _thinking(usual: Format, markers: tuple[str, ...], parser: ChannelParser) -> Parse[None]:
    """Reasoning up to one of the markers; answers without any are read as usual."""
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


@fault(
    "samples-share-a-parser",
    "X19",
    shows_in=EVERYWHERE,
    server=PARSERS,
)
class SamplesShareAParser(Fault):
    """The samples of a request share what the parser knows: where one has ended its reasoning, all have."""

    def __init__(self) -> None:
        self._parsers: list[ChannelParser] = []

    def deltas(self, parser: ChannelParser, deltas: list[Delta], *, ended: bool) -> list[Delta]:
        if not any(parser is known for known in self._parsers):
            self._parsers.append(parser)
        others = [known.reasoning for known in self._parsers if known is not parser]
        if any(place is not None and place[1] is not None for place in others):
            return [replace(delta, channel=_no_reasoning(delta.channel)) for delta in deltas]
        return deltas


def _no_reasoning(channel: Channel) -> Channel:
    return Channel.CONTENT if channel is Channel.REASONING else channel


@fault(
    "unmatched-stop-moves-text",
    "X27",
    upstream=("vllm-project/vllm issue #51641", "vllm-project/vllm PR #51669"),
    shows_in=STREAMED,
    server=PARSERS,
)
class UnmatchedStopMovesText(_InStreams):
    """Text that waits because of a stop string is given to the channel that its ids have left."""

    _latest: Delta | None = None
    _left: Delta | None = None
    _late = 0

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        stop = self.request.get("stop") or ()
        longest = max(map(len, [stop] if isinstance(stop, str) else stop), default=1)
        for delta in deltas:
            if self._latest is not None and _place(self._latest) != _place(delta):
                self._left, self._late = self._latest, longest - 1
            self._latest = delta
            moved = delta.text[: self._late]
            self._late -= len(moved)
            if delta.name is not None or delta.text != moved:
                yield replace(delta, text=delta.text[len(moved) :])
            if moved and self._left is not None:
                yield replace(self._left, text=moved, name=None)


def _place(delta: Delta) -> tuple[Channel, int]:
    return delta.channel, delta.call


@fault(
    "content-comes-out-of-order",
    "X27",
    shows_in=STREAMED,
    server=PARSERS,
)
class ContentComesOutOfOrder(_InStreams):
    """The first piece of content is sent behind the second."""

    _first: Delta | None = None
    _sent = False

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            if delta.channel is not Channel.CONTENT or self._sent:
                yield delta
            elif self._first is None:
                self._first = replace(delta, text=delta.text[:1])
                if delta.text[1:]:
                    yield replace(delta, text=delta.text[1:])
                    yield from self._late()
            else:
                yield delta
                yield from self._late()
        if ended:
            yield from self._late()

    def _late(self) -> Iterator[Delta]:
        if self._first is not None and not self._sent:
            self._sent = True
            yield self._first


@fault(
    "arguments-lose-their-end",
    "X27",
    upstream=("vllm-project/vllm issue #31501",),
    shows_in=STREAMED,
    server=PARSERS,
)
class ArgumentsLoseTheirEnd(_InStreams):
    """The last piece of the arguments of a call is not sent, and the finish is `tool_calls`."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._cut = 0

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            text = delta.text
            if delta.channel is Channel.CALL:
                call = self._calls.setdefault(delta.call, Call(delta.name or ""))
                call.arguments += text
                if call.whole:
                    self._cut += 1
                    text = text[:-2]
            if text or delta.name is not None:
                yield replace(delta, text=text)

    def event(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        for choice in choices_of(event) if self._cut else ():
            if choice.get("finish_reason") == "stop":
                choice["finish_reason"] = "tool_calls"
        return [event]


@fault(
    "end-of-reasoning-is-lost",
    "X27",
    upstream=("vllm-project/vllm issue #41691",),
    shows_in=STREAMED,
    server=PARSERS,
)
class EndOfReasoningIsLost(_InStreams):
    """The last piece of the reasoning is not sent."""

    _waits: Delta | None = None

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            if delta.channel is not Channel.REASONING:
                yield delta
                continue
            if self._waits is not None:
                yield self._waits
            self._waits = delta


@fault(
    "cut-call-is-closed",
    "X27",
    upstream=("sgl-project/sglang issue #31915", "sgl-project/sglang issue #30480"),
    shows_in=STREAMED,
    server=PARSERS,
)
class CutCallIsClosed(_InStreams):
    """The arguments of a call that was cut get quotes and braces that the model did not write."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            if delta.channel is Channel.CALL:
                self._calls.setdefault(delta.call, Call("")).arguments += delta.text
            yield delta
        for index, call in self._calls.items() if ended else ():
            if not call.whole:
                yield Delta(Channel.CALL, _closers(call.arguments), index)


def _closers(arguments: str) -> str:
    """What makes cut arguments JSON, as far as quotes and brackets do."""
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


@fault(
    "empty-arguments-are-no-json",
    "X27",
    shows_in=STREAMED,
    server=PARSERS,
)
class EmptyArgumentsAreNoJson(_InStreams):
    """A call without arguments has an empty string for them in streams, and `{}` in whole answers."""

    _open = ""

    def streamed(self, parser: ChannelParser, deltas: list[Delta], ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            text = delta.text
            if delta.channel is Channel.CALL:
                before = "" if delta.name is not None else self._open
                self._open = before + text
                # A brace waits for what follows it.
                text = {"{": "", "{}": ""}.get(self._open, self._open if before == "{" else text)
            if text or delta.name is not None:
                yield replace(delta, text=text)


@fault(
    "text-vanishes-without-tools",
    "X27",
    upstream=("vllm-project/vllm issue #55080", "vllm-project/vllm PR #55089"),
    shows_in=EVERYWHERE,
    server=PARSERS,
)
class TextVanishesWithoutTools(Fault):
    """Where no tools are offered, calls are parsed off and given nowhere."""

    @property
    def _offers(self) -> bool:
        return bool(self.request.get("tools")) and self.request.get("tool_choice") != "none"

    def format(self, format: Format) -> Format:  # noqa: A002
        return format if self._offers else (channel_format("hermes", "qwen3", {}) or format)

    def deltas(self, parser: ChannelParser, deltas: list[Delta], *, ended: bool) -> list[Delta]:
        return [delta for delta in deltas if self._offers or delta.channel is not Channel.CALL]


@fault(
    "ids-of-markers-are-lost",
    "X27",
    upstream=("vllm-project/vllm PR #31135", "vllm-project/vllm issue #32152"),
    shows_in=STREAMED,
    server=(*PARSERS, "--api-dialect", "vllm"),
)
class IdsOfMarkersAreLost(Fault):
    """A chunk is sent only if it shows something: the ids and logprobs of markers are in none."""

    def event(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        silent = [
            choice
            for choice in choices_of(event)
            if not any(choice.get("delta", {}).values()) and choice.get("finish_reason") is None
        ]
        return [] if silent else [event]


class _OfChoices(AnswerFault):
    """A fault of the choices of chat answers, whole and streamed."""

    def change(self, choice: dict[str, Any], message: dict[str, Any]) -> None:
        """Change one choice, and what it says."""

    def rewrite(self, answer: Json) -> None:
        for choice in choices_of(answer):
            self.change(choice, choice.get("delta") or choice.get("message") or {})


@fault(
    "tool-calls-hide-length",
    "X14",
    upstream=("vllm-project/vllm issue #53269", "vllm-project/vllm issue #47137"),
    shows_in=EVERYWHERE,
    server=PARSERS,
)
class ToolCallsHideLength(_OfChoices):
    """An answer that calls a tool ends with `tool_calls`, also if its budget cut it."""

    _calling = False

    def change(self, choice: dict[str, Any], message: dict[str, Any]) -> None:
        self._calling |= bool(message.get("tool_calls"))
        if self._calling and choice.get("finish_reason") == "length":
            choice["finish_reason"] = "tool_calls"


@fault(
    "call-ids-change",
    "X20",
    shows_in=STREAMED,
    server=PARSERS,
)
class CallIdsChange(_OfChoices):
    """Each piece of a call has an id of its own."""

    _pieces = 0

    def change(self, choice: dict[str, Any], message: dict[str, Any]) -> None:
        for call in message.get("tool_calls") or ():
            self._pieces += 1
            call["id"] = f"call_{self._pieces}"


@fault(
    "call-ids-repeat",
    "X20",
    upstream=("vllm-project/vllm PR #57326",),
    shows_in=EVERYWHERE,
    server=PARSERS,
)
class CallIdsRepeat(_OfChoices):
    """All calls of an answer have one id."""

    def change(self, choice: dict[str, Any], message: dict[str, Any]) -> None:
        for call in message.get("tool_calls") or ():
            if call.get("id") is not None:
                call["id"] = "call_0"


@fault(
    "call-opens-without-a-name",
    "X07",
    shows_in=STREAMED,
    server=PARSERS,
)
class CallOpensWithoutAName(_OfChoices):
    """The name of a call comes with the first piece of its arguments, behind the piece that opens it."""

    _name: str | None = None

    def change(self, choice: dict[str, Any], message: dict[str, Any]) -> None:
        if "delta" not in choice:
            return
        for call in message.get("tool_calls") or ():
            name, function = self._name, call["function"]
            self._name = function.get("name")
            function["name"] = name


@fault(
    "calls-share-an-index",
    "X05",
    shows_in=STREAMED,
    server=PARSERS,
)
class CallsShareAnIndex(_OfChoices):
    """Every call of a stream has the index 0: clients join them to one."""

    def change(self, choice: dict[str, Any], message: dict[str, Any]) -> None:
        for call in (message.get("tool_calls") or ()) if "delta" in choice else ():
            call["index"] = 0


class _OfReasoningTokens(Fault):
    """A fault of the number of tokens that reasoned."""

    def count(self, reasoning_tokens: int) -> int:
        """What is told instead."""
        return reasoning_tokens

    def _told(self, answer: Json) -> None:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        for place in (usage, (usage or {}).get("completion_tokens_details")):
            if place and place.get("reasoning_tokens"):
                place["reasoning_tokens"] = self.count(place["reasoning_tokens"])

    def event(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        self._told(event)
        return [event]


@fault(
    "reasoning-tokens-are-zero",
    "X17",
    shows_in=EVERYWHERE,
    server=PARSERS,
)
class ReasoningTokensAreZero(_OfReasoningTokens):
    """Usage counts no token of the reasoning that the answer shows."""

    def count(self, reasoning_tokens: int) -> int:
        return 0

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        self._told(answer)
        return status, answer


@fault(
    "reasoning-tokens-lag-in-streams",
    "X17",
    shows_in=STREAMED,
    server=PARSERS,
)
class ReasoningTokensLagInStreams(_OfReasoningTokens):
    """The usage of a stream counts fewer tokens of reasoning than that of the whole answer."""

    def count(self, reasoning_tokens: int) -> int:
        return reasoning_tokens - 1


@fault(
    "call-indexes-skip",
    "X05",
    shows_in=EVERYWHERE,
    server=PARSERS,
)
class CallIndexesSkip(_OfChoices):
    """The calls of an answer have every other index."""

    def change(self, choice: dict[str, Any], message: dict[str, Any]) -> None:
        for call in message.get("tool_calls") or ():
            call["index"] *= 2
