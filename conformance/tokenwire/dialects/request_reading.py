"""Parses the body of a request into `Asked`. A table has the parser of each field.

A body is untrusted: a value of the wrong type counts as not set, and does not affect other fields.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from tokenwire.ask import SAMPLING, Asked, SentField, Turn
from tokenwire.dialects.request_binding import RequestBinding
from tokenwire.dialects.request_keys import NO_NAME, request_keys
from tokenwire.dialects.request_values import (
    budgets_of,
    fields_by_prompt,
    gather,
    id_prompts,
    id_rows,
    ints_in,
    is_greedy,
    is_text,
    is_uniform,
    name_or_empty,
    read_fields,
    texts_in,
)
from tokenwire.record import as_list, integer
from tokenwire.wire import strict_json
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import ABSENT, Keys, find, remove

_ALL = -1
"""A value for the number of top logprobs that means the whole vocabulary."""


class BodyReading:
    """A request body, with values that several fields depend on."""

    def __init__(self, binding: RequestBinding, request: HttpRequest, body: Mapping[str, Any]) -> None:
        self.binding = binding
        self.body = body
        self.headers = {name.lower(): value for name, value in request.headers}
        """The headers by lower-case name. Of repeated headers, the last one counts."""

    def at(self, keys: Keys | None) -> Any:
        """Return the value at a place in the body; ABSENT if `keys` is None."""
        return ABSENT if keys is None else find(self.body, keys)

    @cached_property
    def stated(self) -> dict[str, tuple[str, list[Any]]]:
        """Map each field to its name in the body, and to its values, one for each item of a batch.

        If a field has several places, the first one that is present counts.
        """
        stated: dict[str, tuple[str, list[Any]]] = {}
        for name, places in self.binding.fields.items():
            for keys in places:
                values = gather(self.body, keys) if keys[0] in self.body else []
                if any(value is not ABSENT for value in values):
                    stated[name] = str(keys[-1]), values
                    break
        return stated

    @cached_property
    def by_field(self) -> dict[str, Any]:
        """Return the JSON value of each known field, from the body, a header, a list, or the default."""
        values = {name: self._value_of(name) for name in self.binding.fields} | self._counted()
        headers = {name: header.lower() for name, header in self.binding.headers.items()}
        values |= {name: self.headers[header] for name, header in headers.items() if header in self.headers}
        return values | {
            name: row.word in (as_list(self.at(row.in_)) or ()) for name, row in self.binding.listed.items()
        }

    def _value_of(self, name: str) -> Any:
        """Return the value of a field, or its default; a tuple of values if the items of a batch differ."""
        default = self.binding.defaults.get(name)
        if name not in self.stated:
            return default
        values = [default if value is ABSENT else value for value in self.stated[name][1]]
        return values[0] if all(value == values[0] for value in values) else tuple(values)

    def _counted(self) -> dict[str, Any]:
        """Return the fields that are set by a number of top logprobs:

        `logprobs`, `top_logprobs`, `logprob_start`.
        """
        counts = self.binding.counts
        numbers = {name: self.at(count.at) for name, count in counts.items()}
        asked = {
            name: number
            for name, number in numbers.items()
            if type(number) is int and (number == _ALL or number >= counts[name].least)
        }
        by_field: dict[str, Any] = {}
        if "logprobs" in asked:
            by_field |= {"logprobs": True, "top_logprobs": asked["logprobs"]}
        if "logprob_start" in asked:
            by_field["logprob_start"] = 0
        return by_field

    @cached_property
    def typed(self) -> dict[str, Any]:
        """Return the values of fields. Values of the wrong type are left out."""
        logit_fields = {name: self.at(keys) for name, keys in self.binding.logit_fields.items()}
        return read_fields(self.by_field | logit_fields)

    @cached_property
    def logprobs(self) -> bool:
        """True if the request enables logprobs."""
        return bool(self.typed.get("logprobs", False))

    @cached_property
    def chosen_in_top(self) -> tuple[int, ...]:
        """Return the ids whose logprobs replace the top logprobs."""
        return ints_in(self.at(self.binding.chosen_in_top)) if self.logprobs else ()

    def asks(self, name: str) -> bool:
        """True if a flag is set, directly or by another field that implies it.

        If the flag needs another field, that field must be set as well.
        """
        binding = self.binding
        implied_by = (other for other, implied in binding.implies.items() if name in implied)
        asked = any(self.by_field.get(field) is True for field in (name, *implied_by))
        return asked and (name not in binding.only_with or self.by_field.get(binding.only_with[name]) is True)

    @cached_property
    def found(self) -> dict[str, Any]:
        """Return the prompts in the body, by form.

        If one field may have text or ids, any value that is not text counts as ids.
        """
        # The endpoint's own place comes last, because it takes precedence over the place of another family.
        binding = self.binding
        places = (*binding.prompt_else.items(), *binding.prompt.items())
        found = {name: value for name, keys in places if (value := self.at(keys)) is not ABSENT}
        if binding.prompt.get("text") == binding.prompt.get("input_ids"):
            other = "input_ids" if is_text(found.get("text")) else "text"
            found.pop(other, None)
        return found

    @cached_property
    def text(self) -> Any:
        """Return the prompt as text or as messages; None if it has only ids."""
        return self.found.get("text", self.found.get("messages"))

    @cached_property
    def ids(self) -> tuple[tuple[tuple[int, ...], ...] | None, bool]:
        """Return the prompts as ids, and True if the request has a list of prompts, as ids or as text."""
        input_ids, listed = id_prompts(self.found.get("input_ids"))
        if isinstance(self.text, list) and "text" in self.found and is_text(self.text):
            listed = listed or not input_ids
        return input_ids, listed

    @cached_property
    def prompts(self) -> int:
        """Return the number of prompts."""
        input_ids, listed = self.ids
        if input_ids:
            return len(input_ids)
        return len(self.text) if listed and isinstance(self.text, list) else 1


def _adapter(reading: BodyReading) -> SentField | None:
    """Return the adapter (such as a LoRA adapter) that a request names; None if it names none."""
    binding = reading.binding
    named = reading.at(binding.adapter)
    if binding.adapter and named not in NO_NAME:
        return SentField(str(binding.adapter[-1]), (named,))
    model = name_or_empty(reading.at(binding.model)) if binding.adapter_behind else ""
    name = model.partition(binding.adapter_behind)[2] if model else ""
    return SentField("model", (name,)) if name else None


def _rank(reading: BodyReading) -> int | None:
    """Return the data-parallel rank that a request names in a field or in a header; None if it names none."""
    sent = reading.headers.get(reading.binding.rank_header.lower(), "")
    found = [integer(reading.at(keys)) for keys in reading.binding.rank]
    found.append(int(sent) if re.fullmatch(r"-?\d{1,9}", sent, re.ASCII) else None)
    return next((rank for rank in found if rank is not None), None)


def _sent(reading: BodyReading) -> dict[str, SentField]:
    """Return all known fields and prompts that the body contains, with their values."""
    binding = reading.binding
    beside = [(name, binding.prompt[name]) for name in reading.found]
    beside += [(name, count.at) for name, count in binding.counts.items()]
    chosen = {"chosen_in_top": binding.chosen_in_top, "prompt_chosen": binding.prompt_chosen}
    beside += [(name, keys) for name, keys in chosen.items() if keys is not None]
    rows = [(name, *sent) for name, sent in reading.stated.items()]
    rows += [(name, str(keys[-1]), gather(reading.body, keys)) for name, keys in beside]
    sent_fields: dict[str, SentField] = {}
    for name, wire_name, values in rows:
        there = tuple(value for value in values if value is not ABSENT)
        if there:
            sent_fields.setdefault(name, SentField(wire_name, there))
    return sent_fields


def _is_set(value: Any) -> bool:
    """True if a request field that enables an output is true, or has rows of ids."""
    return value is True or bool(id_rows(value))


_READERS: Mapping[str, Callable[[BodyReading], Any]] = {
    "prompts": lambda reading: reading.prompts,
    "batch": lambda reading: reading.ids[1] or reading.typed.get("n", 1) > 1,
    "input_ids": lambda reading: reading.ids[0],
    "texts": lambda reading: texts_in(reading.found.get("text")),
    "text_prompt": lambda reading: bool(reading.text),
    "budgets": lambda reading: budgets_of(reading.by_field.get("max_new_tokens")),
    "greedy": lambda reading: is_greedy(reading.by_field),
    "chosen_in_top": lambda reading: reading.chosen_in_top,
    "prompt_chosen": lambda reading: id_rows(reading.at(reading.binding.prompt_chosen)),
    "prompt_chosen_start": lambda reading: integer(reading.at(reading.binding.prompt_chosen_start)) or 0,
    "wanted": lambda reading: tuple(
        wanted for keys, wanted in reading.binding.wanted.items() if _is_set(reading.at(keys))
    ),
    "constraints": lambda reading: reading.binding.constraint.read(reading.body),
    "tools": lambda reading: reading.binding.tool and reading.binding.tool.rule(reading.body),
    "media": lambda reading: any(
        reading.at(place) not in (ABSENT, None, []) for place in reading.binding.media
    ),
    "model": lambda reading: name_or_empty(reading.at(reading.binding.model)),
    "adapter": _adapter,
    "uniform": lambda reading: is_uniform(reading.by_field),
    "truncate": lambda reading: integer(reading.at(reading.binding.truncate)),
    "most": lambda reading: integer(reading.at(reading.binding.most)),
    "rank": _rank,
    "sent": _sent,
    "return_prompt_token_ids": lambda reading: reading.asks("return_prompt_token_ids"),
    "return_token_ids": lambda reading: reading.asks("return_token_ids"),
    "return_meta_info": lambda reading: reading.asks("return_meta_info"),
    "logprob_texts": lambda reading: reading.asks("logprob_texts") and reading.logprobs,
    "continuous_usage": lambda reading: reading.asks("continuous_usage"),
}
"""The parsers of fields of `Asked` that need more than the field's own value.

