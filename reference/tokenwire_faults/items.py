"""Faults of `/v1/responses` and `/v1/messages`: clients cannot join the events to items."""

from __future__ import annotations

from collections.abc import Iterable

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import PLACES, Json, Object
from tokenwire_faults.fault import Fault
from tokenwire_reference.extras.channels.parser import Channel, Delta


@act_at("answers")
def items_count_the_cached_twice(answer: Json) -> None:
    for usage in PLACES["usages"](answer):
        usage["input_tokens"] += usage.get("cache_read_input_tokens") or 0


@act_at("frame")
def event_has_no_name(frame: bytes) -> Iterable[bytes]:
    return [frame.partition(b"\n")[2] if frame.startswith(b"event: ") else frame]


@act_at("events")
def delta_is_lost_before_its_end(fault: Fault, event: Object) -> Iterable[Object]:
    deltas = fault.memory["deltas"] = fault.memory.get("deltas", 0) + ("delta" in event)
    return [] if "delta" in event and deltas == 2 else [event]


_WHOLE_TEXTS = (
    "response.output_text.done",
    "response.reasoning_text.done",
    "response.function_call_arguments.done",
)


@act_at("events")
def done_events_are_missing(fault: Fault, event: Object) -> Iterable[Object]:
    left_out = fault.memory.setdefault("left out", 0)
    if event.get("type") in _WHOLE_TEXTS:
        fault.memory["left out"] = left_out + 1
        return []
    if "sequence_number" in event:
        event["sequence_number"] -= left_out
    return [event]


@act_at("events")
def done_event_comes_first(fault: Fault, event: Object) -> Iterable[Object]:
    """Hold back the deltas of a part until the part's done event.

    The done event gets the sequence number of the first held delta.
    """
    held = fault.memory.setdefault("held", [])
    if event.get("type") == "response.output_text.delta":
        held.append(event)
        return []
    if event.get("type") != "response.output_text.done":
        return [event]
    numbers = [part["sequence_number"] for part in (*held, event)]
    swapped = [event, *held]
    held[:] = []
    return [{**part, "sequence_number": number} for part, number in zip(swapped, numbers, strict=True)]


@act_at("events")
def block_opens_with_text(fault: Fault, event: Object) -> Iterable[Object]:
    if event.get("type") == "content_block_start" and event["content_block"].get("type") == "text":
        fault.memory["opening"] = event
        return []
    opening = fault.memory.pop("opening", None)
    if opening is None:
        return [event]
    opening["content_block"]["text"] = event.get("delta", {}).get("text", "")
    return [opening, event]


@act_at("whole", "thinking-is-not-signed")
def _unsigned_blocks(answer: Json) -> None:
    for block in answer.get("content", ()) if isinstance(answer, dict) else ():
        if block.get("type") == "thinking":
            del block["signature"]


@act_at("events", "thinking-is-not-signed")
def _unsigned_stream(event: Object) -> Iterable[Object]:
    opened = event.get("content_block") or {}
    opened.pop("signature", None)
    delta = event.get("delta") or {}
    return [] if delta.get("type") == "signature_delta" else [event]


@act_at("deltas")
def items_lose_the_reasoning(deltas: list[Delta]) -> Iterable[Delta]:
    return [delta for delta in deltas if delta.channel is not Channel.REASONING]


@act_at("answered")
def own_items_are_refused(fault: Fault, status: int, answer: Json) -> tuple[int, Json]:
    turns = fault.request.get("input", fault.request.get("messages"))
    listed = [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    if status == 200 and any("id" in turn or turn.get("role") == "assistant" for turn in listed):
        return 400, {
            "error": {"message": "input[1] is not understood", "type": "BadRequestError", "code": 400}
        }
    return status, answer


_branches: dict[str, list[Json]] = {}
"""The inputs of all requests that have continued a response, by the id of the response."""


@act_at("asked")
def previous_response_gathers_its_branches(body: Object) -> Object:
    if isinstance(body.get("input"), list) and (previous := body.get("previous_response_id")):
        gathered = _branches.setdefault(previous, [])
        body["input"], gathered[:] = [*gathered, *body["input"]], [*gathered, *body["input"]]
    return body


_given: dict[str, Json] = {}
"""The instructions and the previous response's id in the request for each response, by the id of the
response.
"""


def _known(body: Object) -> Json:
    return _given.get(str(body.get("previous_response_id")), {})


@act_at("asked", "previous-response-is-the-last-turn")
def _without_earlier_turns(body: Object) -> Object:
    if (turn := _known(body)).get("previous"):
        body["input"] = [*_listed(turn["input"]), *turn["output"], *_listed(body["input"])]
        del body["previous_response_id"]
    return body


@act_at("asked", "previous-instructions-stay")
def _with_earlier_instructions(body: Object) -> Object:
    if instructions := _known(body).get("instructions"):
        body["instructions"] = instructions
    return body


@act_at("asked", "previous-response-loses-its-calls")
def _without_earlier_calls(body: Object) -> Object:
    if turn := _known(body):
        kept = [item for item in turn["output"] if item["type"] != "function_call"]
        body["input"] = [*_listed(turn["input"]), *kept, *_listed(body["input"])]
        del body["previous_response_id"]
    return body


@act_at(
    "whole",
    "previous-response-is-the-last-turn",
    "previous-response-loses-its-calls",
    "previous-instructions-stay",
)
def _remembered(fault: Fault, answer: Json) -> None:
    if isinstance(answer, dict) and answer.get("object") == "response" and fault.request:
        asked = fault.request
        _given[answer["id"]] = {
            "input": asked.get("input"),
            "output": answer["output"],
            "previous": asked.get("previous_response_id"),
            "instructions": asked.get("instructions"),
        }


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [{"role": "user", "content": value}]
