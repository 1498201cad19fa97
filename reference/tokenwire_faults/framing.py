"""Faults in framing: events, media types, and the end of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokenwire_faults.acts import DONE, act_at
from tokenwire_faults.answers import Json, Object, choices_of, finish_of, meta_infos
from tokenwire_faults.fault import Fault

Frames = Iterable[bytes]


@act_at("frame")
def _stream_held_back(fault: Fault, frame: bytes) -> Frames:
    held: list[bytes] = fault.memory.setdefault("held", [])
    held.append(frame)
    return held if frame == DONE else []


@act_at("frame")
def _data_after_done(fault: Fault, frame: bytes) -> Frames:
    last = fault.memory.get("last", b"")
    fault.memory["last"] = frame
    return [frame, last] if frame == DONE else [frame]


@act_at("frame")
def _stream_cut_off(fault: Fault, frame: bytes) -> Frames:
    if fault.frames > 3:
        raise ConnectionAbortedError("cut off by the fault stream-cut-off")
    return [frame]


@act_at("frame")
def _last_event_unterminated(frame: bytes) -> Frames:
    return [frame.rstrip(b"\n")] if frame == DONE else [frame]


@act_at("event", "event-over-several-lines")
def _notice_the_finish(fault: Fault, event: Object) -> None:
    fault.memory["breaks"] = finish_of(event) is not None


@act_at("frame")
def _event_over_several_lines(fault: Fault, frame: bytes) -> Frames:
    return [frame.replace(b",", b",\n", 1) if fault.memory.get("breaks") else frame]


@act_at("frame")
def _two_objects_in_an_event(fault: Fault, frame: bytes) -> Frames:
    return [frame.rstrip(b"\n") + b"{}\n\n" if fault.frames == 3 and frame != DONE else frame]


@act_at("frame")
def _events_named(frame: bytes) -> Frames:
    return [b"event: message_delta\n" + frame]


@act_at("frame")
def _bytes_of_broken_characters(frame: bytes) -> Frames:
    for name in (b'"text":"', b'"content":"'):
        frame = frame.replace(name, name + b"\xe4\xb8")
    return [frame]


@act_at("event")
def _null_keys_excluded(event: Object) -> None:
    for holder in (*choices_of(event), *meta_infos(event)):
        for name in [name for name, value in holder.items() if value is None]:
            del holder[name]


@act_at("event")
def _key_missing_in_the_middle(fault: Fault, event: Object) -> None:
    for info in meta_infos(event) if fault.events > 1 and not finish_of(event) else ():
        for name in [name for name, value in info.items() if value == 0 and value is not False]:
            del info[name]


@act_at("answers")
def _chat_logprobs_in_the_legacy_shape(answer: Json) -> None:
    for choice in choices_of(answer):
        if choice.get("logprobs"):
            content = choice["logprobs"]["content"]
            choice["logprobs"] = {
                "tokens": [entry["token"] for entry in content],
                "token_logprobs": [entry["logprob"] for entry in content],
            }


_ERRORS: Mapping[str, Json] = {
    "stream-fails": {"message": "no room is left; ask again later", "type": "busy", "code": 503},
    "stream-error-says-nothing": {"type": "server_error"},
    "": {"message": "the worker died", "type": "server_error", "code": 502},
}


def _error(fault: Fault) -> Object:
    return {"error": _ERRORS.get(fault.known.name, _ERRORS[""])}


@act_at("events", "stream-error-says-nothing")
def _fail(fault: Fault, event: Object) -> Iterable[Object]:
    """Write an error event as the third event of a stream, and nothing after it."""
    return [event] if fault.events < 3 else [_error(fault)] if fault.events == 3 else []


@act_at("events")
def _stream_fails(fault: Fault, event: Object) -> Iterable[Object]:
    if fault.events <= 3 and finish_of(event) is not None:
        fault.memory["finished"] = True
    return [event] if "finished" in fault.memory else _fail(fault, event)


@act_at("events")
def _stream_goes_on_after_an_error(fault: Fault, event: Object) -> Iterable[Object]:
    return [_error(fault)] if fault.events == 3 else [event]


@act_at("events")
def _stream_error_after_the_finish(fault: Fault, event: Object) -> Iterable[Object]:
    return [event, _error(fault)] if finish_of(event) else [event]
