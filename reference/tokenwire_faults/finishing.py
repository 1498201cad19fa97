"""Faults in the finish: it is missing, has a wrong reason, or comes at a wrong time."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Object, choices_of, finish_of, holder_of_finish


@act_at("events")
def _finish_before_the_tail(event: Object) -> Iterable[Object]:
    if not finish_of(event):
        return [event]
    tail = deepcopy(event)
    for choice in choices_of(tail):
        holder_of_finish(choice)["finish_reason"] = None
        choice.get("delta", {})["content"] = "tail"
    return [event, tail]


@act_at("event")
def _finish_for_the_last_choice_only(event: Object) -> None:
    for choice in choices_of(event):
        if choice.get("index", 0) == 0 and ("delta" in choice or "index" in choice):
            holder_of_finish(choice)["finish_reason"] = None
