"""Write an answer as each endpoint does: as events, in the order in which steps deliver its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from proofs.vectors.answers import (
    FAILURE,
    PROMPT,
    REASONING,
    STOP_ID,
    TEXT,
    Answer,
    Output,
    Token,
    call_id,
    margins,
    signatures,
    versions,
)

DONE = "[DONE]"
Event = dict[str, Any] | str


@dataclass(frozen=True)
class Step:
    """Tokens of one choice that an event delivers."""

    choice: int
    start: int
    end: int
    last: bool = False
    """True if the choice ends with these tokens."""


@dataclass(frozen=True)
class Shape:
    """Variations that a server may choose."""

    usage: str = "alone"
    """`alone` in a separate event, with the `last` finish reason, or in `each` event."""
    role: str = "alone"
    """`alone` in a separate event, or `with` the first content."""
    deltas: str = "all"
    """The part of an item's text in deltas: `all` of the text; `after-the-first`, if the opening event
    contains the first part; or `none`, if the opening event (Messages) or the closing event (Responses)
    contains all of it.
    """


@dataclass(frozen=True)
class Door:
    """An endpoint of a family, with the form of its requests and of its streams."""

    name: str
    dialect: str
    path: str
    write: Callable[[Door, Answer, Sequence[Step], Shape], Iterator[Event]]
    reasoning: str = ""
    matched: str = ""
    """The names of the reasoning field and of the stop field."""
    named: bool = False
    """True if its events have names."""

    @property
    def cumulative(self) -> bool:
        return self.name.endswith("-cumulative")


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": len(PROMPT), "completion_tokens": tokens, "total_tokens": len(PROMPT) + tokens}


def _generate(door: Door, answer: Answer, steps: Sequence[Step], _: Shape) -> Iterator[Event]:
    for step in steps:
        output = answer.choices[step.choice]
        tokens = output.tokens[0 if door.cumulative else step.start : step.end]
        finish: dict[str, Any] = {"type": output.finish}
        if output.finish == "length":
            finish["length"] = len(output.tokens)
        elif output.finish == "stop":
            finish["matched"] = output.matched or STOP_ID
        elif output.finish == "abort":
            finish["message"] = "aborted"
        meta: dict[str, Any] = {
            "id": f"r{step.choice}",
            "finish_reason": finish if step.last and not output.failed else None,
            "prompt_tokens": len(PROMPT),
            "completion_tokens": step.end,
            "cached_tokens": 0,
            "weight_version": "8" if step.end > len(output.tokens) // 2 else "7",
        }
        if answer.asks.get("logprobs"):
            meta["output_token_logprobs"] = [[token.logprob, token.id, None] for token in tokens]
        if answer.asks.get("customized"):
            meta["margin"] = margins(output)[0 if door.cumulative else step.start : step.end]
            if step.last:
                meta["weight_versions"] = versions(output)
        event = {"text": "".join(token.text for token in tokens), "output_ids": [t.id for t in tokens]}
        yield {**event, "meta_info": meta, **({"index": step.choice} if len(answer.choices) > 1 else {})}
    if answer.failed:
        yield {"error": FAILURE}
    yield DONE


def _delta(door: Door, output: Output, step: Step) -> dict[str, Any]:
    """Return a chat delta of some tokens."""
    delta: dict[str, Any] = {}
    tokens = output.tokens[step.start : step.end]
    for channel, key in ((REASONING, door.reasoning), (TEXT, "content")):
        if any(token.channel == channel for token in tokens):
            delta[key] = "".join(token.text for token in tokens if token.channel == channel)
    for call, name in enumerate(output.calls):
        mine = [token for token in tokens if token.channel == call]
        if not mine:
            continue
        first = next(token for token in output.tokens if token.channel == call) in mine
        piece: dict[str, Any] = {"index": call}
        if first:
            piece |= {"id": call_id(step.choice, call), "type": "function", "function": {"name": name}}
        piece.setdefault("function", {})["arguments"] = "".join(token.text for token in mine)
        delta.setdefault("tool_calls", []).append(piece)
    return delta or {"content": ""}


def _entry(token: Token) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": list(token.text.encode()),
        "top_logprobs": [],
    }


def _chat(door: Door, answer: Answer, steps: Sequence[Step], shape: Shape) -> Iterator[Event]:
    told_so_far, begun = 0, set[int]()
    last = max(position for position, step in enumerate(steps) if step.last)
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(step: Step, delta: dict[str, Any], tokens: Sequence[Token]) -> dict[str, Any]:
        output = answer.choices[step.choice]
        finished = step.last and not output.failed
        choice: dict[str, Any] = {"index": step.choice, "delta": delta, "logprobs": None}
        if tokens and answer.asks.get("logprobs"):
            choice["logprobs"] = {"content": [_entry(token) for token in tokens]}
        choice["finish_reason"] = output.finish if finished else None
        if door.matched:
            choice[door.matched] = output.matched if finished else None
        if door.name == "vllm-chat" and (tokens or step.last):
            choice["token_ids"] = [token.id for token in tokens]
        made: dict[str, Any] = {**common, "choices": [choice]}
        if door.name == "vllm-chat" and "role" in delta:
            made["prompt_token_ids"] = list(PROMPT)
        return made

    for position, step in enumerate(steps):
        output = answer.choices[step.choice]
        role: dict[str, Any] = {}
        if step.choice not in begun:
            begun.add(step.choice)
            role = {"role": "assistant"}
            if shape.role == "alone":
                first = Step(step.choice, 0, 0)
                made = chunk(first, role | {"content": ""}, ())
                yield made | ({"usage": _usage(0)} if shape.usage == "each" else {})
                role = {}
        told_so_far += step.end - step.start
        made = chunk(step, role | _delta(door, output, step), output.tokens[step.start : step.end])
        if shape.usage == "each" or (shape.usage == "last" and position == last):
            made["usage"] = _usage(told_so_far)
        yield made
    yield from _ending(answer, common, shape)


def _ending(answer: Answer, common: dict[str, Any], shape: Shape) -> Iterator[Event]:
    if answer.failed:
        yield {"error": FAILURE}
    elif shape.usage != "last":
        yield {**common, "choices": [], "usage": _usage(answer.size)}
    yield DONE


def _completions(_: Door, answer: Answer, steps: Sequence[Step], shape: Shape) -> Iterator[Event]:
    common = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    last, so_far = max(position for position, step in enumerate(steps) if step.last), 0
    for position, step in enumerate(steps):
        output = answer.choices[step.choice]
        so_far += step.end - step.start
        text = "".join(token.text for token in output.tokens[step.start : step.end])
        finish = output.finish if step.last and not output.failed else None
        choice = {"index": step.choice, "text": text, "logprobs": None, "finish_reason": finish}
        made: dict[str, Any] = {**common, "choices": [choice]}
        if shape.usage == "each" or (shape.usage == "last" and position == last):
            made["usage"] = _usage(so_far)
        yield made
    yield from _ending(answer, common, shape)


def _segments(output: Output) -> list[tuple[int, int, str | int]]:
    """Return the first token and the end of each part of a channel, with the channel."""
    found: list[tuple[int, int, str | int]] = []
    for index, token in enumerate(output.tokens):
        if found and found[-1][2] == token.channel:
            found[-1] = (found[-1][0], index + 1, token.channel)
        else:
            found.append((index, index + 1, token.channel))
    return found


_Piece = tuple[str, int, str | int, str]
"""A step (`open`, `delta`, `close`, `idle`), the number of its item, the channel, and the text."""


def _pieces(output: Output, steps: Sequence[Step]) -> Iterator[_Piece]:
    """Yield the steps of an answer's items in order: `open`, `delta` and `close`, and also `idle`."""
    segments = _segments(output)
    for step in steps:
        if step.start == step.end and not step.last:
            yield "idle", 0, "", ""
        for number, (start, end, channel) in enumerate(segments):
            tokens = output.tokens[max(start, step.start) : min(end, step.end)]
            if not tokens or step.end <= start or step.start >= end:
                continue
            if step.start <= start:
                yield "open", number, channel, ""
            yield "delta", number, channel, "".join(token.text for token in tokens)
            if step.end >= end:
                whole = "".join(token.text for token in output.tokens[start:end])
                yield "close", number, channel, whole


