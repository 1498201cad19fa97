"""Faults of endpoints that do not sample, such as `/v1/embeddings`."""

from __future__ import annotations

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Object, decided_in
from tokenwire_faults.fault import Fault


@act_at("whole")
def _truncation_is_not_counted(fault: Fault, answer: Object) -> None:
    if fault.request.get("truncate_prompt_tokens") and "usage" in answer:
        answer["usage"] |= dict.fromkeys(("prompt_tokens", "total_tokens"), len(fault.request["input"]))


@act_at("whole")
def _decision_is_the_unlikeliest(answer: Object) -> None:
    for found in decided_in(answer):
        if "choice" in found:
            found["choice"] = min(found["probabilities"], key=found["probabilities"].get)


@act_at("whole")
def _decision_probabilities_are_of_the_vocabulary(answer: Object) -> None:
    for found in decided_in(answer):
        if "probabilities" in found:
            found["probabilities"] = {name: share / 2 for name, share in found["probabilities"].items()}
        if "score" in found:
            found["score"] /= 2


@act_at("whole")
def _decision_usage_is_zero(answer: Object) -> None:
    if decided_in(answer):
        answer["usage"]["input_tokens"] = 0


@act_at("whole")
def _decisions_depend_on_the_others(answer: Object) -> None:
    if len(found := decided_in(answer)) > 1:
        for one in found:
            if "noul" in one:
                one["noul"] = (one["noul"] + 0.5) % 1


@act_at("whole")
def _decisions_in_another_order(answer: Object) -> None:
    if len(found := decided_in(answer)) > 1:
        answer["answers"] = dict(zip(answer["answers"], [found[-1], *found], strict=False))
