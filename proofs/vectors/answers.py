"""The base answers, token by token, independent of any endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, groupby, zip_longest
from typing import Any

TEXT, REASONING = "text", "reasoning"
PROMPT = (34, 35, 36, 37, 38)
STOP_ID = 2
"""This id ends a choice and has no text."""
_FIRST_ID = 300


@dataclass(frozen=True)
class Token:
    """One token, the channel of its text, and the text that it completes."""

    id: int
    text: str
    channel: str | int
    """`TEXT`, `REASONING`, or the number of a tool call."""

    @property
    def logprob(self) -> float:
        """A number that differs from those of nearby tokens."""
        return -(self.id % 97) / 64 - 0.125


@dataclass(frozen=True)
class Output:
    """One choice of an answer."""

    tokens: tuple[Token, ...]
    finish: str = "stop"
    matched: str | None = None
    """The stop string that ended the choice."""
    calls: tuple[str, ...] = ()
    """The names of the functions that the choice calls."""
    failed: bool = False
    """True if the choice ends with an error instead of a finish reason."""

    def joined(self, channel: str | int) -> str:
        return "".join(token.text for token in self.tokens if token.channel == channel)


@dataclass(frozen=True)
class Answer:
    """A base answer: its choices, and the sentence for clients that it tests."""

    name: str
    comment: str
    sentence: str
    choices: tuple[Output, ...]
    asks: Mapping[str, Any] = field(default_factory=dict)
    """Other requested outputs: `logprobs`, `customized`."""
    doors: frozenset[str] | None = None
    """The endpoints that can express the answer; None for all."""

    @property
    def size(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)

    @property
    def failed(self) -> bool:
        return any(choice.failed for choice in self.choices)


def call_id(choice: int, call: int) -> str:
    return f"call_{choice}{call}"


def _output(
    *,
    reasoning: str = "",
    text: str = "",
    calls: tuple[tuple[str, str], ...] = (),
    first: int = 0,
    **end: Any,
) -> Output:
    """Return a choice from the texts of its channels, in which a bar separates tokens."""
    ids = count(_FIRST_ID + first)

    def tokens(pieces: str, channel: str | int) -> Iterator[Token]:
        yield from (Token(next(ids), piece, channel) for piece in pieces.split("|") if pieces)

    listed = [*tokens(reasoning, REASONING), *tokens(text, TEXT)]
    for number, (_, arguments) in enumerate(calls):
        listed += tokens(arguments, number)
    end = {"finish": "tool_calls" if calls else "stop", **end}
    if end["finish"] == "stop" and not end.get("matched") and not end.get("failed"):
        listed.append(Token(STOP_ID, "", TEXT))
    return Output(tuple(listed), calls=tuple(name for name, _ in calls), **end)


GENERATE = frozenset({"sglang-generate-cumulative", "sglang-generate-incremental"})
CHAT = frozenset({"sglang-chat", "vllm-chat", "openai-chat"})
ITEMS = frozenset({"openai-responses", "anthropic-messages"})
_SIGNED = frozenset({"anthropic-messages"})
COMPLETIONS = frozenset({"openai-completions"})
DOORS = (*sorted(GENERATE), *sorted(CHAT), *COMPLETIONS, *sorted(ITEMS))
_PARSED = CHAT | ITEMS
_SEVERAL = GENERATE | CHAT | COMPLETIONS
_WORDS = "Tok|ens| come| in| pieces|,| of| any| size|."
_WEATHER = ("get_weather", '{"ci|ty": "Par|is"|}')
_TIME = ("get_time", '{"zone"|: "CE|T"}')
_LARGE_ID = 151_000
"""An id of more than 16 bits, as in the vocabularies of most models."""


def _by_turns(output: Output) -> Output:
    """Return an output whose channels alternate token by token."""
    channels = [
        [token for token in output.tokens if token.channel == channel]
        for channel in dict.fromkeys(token.channel for token in output.tokens)
    ]
    turns = (token for turn in zip_longest(*channels) for token in turn if token is not None)
    return replace(output, tokens=tuple(turns))


ANSWERS = (
    Answer(
        "length",
        "A short text that its budget ended: the finish is beside the last of it",
        "every-delta-is-kept",
        (_output(text=_WORDS, finish="length"),),
    ),
    Answer(
        "text", "A short text, ended by a token without text", "every-delta-is-kept", (_output(text=_WORDS),)
    ),
    Answer(
        "characters",
        "Characters of two, three and four bytes; one of them takes two tokens",
        "characters-are-joined",
        (_output(text="na|ï|ve| 日|本|語| ||👍🏽| ⟨é⟩|!"),),
    ),
    Answer(
        "markup",
        "Text that looks like the stream around it: an end mark, a field, line ends, quotes and brackets",
        "text-is-only-text",
        (_output(text='[DONE]|\n\n|data: {|"a": "\\"|}\r\n|: |\u2028event: |error|\t<think>| [DONE]'),),
    ),
    Answer(
        "spaces",
        "Tokens of white space alone, at the beginning and at the end",
        "every-delta-is-kept",
        (_output(text=" |\n|\n |a|  |b| |\n"),),
    ),
    Answer(
        "stop-string",
        "An answer that a stop string ended",
        "finish-is-kept",
        (_output(text="One| two| three", matched="four"),),
    ),
    Answer(
        "choices",
        "Two choices of different length",
        "choices-are-kept-apart",
        (_output(text="left| le|ft"), _output(text="right| ri|ght| right", first=40, finish="length")),
        doors=_SEVERAL,
    ),
    Answer(
        "three-choices",
        "Three choices, one of which is finished at once",
        "choices-are-kept-apart",
        (_output(text="a|b|c|d"), _output(text="A", first=20), _output(text="1|2|3", first=40)),
        doors=_SEVERAL,
    ),
    Answer(
        "reasoning",
        "Reasoning before the answer",
        "reasoning-is-kept-apart",
        (_output(reasoning="Is| it|?|\n", text="Yes|, it| is|."),),
        doors=_PARSED,
    ),
    Answer(
        "call",
        "A tool call, its arguments in pieces",
        "calls-are-joined",
        (_output(calls=(_WEATHER,)),),
        doors=_PARSED,
    ),
    Answer(
        "calls",
        "Text, then two tool calls at once",
        "calls-are-joined",
        (_output(text="Let| me|.", calls=(_WEATHER, _TIME)),),
        doors=_PARSED,
    ),
    Answer(
        "calls-by-turns",
        "Two tool calls whose pieces take turns",
        "calls-are-joined",
        (_by_turns(_output(calls=(_WEATHER, _TIME))),),
        doors=CHAT,
    ),
    Answer(
        "agent",
        "Reasoning, text and a tool call in one answer",
        "calls-are-joined",
        (_output(reasoning="Hm|m|.", text="So|:", calls=(_TIME,)),),
        doors=_PARSED,
    ),
    Answer(
        "signatures",
        "Two blocks of thinking with text between them, each with its own signature",
        "signatures-are-kept",
        (_by_turns(_output(reasoning="Is it?| Or not?", text="Perhaps.| Yes.", finish="length")),),
        doors=_SIGNED,
    ),
    Answer(
        "logprobs",
        "A text with the logprob of each token",
        "lists-stay-in-step",
        (_output(text=_WORDS),),
        {"logprobs": True},
        doors=GENERATE | CHAT,
    ),
    Answer(
        "large-ids",
        "Ids that need more than 16 bits",
        "lists-stay-in-step",
        (_output(text=_WORDS, first=_LARGE_ID, finish="length"),),
        doors=GENERATE | {"vllm-chat"},
    ),
    Answer(
        "rollout",
        "Ids, logprobs, a sampler's list that begins late, and two versions of the weights",
        "lists-stay-in-step",
        (_output(text=_WORDS, finish="length"),),
        {"logprobs": True, "customized": True},
        doors=GENERATE,
    ),
    Answer(
        "aborted",
        "An answer that an abort ended: what was made before it is there",
        "finish-is-kept",
        (_output(text="Half| an| an", finish="abort"),),
        {"logprobs": True},
        doors=GENERATE,
    ),
    Answer(
        "failure",
        "An error in the stream after some tokens",
        "errors-are-told",
        (_output(text="Half| an| an", failed=True),),
    ),
)


FIRST = {
    "length": "",
    "text": "length",
    "calls": "call",
    "calls-by-turns": "calls",
    "agent": "reasoning",
    "signatures": "reasoning",
    "rollout": "logprobs",
    "aborted": "logprobs",
    "three-choices": "choices",
}
"""The answer that each of these answers follows; see `Case.follows`. Other answers follow `text`."""
HALVES = Answer(
    "halves",
    "A character whose two surrogates come escaped in two deltas",
    "surrogates-are-joined",
    (_output(text="a|\ud83d|\ude00|b"),),
)
"""An answer that can only be written in ASCII."""


def joined_halves(text: str) -> str:
    """Return a text with its surrogate pairs as characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def answers_of(door: str) -> list[Answer]:
    """Return the answers that an endpoint can express."""
    return [answer for answer in ANSWERS if answer.doors is None or door in answer.doors]


