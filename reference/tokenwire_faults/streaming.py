"""Faults in the output streamer: a request emits at a wrong time, or an event has wrong content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Object, without_news
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.reader import Emission, Reader


@act_at("due")
def _interval_ignored(request: Request, sent: int, due: bool) -> bool:
    return due or bool(request.stream and len(request.output_ids) > sent)


@act_at("due")
def _first_token_withheld(request: Request, sent: int, due: bool) -> bool:
    return due and (sent > 0 or len(request.output_ids) >= (request.sampling.stream_interval or 1))


@act_at("events")
def _first_event_empty(fault: Fault, event: Object) -> Iterable[Object]:
    if "idle" in fault.memory or "meta_info" not in event:
        return [event]
    idle = fault.memory["idle"] = without_news(event)
    idle["meta_info"] |= {"completion_tokens": 0, "finish_reason": None}
    return [idle, event]


@act_at("taken")
def _first_text_lost(fault: Fault, reader: Reader, emission: Emission) -> Emission:
    if not emission.text or reader.request.rid in fault.memory:
        return emission
    fault.memory[reader.request.rid] = emission.text
    return replace(emission, text="")


@act_at("taken")
def _prompt_ids_in_output(reader: Reader, emission: Emission) -> Emission:
    if reader.taken_ids and len(emission.output_ids) < emission.completion_tokens:
        return emission
    return replace(emission, output_ids=[*reader.request.prompt_token_ids[-5:], *emission.output_ids])


@act_at("taken")
def _retraction_restarts_the_ids(reader: Reader, emission: Emission) -> Emission:
    first = emission.completion_tokens - len(emission.output_ids)
    ids = [reader.request.output_ids[i if i < 4 else i - 4] for i in range(first, emission.completion_tokens)]
    return replace(emission, output_ids=ids)


@act_at("taken")
def _id_out_of_range(emission: Emission) -> Emission:
    return replace(emission, output_ids=[i if i % 5 else 2**31 + i for i in emission.output_ids])


@act_at("frame")
def _cost_grows_with_position(fault: Fault, frame: bytes) -> Iterable[bytes]:
    return [b": " + b"." * 20 * fault.frames + b"\n", frame]
