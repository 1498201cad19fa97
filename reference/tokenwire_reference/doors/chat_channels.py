"""Channels of a chat: parses the fields of a request about tools and reasoning, and splits the text of each
choice while it is generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire_reference.core.detokenizer import Detokenizer
from tokenwire_reference.core.request import FinishReason, Request
from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served
from tokenwire_reference.extras.channels.formats import REASONING, TOOL_CALLS, channel_format
from tokenwire_reference.extras.channels.parser import Channel, ChannelParser, Delta, Format, Message
from tokenwire_reference.extras.constraints import PLAIN, Channelled, calls_of


@dataclass(frozen=True)
class ChannelsAsked:
    """The settings of a chat request that concern the channels of the answer."""

    format: Format | None = None
    """The format of reasoning and tool calls in the text; None to treat all text as content."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The variables of the chat template besides the messages."""
    hides_reasoning: bool = False
    alone: bool = False
    """True to return at most one call."""
    constraint: Channelled = PLAIN


def read_channels(body: Mapping[str, Any], served: Served) -> ChannelsAsked:
    """Parse `tools`, `tool_choice`, `chat_template_kwargs` and similar fields. Raises RefusalError."""
    tools: Sequence[Mapping[str, Any]] = body.get("tools") or ()
    choice = body.get("tool_choice") or "auto"
    thinking = _thinking(body.get("chat_template_kwargs") or {}, body.get("reasoning_effort"))
    if body.get("stream_reasoning") is False:
        raise RefusalError(
            "stream_reasoning is false, but this server cannot hold back reasoning; leave it out"
        )
    wanted = _wanted(choice, tools)
    if tools:
        _refuse_promises(tools, served, demanded=wanted is not None)
    calls = bool(tools) and choice != "none"
    alone = body.get("parallel_tool_calls") is False
    strict = any(tool["function"].get("strict") for tool in tools)
    parser, budget = served.args.reasoning_parser, body.get("thinking_token_budget")
    if budget is not None and parser is None:
        raise RefusalError(
            "thinking_token_budget needs a server that knows the markers of reasoning; start it with "
            f"--reasoning-parser ({', '.join(REASONING)})",
            param="thinking_token_budget",
        )
    offered = {"tools": tools} if calls else {}
    return ChannelsAsked(
        format=None
        if served.tokenizer is None
        else channel_format(
            served.args.tool_call_parser if calls else None,
            served.args.reasoning_parser,
            {tool["function"]["name"]: _types(tool["function"]) for tool in tools},
            begins_thinking=thinking is not False,
            separate_reasoning=body.get("separate_reasoning") is not False,
        ),
        template=offered | ({} if thinking is None else {"enable_thinking": thinking}),
        hides_reasoning=body.get("include_reasoning") is False,
        alone=alone,
        constraint=Channelled(
            calls_of(wanted or tools, alone=alone, demanded=wanted is not None)
            if calls and (wanted or strict)
            else None,
            None if parser is None or thinking is False else REASONING[parser],
            budget,
        ),
    )


