"""Faults in token-in-token-out: the server runs other ids than it received, or reports
other ids than it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, Object, choices_of, finish_of
from tokenwire_faults.fault import Fault
from tokenwire_faults.primitives import in_prompts
from tokenwire_reference.doors.reader import Emission, Reader

PROMPT_IDS = "prompt_token_ids"
BOS = 1
OTHER_LOGITS = {"5": 100}


def _with_prompt(emission: Emission, token_ids: Sequence[int]) -> Emission:
    """Return an emission that reports another prompt."""
    return replace(emission, record=replace(emission.record, prompt_token_ids=tuple(token_ids)))


@act_at("answers")
def _prompt_ids_of_the_first_prompt(fault: Fault, answer: Json) -> None:
    for choice in choices_of(answer):
        if choice.get(PROMPT_IDS):
            choice[PROMPT_IDS] = fault.memory.setdefault("first", choice[PROMPT_IDS])


@act_at("taken")
def _prompt_ids_grow(reader: Reader, emission: Emission) -> Emission:
    grown = [*reader.request.prompt_token_ids, *reader.request.output_ids[: reader.taken_ids]]
    return _with_prompt(emission, grown)


@act_at("taken")
def _chat_runs_other_ids(reader: Reader, emission: Emission) -> Emission:
    return _with_prompt(emission, reader.request.prompt_token_ids[1:])


@act_at("asked")
def _prompt_retokenised(fault: Fault, body: Object) -> Object:
    tokenizer = fault.tokenizer
    if tokenizer is None:
        return body
    if "input_ids" in body:
        body["input_ids"] = in_prompts(
            body["input_ids"], lambda ids: tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)
        )
    return body


@act_at("asked")
def _images_put_in_again(fault: Fault, body: Object) -> Object:
    ids = body.get("input_ids")
    if fault.tokenizer is None or not ids or not body.get("image_data"):
        return body
    return {**body, "input_ids": None, "text": fault.tokenizer.decode(ids)}


@act_at("taken")
def _output_retokenised(fault: Fault, emission: Emission) -> Emission:
    if fault.tokenizer is None:
        return emission
    return replace(emission, output_ids=fault.tokenizer.encode(emission.text, add_special_tokens=False))


@act_at("asked")
def _long_prompts_drift(body: Object) -> Object:
    params = body.get("sampling_params")
    if len(body.get("input_ids") or ()) > 16 and isinstance(params, dict):
        params["logit_bias"] = OTHER_LOGITS
    return body


@act_at("asked")
def _own_ids_refused(body: Object) -> Object:
    # The fault affects only prompts that are longer than the prompt of the suite.
    grown = len(body.get("input_ids") or ()) > 12
    return {**body, "input_ids": []} if grown else body


@act_at("event")
def _prompt_ids_in_the_last_event(event: Object) -> None:
    for choice in choices_of(event) if finish_of(event) is None else ():
        choice.pop(PROMPT_IDS, None)


@act_at("taken")
def _two_beginnings(fault: Fault, emission: Emission) -> Emission:
    prompt = emission.record.prompt_token_ids
    if fault.request.get("input_ids") or not prompt:
        return emission
    return _with_prompt(emission, [BOS, BOS, *prompt])


def _echoed(fault: Fault) -> str:
    """Return the prompt as text if the request asks for an echo; otherwise return an empty text."""
    given = fault.request.get("prompt")
    return str(given) if fault.request.get("echo") and isinstance(given, str) else ""


@act_at("answers")
def _echo_starts_late(fault: Fault, answer: Json) -> None:
    for choice in choices_of(answer) if _echoed(fault) else ():
        if choice.get("text", "").startswith(_echoed(fault)):
            choice["text"] = choice["text"][2:]


@act_at("event")
def _echo_in_every_event(fault: Fault, event: Object) -> None:
    for choice in choices_of(event):
        if not choice.get("text", "").startswith(_echoed(fault)):
            choice["text"] = _echoed(fault) + choice["text"]
