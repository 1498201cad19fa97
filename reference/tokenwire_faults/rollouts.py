"""Faults of outputs for trainers: sampling masks, versions of weights, routed experts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, Object, finish_type, meta_infos
from tokenwire_faults.deliveries import OutputRow, with_series
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.request import Request

MASK = "output_token_sampling_mask"


@act_at("row")
def _mask_of_the_token_before(request: Request, row: OutputRow) -> OutputRow:
    if MASK not in row.series:
        return row
    return with_series(row, **{MASK: [[], *request.series[MASK]][row.start : row.end]})


@act_at("answers")
def _weight_spans_split_for_nothing(answer: Json) -> None:
    for info in meta_infos(answer):
        if spans := info.get("weight_versions"):
            middle = (spans[-1]["start"] + spans[-1]["end"]) // 2
            info["weight_versions"] = [
                *spans[:-1],
                spans[-1] | {"end": middle},
                spans[-1] | {"start": middle},
            ]


@act_at("answers")
def _prompt_spans_lack_the_last(answer: Json) -> None:
    for info in meta_infos(answer):
        if spans := info.get("prefill_weight_versions"):
            info["prefill_weight_versions"] = [*spans[:-1], spans[-1] | {"end": spans[-1]["end"] - 1}]


@act_at("answers")
def _weights_named_at_the_end(answer: Json) -> None:
    for info in meta_infos(answer):
        if spans := info.get("weight_versions"):
            info["weight_versions"] = [spans[-1] | {"start": 0}]


Rows = list[bytes]
_EXPERTS: Mapping[str, Callable[[Rows, int], Rows]] = {
    "experts-of-the-last-token-missing": lambda rows, prompt: rows[:-1] if len(rows) - prompt > 7 else rows,
    "experts-of-the-prompt-are-zero": lambda rows, prompt: [
        bytes(len(row)) if place < prompt else row for place, row in enumerate(rows)
    ],
    "experts-are-no-ids": lambda rows, _: [row[:1] + b"\x10" + row[2:] for row in rows],
    **dict.fromkeys(
        ("experts-shifted-in-streams", "experts-rotated"), lambda rows, _: [rows[-1], *rows[:-1]]
    ),
}
"""For each fault: the change of the rows of routed experts.

The second argument is the number of rows of the prompt.
"""


@act_at("answers", *_EXPERTS)
def _change_experts(fault: Fault, answer: Json) -> None:
    start = fault.request.get("routed_experts_start_len") or 0
    for info in meta_infos(answer):
        if info.get("routed_experts"):
            prompt = info["prompt_tokens"] - start
            data = base64.b64decode(info["routed_experts"])
            width = len(data) // (prompt + max(info["completion_tokens"] - 1, 0))
            rows = [data[first : first + width] for first in range(0, len(data), width)]
            changed = _EXPERTS[fault.known.name](rows, prompt)
            info["routed_experts"] = base64.b64encode(b"".join(changed)).decode()


@act_at("event")
def _created_changes(fault: Fault, event: Object) -> None:
    if "created" in event:
        event["created"] += fault.events


@act_at("answered")
def _abort_all_is_an_error(fault: Fault, status: int, answer: Json) -> tuple[int, Json]:
    reasons = [info.get("finish_reason") or {} for info in meta_infos(answer)]
    if fault.request.get("rid") is None and any(reason.get("type") == "abort" for reason in reasons):
        return 503, {"error": {"message": "the request was aborted", "code": 503}}
    return status, answer


_siblings: dict[str, list[int]] = {}
"""The prompt ids of earlier requests that have continued a turn, by the id of the turn."""
_MOST_SIBLINGS = 256
"""The maximum number of turns to remember. A scenario continues the same turn several times in a row."""


_aborted: dict[str, list[int]] = {}
"""The ids of the latest aborted turn of each session."""


def _session(body: Object) -> str:
    return str((body.get("session_params") or {}).get("id") or "")


@act_at("asked", "aborted-turn-stays")
def _after_the_aborted_turn(body: Object) -> Object:
    if stays := _aborted.pop(_session(body), []):
        body["input_ids"] = [*stays, *body["input_ids"]]
    return body


@act_at("event", "aborted-turn-stays")
def _aborted_turn(fault: Fault, event: Object) -> None:
    if (session := _session({**fault.request})) and finish_type(event) == "abort":
        _aborted[session] = fault.request["input_ids"]


@act_at("asked")
def _session_gathers_its_branches(body: Object) -> Object:
    if before := (body.get("session_params") or {}).get("rid"):
        if len(_siblings) > _MOST_SIBLINGS:
            _siblings.clear()
        _siblings[before] = body["input_ids"] = [*_siblings.get(before, ()), *body["input_ids"]]
    return body
