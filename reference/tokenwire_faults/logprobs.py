"""Faults in logprobs: of output tokens, of top logprobs, of requested ids, and of prompt tokens."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, Object, choices_of, meta_infos
from tokenwire_faults.deliveries import OutputRow, edited_row, with_series
from tokenwire_faults.fault import Fault
from tokenwire_faults.primitives import Change, changed
from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.json_answer import to_json
from tokenwire_reference.doors.reader import Emission

SELECTED, TOP, CHOSEN = "output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"

_ONE_WRONG: Mapping[str, tuple[int, Change]] = {
    "first-logprob-zero": (0, {"is": 0.0}),
    "eighth-logprob-too-low": (7, {"plus": -3.0}),
}
"""For each fault: the position of the wrong logprob, and the change of the logprob."""


@act_at("row", *_ONE_WRONG)
def _give_one_a_wrong_logprob(fault: Fault, request: Request, row: OutputRow) -> OutputRow:
    position, change = _ONE_WRONG[fault.known.name]
    # Requests with top logprobs are left unchanged, because a comparison with them would reveal the change.
    if request.top_logprobs_num or not row.start <= position < row.end or SELECTED not in row.series:
        return row
    entries = list(row.series[SELECTED])
    logprob, *others = entries[position - row.start]
    entries[position - row.start] = [changed(logprob, change), *others]
    return with_series(row, **{SELECTED: entries})


@act_at("event", "logprobs-minus-infinity")
def _name_infinity(event: Object) -> None:
    for info in meta_infos(event):
        for entry in info.get(SELECTED, ())[:1]:
            entry[0] = "-Infinity"


@act_at("frame")
def _logprobs_minus_infinity(frame: bytes) -> Iterable[bytes]:
    return [_infinite(frame)]


@act_at("answered", "logprobs-minus-infinity")
def _answer_with_infinity(status: int, answer: Json) -> tuple[int, Json]:
    _name_infinity(answer)
    return status, _infinite(to_json(answer))


def _infinite(written: bytes) -> bytes:
    return written.replace(b'"-Infinity"', b"-Infinity")


@act_at("row")
def _logprobs_of_the_next_id(row: OutputRow) -> OutputRow:
    entries = list(row.series.get(SELECTED, ()))
    if len(entries) == 1:
        shifted = [[logprob, token_id + 1, text] for logprob, token_id, text in entries]
    else:
        shifted = entries[1:] + entries[-1:]
    return with_series(row, **{SELECTED: shifted}) if entries else row


@act_at("events")
def _chat_logprobs_lost_with_empty_text(event: Object) -> Iterable[Object]:
    lost = any(
        choice.get("logprobs") and not choice.get("delta", {}).get("content") for choice in choices_of(event)
    )
    return [] if lost else [event]


@act_at("taken")
def _top_logprobs_overwritten_by_text(fault: Fault, emission: Emission) -> Emission:
    rows = emission.series.get(TOP)
    if fault.tokenizer is None or rows is None:
        return emission
    changed_rows = []
    for row in rows:
        texts = [fault.tokenizer.decode([entry[1]]) for entry in row]
        last = dict(zip(texts, (entry[0] for entry in row), strict=True))
        changed_rows.append([[last[text], *entry[1:]] for text, entry in zip(texts, row, strict=True)])
    return with_series(emission, **{TOP: changed_rows})


@act_at("answers")
def _text_offsets_count_hidden_tokens(fault: Fault, answer: Json) -> None:
    counted: Counter[int] = fault.memory.setdefault("counted", Counter())
    for choice in choices_of(answer):
        lists, index = choice.get("logprobs") or {}, choice.get("index", 0)
        if "text_offset" in lists:
            *offsets, end = accumulate(map(len, lists["tokens"]), initial=counted[index])
            lists["text_offset"], counted[index] = offsets, end


@act_at("row", "streams-forget-the-temperature", "logprobs-ignore-the-temperature")
def _at_temperature_1(request: Request, row: OutputRow) -> OutputRow:
    """Return logprobs multiplied by the temperature, so that their differences are those of the model's
    logits.
    """
    warmth = request.sampling.temperature
    if warmth < 1e-6:
        return row
    cooled = {"each_logprob": {"times": warmth}}
    return edited_row(row, {SELECTED: cooled, TOP: {"each": cooled}})


@act_at("row")
def _streams_leave_out_the_bias(request: Request, row: OutputRow) -> OutputRow:
    biases = request.sampling.logit_bias
    if not biases or TOP not in row.series:
        return row
    series: dict[str, list[Any]] = {SELECTED: [], TOP: []}
    for chosen, top in zip(row.series[SELECTED], row.series[TOP], strict=True):
        added = sum(math.exp(entry[0]) * math.expm1(-biases.get(entry[1], 0.0)) for entry in top)
        less = {entry[1]: biases.get(entry[1], 0.0) + math.log1p(added) for entry in (chosen, *top)}
        selected, *others = ([entry[0] - less[entry[1]], *entry[1:]] for entry in (chosen, *top))
        series[SELECTED].append(selected)
        series[TOP].append(sorted(others, key=lambda entry: -entry[0]))
    return with_series(row, **series)


@act_at("row")
def _streams_renormalise_logprobs(request: Request, row: OutputRow) -> OutputRow:
    k = request.sampling.top_k
    if not 1 < k <= request.top_logprobs_num or TOP not in row.series:
        return row
    masses = [math.log(sum(math.exp(entry[0]) for entry in top[:k])) for top in row.series[TOP]]

    def less(entry: Any, mass: float) -> list[Any]:
        return [entry[0] - mass, *entry[1:]]

    tops = [[less(entry, mass) for entry in top] for top, mass in zip(row.series[TOP], masses, strict=True)]
    entries = list(map(less, row.series.get(SELECTED, ()), masses))
    return with_series(row, **{TOP: tops}, **({SELECTED: entries} if SELECTED in row.series else {}))


@act_at("answers")
def _alternatives_have_no_text(answer: Json) -> None:
    for choice in choices_of(answer):
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            for other in entry.get("top_logprobs") or ():
                if other["token"] != entry["token"]:
                    other["token"], other["bytes"] = "", []


def _third_entry(fault: Fault, answer: Json) -> Iterator[Object]:
    """Yield the logprobs of the third token of a chat, in the part of the answer that has it."""
    for choice in choices_of(answer):
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            place = fault.memory["placed"] = fault.memory.get("placed", -1) + 1
            if place == 2:
                yield entry


@act_at("answers")
def _one_logprob_is_a_placeholder(fault: Fault, answer: Json) -> None:
    for entry in _third_entry(fault, answer):
        entry["logprob"] = -9999.0
        for other in entry.get("top_logprobs") or ():
            other["logprob"] = -9999.0 if other["token"] == entry["token"] else -10000.0


@act_at("answers")
def _lost_logprob_is_a_placeholder(fault: Fault, answer: Json) -> None:
    for entry in _third_entry(fault, answer):
        entry |= {"logprob": -9999.0, "rank": None, "top_logprobs": []}


_OF_PROMPT, _AS_FILE = "input_token_ids_logprobs", "prompt_token_id_logprobs"


def _edit_chosen_of_prompt(answer: Json, edit: Callable[[list[Any]], list[Any]]) -> None:
    """Replace the positions of the chosen-id logprobs of a prompt, in the format of either family."""
    for info in meta_infos(answer):
        if info.get(_OF_PROMPT):
            info[_OF_PROMPT] = edit(info[_OF_PROMPT])
    if isinstance(answer, dict) and answer.get(_AS_FILE):
        rows = numpy.load(io.BytesIO(base64.b64decode(answer[_AS_FILE])))
        with io.BytesIO() as file:
            numpy.save(file, numpy.array(edit(list(rows))))
            answer[_AS_FILE] = base64.b64encode(file.getbuffer()).decode()


@act_at("answers")
def _chosen_prompt_logprobs_lack_the_last(answer: Json) -> None:
    _edit_chosen_of_prompt(answer, lambda positions: positions[:-1])


@act_at("answers")
def _chosen_prompt_logprobs_come_late(answer: Json) -> None:
    def edit(positions: list[Any]) -> list[Any]:
        first = 1 + (positions[0] is None)
        return [*positions[:first], *positions[first - 1 : -1]]

    _edit_chosen_of_prompt(answer, edit)


def _entries_with_ranks(value: Json) -> Iterator[Object]:
    """Yield the objects of an answer that contain the rank of a token, at any depth."""
    if isinstance(value, dict):
        if {"logprob", "rank"} <= value.keys():
            yield value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _entries_with_ranks(inner)


@act_at("answers")
def _every_rank_is_one(answer: Json) -> None:
    for entry in _entries_with_ranks(answer):
        entry["rank"] = 1