def _shaped(pieces: Iterable[_Piece], shape: Shape) -> Iterator[_Piece]:
    """Yield the steps of items. The opening event contains the text that is missing from the deltas."""
    held: _Piece | None = None
    for what, number, channel, text in pieces:
        in_opening = shape.deltas != "all" and not isinstance(channel, int)
        if what == "open" and in_opening:
            held = (what, number, channel, "")
        elif what == "delta" and held is not None:
            held = (*held[:3], held[3] + text)
            if shape.deltas == "after-the-first":
                yield held
                held = None
        elif what == "close" and held is not None:
            yield from (held, (what, number, channel, text))
            held = None
        else:
            yield what, number, channel, text


def _message_events(_: Door, answer: Answer, steps: Sequence[Step], shape: Shape) -> Iterator[Event]:
    (output,) = answer.choices
    usage = {"input_tokens": len(PROMPT), "output_tokens": 0}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    begin = {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": begin}
    unsent = iter(signatures(output))
    for what, number, channel, text in _shaped(_pieces(output, steps), shape):
        place: dict[str, Any] = {"index": number}
        if what == "idle":
            yield {"type": "ping"}
        elif what == "close":
            if channel == REASONING:
                signed = {"type": "signature_delta", "signature": next(unsent)}
                yield {"type": "content_block_delta", **place, "delta": signed}
            yield {"type": "content_block_stop", **place}
        elif what == "open":
            block: dict[str, Any] = {"type": "text", "text": text}
            if channel == REASONING:
                block = {"type": "thinking", "thinking": text, "signature": ""}
            elif isinstance(channel, int):
                block = {
                    "type": "tool_use",
                    "id": call_id(0, channel),
                    "name": output.calls[channel],
                    "input": {},
                }
            yield {"type": "content_block_start", **place, "content_block": block}
        else:
            delta = {"type": "input_json_delta", "partial_json": text}
            if channel in {TEXT, REASONING}:
                kind = "text" if channel == TEXT else "thinking"
                delta = {"type": f"{kind}_delta", kind: text}
            yield {"type": "content_block_delta", **place, "delta": delta}
    if output.failed:
        yield {"type": "error", "error": {"type": "api_error", "message": FAILURE["message"]}}
        return
    words = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    reason = "stop_sequence" if output.matched else words[output.finish]
    counts = {"output_tokens": answer.size} | ({"input_tokens": len(PROMPT)} if shape.usage == "each" else {})
    end = {"stop_reason": reason, "stop_sequence": output.matched}
    yield {"type": "message_delta", "delta": end, "usage": counts}
    yield {"type": "message_stop"}


def _item(output: Output, number: int, channel: str | int, text: str, status: str) -> dict[str, Any]:
    """Return an item of a response with the text that is delivered so far."""
    if isinstance(channel, int):
        call = {"call_id": call_id(0, channel), "name": output.calls[channel], "arguments": text}
        return {"id": f"fc_{number}", "type": "function_call", "status": status, **call}
    part = [_part(channel, text)] if status != "in_progress" else []
    if channel == REASONING:
        return {"id": f"rs_{number}", "type": "reasoning", "status": status, "summary": [], "content": part}
    return {"id": f"msg_{number}", "type": "message", "status": status, "role": "assistant", "content": part}


def _part(channel: str | int, text: str) -> dict[str, Any]:
    if channel == REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _responses(_: Door, answer: Answer, steps: Sequence[Step], shape: Shape) -> Iterator[Event]:
    numbered = -1
    for event in _response_events(answer, steps, shape):
        numbered += 1
        yield {"type": event.pop("type"), "sequence_number": numbered, **event}


def _response_events(answer: Answer, steps: Sequence[Step], shape: Shape) -> Iterator[dict[str, Any]]:
    (output,) = answer.choices
    common = {
        **{"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "error": None},
        **{"incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True},
        **{"temperature": 0.0, "tool_choice": "auto", "tools": [], "top_p": 1.0},
    }
    begun = {**common, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    closed: list[dict[str, Any]] = []
    cut = output.finish == "length"
    count = len(_segments(output))
    pieces = _pieces(output, steps)
    if shape.deltas == "none":
        pieces = (piece for piece in pieces if piece[0] != "delta")
    else:
        pieces = _shaped(pieces, shape)
    for what, number, channel, text in pieces:
        place: dict[str, Any] = {"output_index": number}
        kind = {TEXT: "output_text", REASONING: "reasoning_text"}.get(str(channel), "function_call_arguments")
        status = "incomplete" if cut and number == count - 1 else "completed"
        item = _item(output, number, channel, text, status if what == "close" else "in_progress")
        inside = {"item_id": item["id"], **place}
        if not isinstance(channel, int):
            inside["content_index"] = 0
        logprobs: dict[str, Any] = {"logprobs": []} if channel == TEXT else {}
        if what == "idle":
            yield {"type": "response.in_progress", "response": begun}
        elif what == "open":
            yield {"type": "response.output_item.added", **place, "item": item}
            if not isinstance(channel, int):
                yield {"type": "response.content_part.added", **inside, "part": _part(channel, text)}
        elif what == "delta":
            yield {"type": f"response.{kind}.delta", **inside, "delta": text, **logprobs}
        else:
            whole = "arguments" if isinstance(channel, int) else "text"
            name = {"name": output.calls[channel]} if isinstance(channel, int) else {}
            yield {"type": f"response.{kind}.done", **inside, whole: text, **name, **logprobs}
            if not isinstance(channel, int):
                yield {"type": "response.content_part.done", **inside, "part": _part(channel, text)}
            yield {"type": "response.output_item.done", **place, "item": item}
            closed.append(item)
    counts: dict[str, Any] = {"input_tokens": len(PROMPT), "output_tokens": answer.size}
    counts |= {"total_tokens": len(PROMPT) + answer.size, "input_tokens_details": {"cached_tokens": 0}}
    counts["output_tokens_details"] = {
        "reasoning_tokens": sum(token.channel == REASONING for token in output.tokens)
    }
    status = "failed" if output.failed else "incomplete" if cut else "completed"
    end = {**common, "status": status, "output": closed, "usage": None if output.failed else counts}
    if output.failed:
        end["error"] = {"code": "server_error", "message": FAILURE["message"]}
    if cut:
        end["incomplete_details"] = {"reason": "max_output_tokens"}
    yield {"type": f"response.{status}", "response": end}


_CHAT = "/v1/chat/completions"
DOORS = {
    door.name: door
    for door in (
        Door("sglang-generate-cumulative", "sglang-generate", "/generate", _generate),
        Door("sglang-generate-incremental", "sglang-generate", "/generate", _generate),
        Door("sglang-chat", "sglang-chat", _CHAT, _chat, "reasoning_content", "matched_stop"),
        Door("vllm-chat", "vllm-chat", _CHAT, _chat, "reasoning", "stop_reason"),
        Door("openai-chat", "openai-chat", _CHAT, _chat, "reasoning_content"),
        Door("openai-completions", "openai-completions", "/v1/completions", _completions),
        Door("openai-responses", "openai-responses", "/v1/responses", _responses, named=True),
        Door("anthropic-messages", "anthropic-messages", "/v1/messages", _message_events, named=True),
    )
}
_TOOLS = (("get_weather", "city"), ("get_time", "zone"))


def request(door: Door, answer: Answer) -> dict[str, Any]:
    """Return the body of the request for an answer."""
    budget = max(len(output.tokens) for output in answer.choices)
    if not any(output.finish == "length" for output in answer.choices):
        budget += 16
    stops = [output.matched for output in answer.choices if output.matched]
    several = {"n": len(answer.choices)} if len(answer.choices) > 1 else {}
    logprobs = bool(answer.asks.get("logprobs"))
    if door.dialect == "sglang-generate":
        sampling = {
            "max_new_tokens": budget,
            "temperature": 0.5,
            **several,
            **({"stop": stops} if stops else {}),
        }
        asked = {"input_ids": list(PROMPT), "sampling_params": sampling, "stream": True}
        return asked | ({"return_logprob": True} if logprobs else {})
    messages = [{"role": "user", "content": "Say it."}]
    body: dict[str, Any] = {"model": "m", "stream": True, "temperature": 0.5}
    schemas = [
        (name, {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]})
        for name, key in _TOOLS
    ]
    called = any(output.calls for output in answer.choices)
    if door.name == "anthropic-messages":
        body |= {"max_tokens": budget, "messages": messages, **({"stop_sequences": stops} if stops else {})}
        tools: list[dict[str, Any]] = [{"name": name, "input_schema": schema} for name, schema in schemas]
    elif door.name == "openai-responses":
        body |= {"max_output_tokens": budget, "input": messages, "store": False}
        tools = [{"type": "function", "name": name, "parameters": schema} for name, schema in schemas]
    else:
        body |= {"max_tokens": budget, **several, "stream_options": {"include_usage": True}}
        body |= {"prompt": "Say it."} if door.name == "openai-completions" else {"messages": messages}
        body |= ({"stop": stops} if stops else {}) | ({"logprobs": True} if logprobs else {})
        body |= {"return_token_ids": True} if door.name == "vllm-chat" else {}
        functions = [{"name": name, "parameters": schema} for name, schema in schemas]
        tools = [{"type": "function", "function": function} for function in functions]
    return body | ({"tools": tools} if called else {})