`RULES` has the types of the others.
"""
_ONLY_IF: Mapping[str, Callable[[BodyReading], bool]] = {
    # Without logprobs, these options have no effect. If chosen ids replace the top logprobs (vLLM's
    # logprob_token_ids), the response has no top logprobs.
    "top_logprobs": lambda reading: reading.logprobs and not reading.chosen_in_top,
    "chosen_ids": lambda reading: reading.logprobs,
    "logprob_start": lambda reading: (
        reading.typed["logprob_start"] >= 0
        and (reading.logprobs or "logprob_start" in reading.binding.counts)
    ),
}
"""The condition under which a field has an effect."""


def read_request(binding: RequestBinding, request: HttpRequest) -> Asked:
    """Parse a request. If its body is not a JSON object, the result has only defaults, and no keys."""
    body = _json_body(request)
    if not isinstance(body, dict):
        return Asked()
    if binding.history is not None and find(body, (*binding.history, "rid")) is not ABSENT:
        return _turn(binding, request, body, binding.history)
    reading = BodyReading(binding, request, body)
    values = {
        name: value
        for name, value in reading.typed.items()
        if name not in _ONLY_IF or _ONLY_IF[name](reading)
    }
    values |= {name: read(reading) for name, read in _READERS.items()}
    asked = Asked(**values)
    keys = request_keys(binding, body, reading.by_field, asked, reading.found)
    if keys is None:
        return asked
    asked = dataclasses.replace(asked, **vars(keys))
    by_prompt = tuple(
        # The items of a batch may have different sampling parameters.
        dataclasses.replace(asked, greedy=is_greedy(fields), **read_fields(fields, SAMPLING))
        for fields in fields_by_prompt(reading.by_field, reading.prompts)
    )
    return dataclasses.replace(asked, by_prompt=by_prompt) if by_prompt else asked


def _turn(binding: RequestBinding, request: HttpRequest, body: Mapping[str, Any], history: Keys) -> Asked:
    """Parse a request that continues a session.

    The engine's prompt is the session's history and this prompt.
    """
    session = find(body, history)
    alone = copy.deepcopy(dict(body))
    remove(alone, history)
    asked = read_request(binding, dataclasses.replace(request, body=alone, raw_body=None))
    rid, offset, ids = session["rid"], integer(session.get("offset") or 0), asked.input_ids or ()
    known = isinstance(rid, str | None) and session.keys() <= {"id", "rid", "offset"} and len(ids) == 1
    name = str(session.get("id") or "")
    turn = Turn(rid or "", offset, ids[0], name) if known and offset is not None else None
    unknown: dict[str, Any] = {"input_ids": None, "texts": (), "text_prompt": False}
    key = f"{asked.key} after {turn.after} {turn.offset}" if asked.key and turn is not None and rid else ""
    return dataclasses.replace(asked, turn=turn, key=key, ids_key="", prompt_key="", **unknown)


def _json_body(request: HttpRequest) -> Any:
    if request.raw_body is None:
        return request.body
    try:
        return strict_json.loads(request.raw_body.decode())
    except ValueError:
        return None
