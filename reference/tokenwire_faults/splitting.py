"""Faults of the split pipeline, in which one server renders and derenders what another one runs."""

from __future__ import annotations

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, messages_of


@act_at("whole")
def _derendered_events_have_no_text(answer: Json) -> None:
    for delta in messages_of(answer.get("chunk")):
        delta.pop("content", None)
