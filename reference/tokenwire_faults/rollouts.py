"""Faults of what trainers take beside logprobs: sampling masks, versions of weights, routed experts."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from tokenwire_faults.acts import act_at
from tokenwire_faults.altered_rows import OutputRow
from tokenwire_faults.answers import Json, Object, meta_infos
from tokenwire_faults.deliveries import with_series
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.request import Request

MASK = "output_token_sampling_mask"


@act_at("row")
def _mask_of_the_token_before(request: Request, row: OutputRow) -> OutputRow:
    if MASK not in row.series:
        return row
    return with_series(row, **{MASK: [[], *request.series[MASK]][row.start : row.end]})


def _experts(fault: Fault, info: Object) -> tuple[list[bytes], int]:
    """The rows of routed experts, one for each position, and how many of them are of the prompt."""
    start = fault.request.get("routed_experts_start_len") or 0
    count = info["prompt_tokens"] + max(info["completion_tokens"] - 1, 0) - start
    data = base64.b64decode(info["routed_experts"])
    width = len(data) // count
    return [data[start : start + width] for start in range(0, len(data), width)], info[
        "prompt_tokens"
    ] - start


def _set_experts(info: Object, rows: Sequence[bytes]) -> None:
    info["routed_experts"] = base64.b64encode(b"".join(rows)).decode()


@act_at("answers")
def _experts_of_the_last_token_missing(fault: Fault, answer: Json) -> None:
    for info in meta_infos(answer):
        if info.get("routed_experts") and info["completion_tokens"] > 8:
            rows, _ = _experts(fault, info)
            _set_experts(info, rows[:-1])


@act_at("answers")
def _experts_of_the_prompt_are_zero(fault: Fault, answer: Json) -> None:
    for info in meta_infos(answer):
        if info.get("routed_experts"):
            rows, prompt = _experts(fault, info)
            _set_experts(info, [bytes(len(row)) if i < prompt else row for i, row in enumerate(rows)])


@act_at("event")
def _created_changes(fault: Fault, event: Object) -> None:
    if "created" in event:
        event["created"] += fault.events


@act_at("answers")
def _experts_are_no_ids(fault: Fault, answer: Json) -> None:
    for info in meta_infos(answer):
        if info.get("routed_experts"):
            rows, _ = _experts(fault, info)
            _set_experts(info, [row[:1] + b"\x10" + row[2:] for row in rows])


@act_at("answers", "experts-shifted-in-streams", "experts-rotated")
def _experts_shifted(fault: Fault, answer: Json) -> None:
    for info in meta_infos(answer):
        if info.get("routed_experts"):
            rows, _ = _experts(fault, info)
            _set_experts(info, [rows[-1], *rows[:-1]])


@act_at("answered")
def _abort_all_is_an_error(fault: Fault, status: int, answer: Json) -> tuple[int, Json]:
    reasons = [info.get("finish_reason") or {} for info in meta_infos(answer)]
    if fault.request.get("rid") is None and any(reason.get("type") == "abort" for reason in reasons):
        return 503, {"error": {"message": "the request was aborted", "code": 503}}
    return status, answer


_siblings: dict[str, list[int]] = {}
"""The id of a turn to the ids that were sent to go on from it."""
_MOST_SIBLINGS = 256
"""So many turns are remembered; a scenario asks for branches one behind the other."""


@act_at("asked")
def _session_gathers_its_branches(body: Object) -> Object:
    if before := (body.get("session_params") or {}).get("rid"):
        if len(_siblings) > _MOST_SIBLINGS:
            _siblings.clear()
        _siblings[before] = body["input_ids"] = [*_siblings.get(before, ()), *body["input_ids"]]
    return body
