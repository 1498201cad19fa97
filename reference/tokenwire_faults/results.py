"""Faults of endpoints that do not sample, such as `/v1/embeddings`."""

from __future__ import annotations

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Object
from tokenwire_faults.fault import Fault


@act_at("whole")
def _truncation_is_not_counted(fault: Fault, answer: Object) -> None:
    if fault.request.get("truncate_prompt_tokens") and "usage" in answer:
        answer["usage"] |= dict.fromkeys(("prompt_tokens", "total_tokens"), len(fault.request["input"]))
