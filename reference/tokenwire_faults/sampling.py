"""Faults in sampling: parameters of a request that do not reach the sampler."""

from __future__ import annotations

from copy import deepcopy

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, choices_of
from tokenwire_faults.fault import Fault


@act_at("whole")
def _samples_are_copies(fault: Fault, answer: Json) -> None:
    choices = choices_of(answer)
    prompts = fault.request.get("input_ids", fault.request.get("prompt"))
    batch = isinstance(prompts, list) and prompts and isinstance(prompts[0], list)
    for choice in () if batch else choices[1:]:
        kept = {"index": choice["index"]} if "index" in choice else {}
        info = choice.get("meta_info")
        choice.clear()
        choice.update(deepcopy(choices[0]) | kept)
        if info:
            choice["meta_info"]["id"] = info["id"]
