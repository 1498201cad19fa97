"""Faults of endpoints that do not sample, such as `/v1/embeddings`."""

from __future__ import annotations

import math
from typing import Any

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
            shares = dict(_shares_of(found))
            found["choice"] = min(shares, key=shares.__getitem__)


@act_at("whole")
def _decision_probabilities_are_of_the_vocabulary(answer: Object) -> None:
    for found in decided_in(answer):
        if isinstance(found.get("probabilities"), dict):
            found["probabilities"] = {name: share / 2 for name, share in _shares_of(found)}
        for entry in found["probabilities"] if isinstance(found.get("probabilities"), list) else ():
            entry["probability"] /= 2
        if "score" in found:
            found["score"] /= 2


def _shares_of(found: Object) -> list[tuple[Any, float]]:
    """Return the options of an answer with their probabilities."""
    given = found["probabilities"]
    if isinstance(given, dict):
        return list(given.items())
    return [(entry["value"], entry["probability"]) for entry in given]


@act_at("whole")
def _decision_usage_is_zero(answer: Object) -> None:
    if decided_in(answer):
        usage = answer["usage"]
        usage |= {name: 0 for name in ("input_tokens", "prompt_tokens") if name in usage}


@act_at("whole")
def _decision_yes_is_that_of_no(answer: Object) -> None:
    for found in decided_in(answer):
        if "noul" in found and "probabilities" in found:
            found["noul"] = found["probabilities"]["no"]


@act_at("whole")
def _decision_confidence_is_a_logprob(answer: Object) -> None:
    places = [*decided_in(answer), *(answer["diagnostics"].values() if "diagnostics" in answer else ())]
    for found in places:
        for name in ("confidence", "label_mass", "x_label_mass"):
            if name in found:
                found[name] = math.log(found[name] or 1e-30)


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
