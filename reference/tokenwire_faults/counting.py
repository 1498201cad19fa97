"""Faults in counters, usage and request ids."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, Object, choices_of, meta_infos
from tokenwire_faults.deliveries import OutputRow
from tokenwire_faults.fault import Fault


@act_at("event")
def _prompt_tokens_grow(event: Object) -> None:
    for info in meta_infos(event):
        info["prompt_tokens"] += info["completion_tokens"] - 1


@act_at("row")
def _cached_tokens_counted_twice(row: OutputRow) -> OutputRow:
    return replace(row, cached_tokens=row.cached_tokens + row.prompt_tokens + 1)


@act_at("row")
def _cached_details_doubled(row: OutputRow) -> OutputRow:
    count = row.cached_tokens
    return replace(row, cached_tokens_details={"device": count, "host": count}) if count else row


@act_at("row")
def _cached_details_of_nothing(row: OutputRow) -> OutputRow:
    return row if row.cached_tokens else replace(row, cached_tokens_details={"device": 0, "host": 0})


@act_at("answers")
def _cached_tokens_of_other_questions(answer: Json) -> None:
    for usage in (answer.get("usage"),) if isinstance(answer, dict) else ():
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        if isinstance(usage, dict) and isinstance(details, dict):
            details["cached_tokens"] = usage["prompt_tokens"] - 1


def _usage_of(answer: Json) -> Object:
    """Return the usage of an answer or an event; empty without one."""
    return (answer.get("usage") if isinstance(answer, dict) else None) or {}


@act_at("whole")
def _usage_of_one_choice(fault: Fault, answer: Json) -> None:
    if (usage := _usage_of(answer)) and "choices" in answer:
        usage["completion_tokens"] //= max(1, len(answer["choices"]), fault.request.get("n") or 1)
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


@act_at("event")
def _continuous_usage_of_the_event(event: Object) -> None:
    if (usage := _usage_of(event)) and event.get("choices"):
        usage["completion_tokens"] = 1
        usage["total_tokens"] = usage["prompt_tokens"] + 1


@act_at("answers")
def _reasoning_exceeds_the_output(answer: Json) -> None:
    for counts in (_usage_of(answer), *meta_infos(answer)):
        if "reasoning_tokens" in counts:
            counts["reasoning_tokens"] = counts["completion_tokens"] + counts["prompt_tokens"]


@act_at("events")
def _request_id_for_each_event(event: Object) -> Iterable[Object]:
    for info in meta_infos(event):
        info["id"] = uuid.uuid4().hex
    return [{**event, "id": uuid.uuid4().hex} if "choices" in event else event]


@act_at("asked")
def _request_id_replaced(body: Object) -> Object:
    return {**body, "rid": uuid.uuid4().hex} if body.get("rid") else body


@act_at("answers")
def _one_request_id_for_all(fault: Fault, answer: Json) -> None:
    if fault.request.get("rid") or fault.request.get("request_id"):
        return
    if isinstance(answer, dict):
        answer.update({name: "chatcmpl-1" for name in ("id", "request_id") if name in answer})
    for position, info in enumerate(meta_infos(answer)):
        info["id"] = f"request-{position}"


_NO_DRAFTS = {
    "mean_acceptance_length": 1.0,
    "draft_acceptance_rate": 0.0,
    "acceptance_histogram": [1],
    "num_spec_steps": 1,
    "num_accepted_draft_tokens": 0,
    "num_draft_tokens": 1,
    "num_spec_tokens": 1,
}
"""Counts of one draft that was wrong."""


@act_at("event")
def _draft_counts_in_each_event(event: Object) -> None:
    if any(choice.get("token_ids") for choice in choices_of(event)):
        event["metrics"] = {"speculative_decoding": dict(_NO_DRAFTS)}


@act_at("whole")
def _draft_counts_of_several_choices(answer: Json) -> None:
    if isinstance(answer, dict) and len(choices_of(answer)) > 1:
        answer["metrics"] = {"speculative_decoding": dict(_NO_DRAFTS)}
