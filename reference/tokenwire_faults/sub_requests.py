"""Faults in sub-requests: the samples and prompts of one HTTP request."""

from __future__ import annotations

from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, Object, choices_of, meta_infos
from tokenwire_faults.fault import Fault
from tokenwire_reference.doors.reader import Emission, Reader


@act_at("whole")
def _last_choice_missing(answer: Json) -> None:
    choices = choices_of(answer)
    if len(choices) > 1:
        choices.pop()


@act_at("answers")
def _samples_lose_their_retractions(fault: Fault, answer: Json) -> None:
    params = fault.request.get("sampling_params") or {}
    n = params.get("n", 1) if isinstance(params, dict) else 1
    for info in meta_infos(answer) if isinstance(answer, list) or n > 1 else ():
        info.pop("num_retractions", None)


@act_at("whole")
def _batch_padded(answer: Json) -> None:
    names = ("output_ids", "token_ids", "response_token_ids")
    rows = [choice[name] for choice in choices_of(answer) for name in names if choice.get(name)]
    longest = max(map(len, rows), default=0)
    for row in rows:
        row.extend([0] * (longest - len(row)))


@act_at("text")
def _stop_string_shown_in_later_choices(reader: Reader, text: str) -> str:
    matched = reader.finish.matched if reader.finish else None
    shown = reader.index > 0 and isinstance(matched, str) and not reader.request.sampling.no_stop_trim
    return text + str(matched) if shown else text


@act_at("asked")
def _one_budget_for_the_batch(body: Object) -> Object:
    params = body.get("sampling_params")
    if isinstance(params, list) and params and all(isinstance(entry, dict) for entry in params):
        for later in params[1:]:
            later["max_new_tokens"] = params[0].get("max_new_tokens")
    return body


@act_at("taken")
def _answers_change_places(fault: Fault, reader: Reader, emission: Emission) -> Emission:
    first: Reader = fault.memory.setdefault("first", reader)
    start = emission.completion_tokens - len(emission.output_ids)
    others = first.request.output_ids[start : min(first.end, emission.completion_tokens)]
    return replace(emission, output_ids=[*others, *emission.output_ids[len(others) :]])


_latest: list[tuple[Reader, int]] = []
"""The record that was emitted last, by any request, and its last id. The list has at most one entry."""


@act_at("taken")
def _ids_of_a_neighbour(reader: Reader, emission: Emission) -> Emission:
    if not emission.output_ids:
        return emission
    before = _latest.pop() if _latest else None
    _latest.append((reader, emission.output_ids[-1]))
    if before is None or before[0] is reader or before[0].finish:
        return emission
    return replace(emission, output_ids=[*emission.output_ids[:-1], before[1]])
