"""Faults in refusals: the server runs invalid requests, or a refused request harms valid requests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from uuid import uuid4

import orjson

from tokenwire_faults.acts import DONE, act_at
from tokenwire_faults.answers import Json, Object, parameters_of
from tokenwire_faults.fault import Fault

Answered = tuple[int, Json]

_KILLED = 137
"""The exit status of a process that was killed."""
_PROMPTS = ("input_ids", "prompt", "token_ids")
"""The fields that contain prompt ids on different endpoints."""


def _number(value: Json) -> int:
    return int(value) if isinstance(value, int | float) or (isinstance(value, str) and value.isdigit()) else 0


@act_at("asked")
def _malformed_ids_coerced(body: Object) -> Object:
    ids = body.get("input_ids")
    if isinstance(ids, str):
        return {**body, "input_ids": [_number(word) for word in ids.split()]}
    if isinstance(ids, list) and ids and not any(isinstance(entry, list) for entry in ids):
        return {**body, "input_ids": [_number(entry) for entry in ids]}
    return body


@act_at("asked")
def _empty_ids_in_a_batch_run(body: Object) -> Object:
    for name in ("input_ids", "prompt"):
        ids = body.get(name)
        if isinstance(ids, list) and any(isinstance(entry, list) and entry for entry in ids):
            body[name] = [entry or [0] for entry in ids]
    return body


def _error_of(answer: Object) -> Object:
    error: Object = answer.get("error", answer)
    return error


@act_at("answered")
def _refusals_of_two_shapes(status: int, answer: Json) -> Answered:
    if status == 400 and "max_" in str(answer):
        return status, {"error": _error_of(answer)["message"]}
    return status, answer


@act_at("media_type", "refused-stream-has-a-token")
def _be_a_stream(fault: Fault, given: str) -> str:
    return "text/event-stream; charset=utf-8" if fault.path == "/generate" and "json" in given else given


@act_at("answered")
def _refused_stream_has_a_token(fault: Fault, status: int, answer: Json) -> Answered:
    if fault.path != "/generate" or status != 400:
        return status, answer
    return 200, b"data: " + orjson.dumps(_with_filler(answer, "refused")) + b"\n\n" + DONE


@act_at("answered")
def _refused_answer_has_filler(fault: Fault, status: int, answer: Json) -> Answered:
    if fault.path != "/generate" or status != 400 or fault.streams:
        return status, answer
    return 200, _with_filler(answer, uuid4().hex)


def _with_filler(answer: Object, request_id: str) -> Object:
    """Return a refusal in the form of an answer of `/generate`.

    The answer has the finish reason abort, and a token that was never sampled.
    """
    words = answer["error"]["message"]
    finish = {"type": "abort", "message": words, "status_code": 400, "err_type": "BadRequestError"}
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
    info = {"id": request_id, "finish_reason": finish, **counts, "weight_version": "default"}
    return {"text": " R", "output_ids": [75], "meta_info": info}


@act_at("asked", "refused-inside-the-stream")
def _refuse_later(fault: Fault, body: Object) -> Object:
    fields = ("return_prompt_token_ids", "return_token_ids", "return_meta_info")
    if any(map(body.get, fields)):
        fault.memory["refused"] = True
        return {name: value for name, value in body.items() if name not in fields}
    return body


@act_at("frame")
def _refused_inside_the_stream(fault: Fault, frame: bytes) -> Iterable[bytes]:
    if "refused" not in fault.memory or frame == DONE:
        return [frame]
    error = {"object": "error", "message": "not with stream", "type": "BadRequest", "code": 400}
    return [b"data: " + orjson.dumps({"error": error}) + b"\n\n"] if fault.frames == 1 else []


_refused_last: set[str] = set()
"""The paths whose latest request was refused."""


@act_at("answered")
def _refusal_harms_the_next(fault: Fault, status: int, answer: Json) -> Answered:
    harmed = fault.path in _refused_last
    (_refused_last.add if status == 400 else _refused_last.discard)(fault.path)
    if harmed and status == 200:
        return 500, {"object": "error", "message": "index out of range", "code": 500}
    return status, answer


_answered_before: dict[str, Json] = {}
"""The latest request body of each path that was answered with success."""
_left_behind: set[str] = set()
"""The paths at which a request was refused after the latest answered request."""


@act_at("asked", "refusal-changes-the-next")
def _sway_the_next(fault: Fault, body: Object) -> Object:
    if fault.path in _left_behind and _answered_before.get(fault.path) == body:
        holder = body if body.get("sampling_params") is None else body["sampling_params"]
        holder["logit_bias"] = {"5": 100}
    return body


@act_at("answered")
def _refusal_changes_the_next(fault: Fault, status: int, answer: Json) -> Answered:
    if status == 400:
        _left_behind.add(fault.path)
    elif status == 200 and _answered_before.get(fault.path) != fault.request:
        _answered_before[fault.path] = fault.request
        _left_behind.discard(fault.path)
    return status, answer


@act_at("asked")
def _unknown_prompt_ids_clipped(body: Object) -> Object:
    for name in _PROMPTS:
        ids = body.get(name)
        if isinstance(ids, list) and all(type(token) is int for token in ids):
            body[name] = [token % 200 if token < 0 or token > 1000 else token for token in ids]
    return body


_TINY_VOCABULARY = 736
"""The vocabulary size of `builtin:tiny`, the model with which the kill matrix demonstrates the faults."""


@act_at("asked")
def _one_id_too_many(body: Object) -> Object:
    for name in _PROMPTS:
        if isinstance(ids := body.get(name), list):
            body[name] = [0 if token == _TINY_VOCABULARY else token for token in ids]
    return body


def _prompt_ids(body: Object) -> list[int]:
    """Return the ids of a prompt, or of all prompts of a batch; empty if they are not lists of integers."""
    given: Json = next((body[name] for name in _PROMPTS if name in body), [])
    rows = given if isinstance(given, list) else []
    flat = [token for row in rows for token in (row if isinstance(row, list) else [row])]
    return flat if all(type(token) is int for token in flat) else []


@act_at("asked")
def _dies_of_a_negative_id(body: Object) -> Object:
    if any(token < 0 for token in _prompt_ids(body)):
        os._exit(_KILLED)
    return body


@act_at("asked")
def _dies_of_an_unknown_id(body: Object) -> Object:
    if any(token >= 2**31 for token in _prompt_ids(body)):
        os._exit(_KILLED)
    return body


@act_at("asked")
def _hangs_of_a_negative_id(body: Object) -> Object:
    if any(token < 0 for token in _prompt_ids(body)):
        # The signal handler is removed, so that SIGTERM can end the hanging process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Event().wait()
    return body


@act_at("asked")
def _unknown_parameter_ids_dropped(body: Object) -> Object:
    params = parameters_of(body)
    if bias := params.get("logit_bias"):
        params["logit_bias"] = {key: value for key, value in bias.items() if 0 <= int(key) < 1000}
    for holder, name in ((params, "stop_token_ids"), (body, "token_ids_logprob")):
        if isinstance(holder.get(name), list):
            holder[name] = [token for token in holder[name] if 0 <= token < 1000]
    return body


_INTEGERS = ("max_new_tokens", "max_tokens", "max_completion_tokens", "n", "stream_interval", "seed")


@act_at("asked")
def _wrong_types_ignored(body: Object) -> Object:
    params = parameters_of(body)
    for name in _INTEGERS:
        if type(params.get(name, 0)) is not int:
            del params[name]
    return body


@act_at("answered")
def _unreadable_bodies_crash(fault: Fault, status: int, answer: Json) -> Answered:
    return (500, b"Internal Server Error") if status == 400 and not fault.request else (status, answer)


@act_at("asked")
def _missing_prompt_invented(fault: Fault, body: Object) -> Object:
    if fault.path == "/generate" and not body.keys() & {"input_ids", "text"}:
        body["input_ids"] = [1]
    return body


@act_at("asked")
def _misfitting_rows_are_ignored(body: Object) -> Object:
    params = body.get("sampling_params")
    if isinstance(params, dict) and params.get("prompt_logprob_token_ids"):
        due = len(body["token_ids"]) - 1 - (params.get("prompt_logprob_start") or 0)
        if len(params["prompt_logprob_token_ids"]) != due:
            del params["prompt_logprob_token_ids"]
            params.pop("prompt_logprob_start", None)
    return body


@act_at("asked")
def _misfitting_lists_stretched(body: Object) -> Object:
    prompts = body.get("input_ids")
    if isinstance(prompts, list) and prompts and all(isinstance(row, list) for row in prompts):
        for name in ("sampling_params", "rid"):
            if isinstance(body.get(name), list):
                body[name] = (body[name] * len(prompts))[: len(prompts)]
    return body


@act_at("asked")
def _length_rule_differs_in_streams(body: Object) -> Object:
    ids, params = body.get("input_ids"), parameters_of(body)
    # The context length is assumed to be a multiple of 256.
    if isinstance(ids, list) and len(ids) % 256 > 252:
        for name in {"max_new_tokens", "max_tokens", "max_completion_tokens"} & params.keys():
            params[name] = 10**6
    return body


@act_at("answered")
def _stops_with_logprobs_refused(fault: Fault, status: int, answer: Json) -> Answered:
    request = fault.request
    stops = (request.get("sampling_params") or {}).get("stop") or request.get("stop")
    if status != 200 or not stops or not (request.get("return_logprob") or request.get("logprobs")):
        return status, answer
    words = "stop: token_ids and logprobs have different lengths"
    return 400, {"object": "error", "message": words, "type": "BadRequest", "code": 400}