def record_of(answer: Answer, door: str) -> dict[str, Any]:
    """Return the final content of a correct client. It depends only on the answer and not on its delivery."""
    choices = []
    for index, output in enumerate(answer.choices):
        held: dict[str, Any] = {"index": index, "text": joined_halves(output.joined(TEXT))}
        if door in _PARSED:
            held["reasoning"] = output.joined(REASONING)
            held["calls"] = [
                {"id": call_id(index, number), "name": name, "arguments": output.joined(number)}
                for number, name in enumerate(output.calls)
            ]
        if door in _SIGNED:
            held["signatures"] = signatures(output)
        if door in GENERATE or door == "vllm-chat":
            held["output_ids"] = [token.id for token in output.tokens]
        if answer.asks.get("logprobs"):
            held["logprobs"] = [token.logprob for token in output.tokens]
        if answer.asks.get("customized"):
            held["customized_info"] = {"margin": margins(output)}
            held["weight_versions"] = versions(output)
        held["finish"] = None if output.failed else output.finish
        choices.append(held)
    counted = door not in GENERATE and not answer.failed
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": answer.size} if counted else None
    return {"choices": choices, "usage": usage, "error": FAILURE["message"] if answer.failed else None}


FAILURE = {"message": "no word fits the grammar", "type": "BadRequestError", "param": None, "code": 400}
_SIGNATURES = ("ErUBCkYICBgCIkA=", "EqoBCkgIBxABGAI=")
"""A server's signatures of its blocks of thinking, which clients return to the server."""
LATE = 3
"""The first token with a value of the sampler. The entries of earlier tokens are null."""


def signatures(output: Output) -> list[str]:
    """Return the signature of each block of thinking."""
    blocks = [channel for channel, _ in groupby(output.tokens, lambda token: token.channel)]
    return [*_SIGNATURES[: blocks.count(REASONING)]]


def margins(output: Output) -> list[float | None]:
    """Return the entries of the sampler's list."""
    return [None if index < LATE else token.id / 1000 for index, token in enumerate(output.tokens)]


def versions(output: Output) -> list[dict[str, Any]]:
    """Return the ranges of weight versions. The weights are updated after half of the tokens."""
    half, size = len(output.tokens) // 2, len(output.tokens)
    return [{"version": "7", "start": 0, "end": half}, {"version": "8", "start": half, "end": size}]
