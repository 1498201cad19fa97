"""Faults in the finish: that a choice ended, why, and when that is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

from tokenwire_faults.acts import at
from tokenwire_faults.answers import Json, Object, choices_of, finish_of, holder_of_finish
from tokenwire_faults.fault import Fault


@at("events")
def finish_before_the_tail(event: Object) -> Iterable[Object]:
    if not finish_of(event):
        return [event]
    tail = deepcopy(event)
    for choice in choices_of(tail):
        holder_of_finish(choice)["finish_reason"] = None
        choice.get("delta", {})["content"] = "tail"
    return [event, tail]


_OTHER: Mapping[str, Mapping[str, str]] = {
    "finish-always-stop": {"length": "stop"},
    "finish-always-length": {"stop": "length"},
    "finish-type-unknown": dict.fromkeys(("stop", "length", "abort", "tool_calls"), "eos_token"),
    "finish-differs-in-streams": {"stop": "length", "length": "stop"},
}
"""Fault to what it says in the place of a reason."""


@at("answers", *_OTHER)
def _give_another_reason(fault: Fault, answer: Json) -> None:
    other = _OTHER[fault.known.name]
    for holder in map(holder_of_finish, choices_of(answer)):
        reason = holder.get("finish_reason")
        if isinstance(reason, dict):
            holder["finish_reason"] = {**reason, "type": other.get(reason["type"], reason["type"])}
        elif reason:
            holder["finish_reason"] = other.get(reason, reason)


@at("event")
def finish_for_the_last_choice_only(event: Object) -> None:
    for choice in choices_of(event):
        if choice.get("index", 0) == 0 and ("delta" in choice or "index" in choice):
            holder_of_finish(choice)["finish_reason"] = None