def _wanted(choice: Any, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return the tools from which the answer must call one; None if the request does not require a call."""
    match choice:
        case "auto" | "none":
            return None
        case "required":
            wanted = list(tools)
        case {"function": {"name": name}}:
            wanted = [tool for tool in tools if tool["function"]["name"] == name]
        case _:
            wanted = []
    if not wanted:
        raise RefusalError(
            f"tool_choice is {choice!r}; send auto, none, required or the name of one of the tools",
            param="tool_choice",
        )
    return wanted


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The values of the reasoning effort.

`none` switches reasoning off; the chat template interprets all other values.
"""


def _thinking(template_kwargs: Mapping[str, Any], effort: str | None) -> bool | None:
    """True if a request enables reasoning; None if the request leaves this open."""
    if effort is not None and effort not in EFFORTS:
        raise RefusalError(
            f"the reasoning effort is {effort!r}; send {', '.join(EFFORTS)}", param="reasoning_effort"
        )
    for name, value in template_kwargs.items():
        if name != "enable_thinking" or not isinstance(value, bool):
            raise RefusalError(
                f"chat_template_kwargs.{name} is {value!r}; the only variable is enable_thinking, with the "
                "value true or false",
                param="chat_template_kwargs",
            )
    if "enable_thinking" in template_kwargs:
        return bool(template_kwargs["enable_thinking"])
    return None if effort is None else effort != "none"


def _refuse_promises(tools: Sequence[Mapping[str, Any]], served: Served, *, demanded: bool) -> None:
    """Raise RefusalError for parts of a request with tools that the server cannot support."""
    if served.tokenizer is None:
        raise RefusalError("tools need a tokenizer and the server runs without one", param="tools")
    if served.args.tool_call_parser is None:
        raise RefusalError(
            "tools need a server that knows how its model calls them; start it with --tool-call-parser "
            f"({', '.join(TOOL_CALLS)})",
            param="tools",
        )
    if served.args.tool_call_parser != "hermes" and (
        demanded or any(tool["function"].get("strict") for tool in tools)
    ):
        raise RefusalError(
            "a tool_choice that demands a call, and strict, need calls in the form of hermes; this server "
            f"has --tool-call-parser {served.args.tool_call_parser}",
            param="tool_choice" if demanded else "tools",
        )


def _types(function: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the JSON types of each parameter of a function; empty for a parameter whose type the schema does
    not define.
    """
    match function.get("parameters"):
        case {"properties": {**properties}}:
            return {str(name): _named(schema) for name, schema in properties.items()}
        case _:
            return {}


def _named(schema: object) -> tuple[str, ...]:
    match schema:
        case {"type": str(single)}:
            return (single,)
        case {"type": [*several]}:
            return tuple(map(str, several))
        case _:
            return ()


class ChoiceChannels:
    """Splits the text of one choice into channels, as the text arrives."""

    def __init__(self, request: Request, channels: ChannelsAsked, tokenizer: Tokenizer | None) -> None:
        self.message = Message()
        self._hides_reasoning, self._alone = channels.hides_reasoning, channels.alone
        self._seams = request.seams
        self._parser = None if channels.format is None else ChannelParser(self._seams.format(channels.format))
        self._places = None if tokenizer is None or self._parser is None else _Places(tokenizer, request)

    def consume(self, emission: Emission) -> list[Delta]:
        """Process an emission, and return the new deltas of the choice.

        Ids and logprobs never wait for text.
        """
        if self._parser is None:
            deltas = [Delta(Channel.CONTENT, emission.text)] if emission.text else []
        else:
            assert self._places is not None, "text is parsed where there is a tokenizer"
            self._places.add(emission.output_ids)
            ended = emission.finish is not None
            deltas = self._parser.push(emission.text) + (self._parser.finish() if ended else [])
            deltas = self._seams.deltas(self._parser, deltas, ended=ended)
            if self._alone:
                deltas = [delta for delta in deltas if delta.call == 0]
            if self._hides_reasoning:
                deltas = [delta for delta in deltas if delta.channel is not Channel.REASONING]
        self.message.add(deltas)
        return deltas

    @property
    def reasoning_tokens(self) -> int:
        """The number of ids whose text is a part of the reasoning, without the markers of the reasoning."""
        if self._parser is None or self._places is None or self._parser.reasoning is None:
            return 0
        return self._places.within(*self._parser.reasoning)

    def finish_reason(self, finish: FinishReason) -> str:
        """Return the finish reason of the choice. It is tool_calls only if all calls are complete and
        valid.
        """
        return "tool_calls" if finish.type == "stop" and self.message.calls_tools else finish.type


class _Places:
    """The position of each id's text in the text of the choice."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self._detokenizer = Detokenizer.of(tokenizer, request.sampling, request.prompt_token_ids)
        self._ends: list[int] = []

    def add(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + len(self._detokenizer.push([token_id])))

    def within(self, begin: int, end: int | None) -> int:
        """Return the number of ids with text between two positions, including ids with the first bytes of a
        character that ends there.
        """
        spans = zip([0, *self._ends], self._ends, strict=False)
        return sum(
            (end is None or first < end) and (begin < last or begin <= first == last) for first, last in spans
        )
