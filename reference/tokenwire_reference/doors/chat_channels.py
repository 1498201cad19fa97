"""Channels of a chat: parses a request's tools and reasoning, and splits each choice as it is generated."""

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
    """Settings of a chat request for the channels of its answer."""

    format: Format | None = None
    """None to treat all text as content."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The variables of the chat template besides the messages."""
    hides_reasoning: bool = False
    alone: bool = False
    """True to return at most one call."""
    constraint: Channelled = PLAIN


def read_channels(body: Mapping[str, Any], served: Served) -> ChannelsAsked:
    """Read `tools`, `tool_choice`, `chat_template_kwargs` and their like. Raises RefusalError."""
    tools: Sequence[Mapping[str, Any]] = body.get("tools") or ()
    choice = body.get("tool_choice") or "auto"
    thinking = _thinking(body.get("chat_template_kwargs") or {}, body.get("reasoning_effort"))
    if body.get("stream_reasoning") is False:
        raise RefusalError("stream_reasoning is false, and reasoning is not held back here; leave it out")
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
    """Return the tools of a call that the request requires; None if it requires none."""
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
"""The efforts of reasoning. `none` switches it off; the others are left to the model."""


def _thinking(template_kwargs: Mapping[str, Any], effort: str | None) -> bool | None:
    """True if a request enables reasoning; None if it does not set it."""
    if effort is not None and effort not in EFFORTS:
        raise RefusalError(
            f"the reasoning effort is {effort!r}; send {', '.join(EFFORTS)}", param="reasoning_effort"
        )
    for name, value in template_kwargs.items():
        if name != "enable_thinking" or not isinstance(value, bool):
            raise RefusalError(
                f"chat_template_kwargs.{name} is {value!r}; there is enable_thinking, true or false, and "
                "nothing else",
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
    """Return the JSON types of each parameter of a function; empty if its schema does not define them."""
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
    """The text of one choice so far, in channels."""

    def __init__(self, request: Request, channels: ChannelsAsked, tokenizer: Tokenizer | None) -> None:
        self.message = Message()
        self._hides_reasoning, self._alone = channels.hides_reasoning, channels.alone
        self._seams = request.seams
        self._parser = None if channels.format is None else ChannelParser(self._seams.format(channels.format))
        self._places = None if tokenizer is None or self._parser is None else _Places(tokenizer, request)

    def consume(self, emission: Emission) -> list[Delta]:
        """Return the new deltas of the choice. Ids and logprobs never wait for text."""
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
        """The number of ids with a part of the reasoning, without its markers."""
        if self._parser is None or self._places is None or self._parser.reasoning is None:
            return 0
        return self._places.within(*self._parser.reasoning)

    def finish_reason(self, finish: FinishReason) -> str:
        """Return the finish reason of the choice. It is tool_calls only if all calls are complete and
        valid.
        """
        return "tool_calls" if finish.type == "stop" and self.message.calls_tools else finish.type


class _Places:
    """The beginning and end of each id's text."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self._detokenizer = Detokenizer.of(tokenizer, request.sampling, request.prompt_token_ids)
        self._ends: list[int] = []

    def add(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + len(self._detokenizer.push([token_id])))

    def within(self, begin: int, end: int | None) -> int:
        """Return the number of ids with text between two places, or with the beginning of a character that
        ends there.
        """
        spans = zip([0, *self._ends], self._ends, strict=False)
        return sum(
            (end is None or first < end) and (begin < last or begin <= first == last) for first, last in spans
        )
