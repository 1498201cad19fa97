"""Writes requests by the table of a dialect: the places of fields in a body, and the body for an ask.

`request_reading` parses a body back. `request_keys` decides which requests have comparable answers.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from tokenwire.ask import BANS, OMIT, PENALTIES, RULES, Ask, RequestFields, Wanted
from tokenwire.dialects.demands import (
    ConstraintBinding,
    ReasoningControls,
    Says,
    SchemaPlace,
    ToolBinding,
)
from tokenwire.dialects.history import HistoryBinding
from tokenwire.typed_table import typed
from tokenwire.wire.json_pointer import Keys, Pointer, parse, put

_NEED_LOGPROBS = ("logprob_start", "top_logprobs", "chosen_ids", "logprob_texts")
_OF_STREAMS = ("usage", "continuous_usage")
"""Fields that have an effect only in streams."""
_PROMPTS = ("input_ids", "text", "messages")
_NOTHING = RequestFields()
_ANY_MODEL = "default"
"""The model name if none is known. Servers with a single model accept any name."""


@dataclass(frozen=True)
class Unsupported:
    """The reason why an endpoint cannot express an ask."""

    reason: str


def _places(value: Any) -> tuple[Keys, ...]:
    """Parse one JSON pointer, or a list of pointers."""
    return tuple(map(parse, [value] if isinstance(value, str) else value))


@dataclass(frozen=True)
class _Count:
    """A numeric field that enables logprobs: its place, and the smallest number that enables them."""

    at: Pointer
    least: int = 0

    @classmethod
    def read(cls, value: Any) -> _Count:
        return cls(parse(value)) if isinstance(value, str) else typed(cls, value, "a count")


@dataclass(frozen=True)
class _Listed:
    """A flag that is set by a word in a list: the place of the list, and the word."""

    in_: Pointer
    word: str


def _nothing() -> Any:
    return field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RequestBinding:
    """The places of all fields of a request, from the `request` part of a dialect's table."""

    dialect: str
    model: Pointer | None = None
    prompt: Mapping[str, Pointer]
    media: Annotated[tuple[Keys, ...], _places] = ()
    """The places of media beside the prompt. The first one is the place of images."""
    prompt_else: Mapping[str, Pointer] = _nothing()
    """The places where requests of other server families have the prompt.

    These places are parsed, but never written.
    """
    batches: bool
    alone_in_a_list: bool = False
    """True if even a single prompt is written as a list."""
    fields: Mapping[str, Annotated[tuple[Keys, ...], _places]]
    logprob_count: Annotated[_Count, _Count.read] | None = None
    """The number of top logprobs, if it enables `logprobs`; None if a flag enables them."""
    prompt_logprob_count: Annotated[_Count, _Count.read] | None = None
    """The number of prompt logprobs, which enables the logprobs of the whole prompt."""
    listed: Mapping[str, _Listed] = _nothing()
    headers: Mapping[str, str] = _nothing()
    """Request headers that override a field, by field."""
    always: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    implies: Mapping[str, tuple[str, ...]] = _nothing()
    only_with: Mapping[str, str] = _nothing()
    """Fields that have an effect only together with another field: each field with the field that it needs.
    """
    defaults: Mapping[str, Any] = _nothing()
    constants: Mapping[Pointer, Any] = _nothing()
    beside_input_ids: Mapping[Pointer, Any] = _nothing()
    neutral: Mapping[Pointer, Any] = _nothing()
    same_ids_need: Mapping[Pointer, Any] = _nothing()
    cache_keys: tuple[Pointer, ...] = ()
    """Fields that divide the prefix cache: requests share it only if these values are equal."""
    adapter: Pointer | None = None
    """The place of the adapter's name, such as a LoRA adapter."""
    adapter_behind: str = ""
    """The separator between model and adapter in the model name; empty if the name cannot contain an adapter.
    """
    rank: tuple[Pointer, ...] = ()
    """Fields with the data-parallel rank that must serve the request."""
    rank_header: str = ""
    """The request header with the data-parallel rank."""
    history: Pointer | None = None
    """The place of the session data, for a request that continues an earlier one."""
    goes_on: str = ""
    """The field with the id of the response to continue; empty if there is none."""
    report_only: tuple[Pointer, ...] = ()
    forms: tuple[Pointer, ...] = ()
    """Fields that change how tokens are reported, and not which tokens are sampled."""
    asks: Mapping[Pointer, Any] = _nothing()
    """Fields that enable additional outputs.

    The value is the name of the output, or a list of names and pointers.
    """
    logit_bias: Pointer | None = None
    frequency_penalty: Pointer | None = None
    allowed_token_ids: Pointer | None = None
    bad_words: Pointer | None = None
    chosen_in_top: Pointer | None = None
    """The place of ids whose logprobs are listed in place of the top logprobs.

    It is parsed, but never written.
    """
    prompt_chosen: Pointer | None = None
    """The place of the rows of ids whose logprobs are requested at positions of the prompt."""
    prompt_chosen_start: Pointer | None = None
    """The place of the number of positions before the first row of `prompt_chosen`."""
    says: Says | None = None
    """Fields that force an exact output text by a grammar; None if the endpoint cannot do that."""
    tool: ToolBinding | None = None
    reasoning: ReasoningControls = field(default_factory=ReasoningControls)
    text_part: Mapping[str, Any] = _nothing()
    """Template of a content that is a list with one text: TEXT. Empty if a content is never a list."""
    texts_joined_by: str | None = None
    """The string that the server puts between the texts of a content, for a template that takes texts.

    None if it is not documented.
    """
    turns: HistoryBinding | None = None
    """The format of earlier turns with tool calls; None if the endpoint does not take any."""
    constraints: Mapping[Pointer, str] = _nothing()
    schema_as: SchemaPlace | None = None
    system: Pointer | None = None
    """The place of system messages outside of the messages; None if they are ordinary messages."""
    truncate: Pointer | None = None
    """The place of the number of tokens to which inputs are truncated."""
    most: Pointer | None = None
    """The place of the maximum number of results."""
    same_results: Mapping[str, Mapping[str, Any]] = _nothing()
    """Fields that return the same results in another format, by the name of the format."""

    def __post_init__(self) -> None:
        unknown = (self.fields.keys() - RULES.keys()) | (self.prompt.keys() - set(_PROMPTS))
        if unknown:
            raise ValueError(f"unknown field {sorted(unknown)[0]!r}; known fields are {sorted(RULES)}")

    @cached_property
    def counts(self) -> Mapping[str, _Count]:
        """Return the numeric fields that enable logprobs of the output or of the prompt."""
        named = {"logprobs": self.logprob_count, "logprob_start": self.prompt_logprob_count}
        return {name: count for name, count in named.items() if count is not None}

    @cached_property
    def limits(self) -> Mapping[str, Keys]:
        """Return the places of `truncate` and `most`, if the endpoint has them."""
        places = {"truncate": self.truncate, "most": self.most}
        return {name: keys for name, keys in places.items() if keys is not None}

    @cached_property
    def penalties(self) -> Mapping[str, Keys]:
        """Return the places of the penalties that the endpoint has."""
        return self._places_of(PENALTIES)

    @cached_property
    def logit_fields(self) -> Mapping[str, Keys]:
        """Return the places of the penalties and bans that the endpoint has."""
        return self._places_of((*PENALTIES, *BANS))

    def _places_of(self, names: Iterable[str]) -> Mapping[str, Keys]:
        places = {name: getattr(self, name) for name in names}
        return {name: keys for name, keys in places.items() if keys is not None}

    @cached_property
    def added(self) -> tuple[str, ...]:
        """The fields that the suite adds to all requests, without the token limit and the `report_only`
        fields.
        """
        needed = {*self.fields.get("max_new_tokens", ()), *self.report_only}
        return tuple(str(keys[0]) for keys in self.constants if keys not in needed)

    @cached_property
    def wanted(self) -> Mapping[Keys, Wanted]:
        """Return the output that each field of `asks` enables."""
        return {keys: _wanted(keys, names) for keys, names in self.asks.items()}

    @cached_property
    def constraint(self) -> ConstraintBinding:
        return ConstraintBinding(self.constraints, self.schema_as)

    def render(self, ask: Ask, model: str = "") -> dict[str, Any] | Unsupported:
        """Return the body for an ask, or the reason why the endpoint cannot express it."""
        if ask.prompts == 0 and not ask.raw:
            return Unsupported("the ask has no prompt")
        body: dict[str, Any] = {}
        if self.model is not None:
            put(body, self.model, model or _ANY_MODEL)
        for keys, value in self.constants.items():
            put(body, keys, value)
        for name in _PROMPTS:
            given = getattr(ask, name)
            if not given:
                continue
            if name not in self.prompt:
                return Unsupported(f"{self.dialect} takes no prompt as {name}")
            if name == "messages":
                self._put_messages(body, given)
                continue
            if not self.batches and (ask.batch or len(given) > 1):
                return Unsupported(f"{self.dialect} takes one prompt in a request")
            prompts = [list(ids) for ids in given] if name == "input_ids" else list(given)
            listed = ask.batch or len(prompts) > 1 or self.alone_in_a_list
            put(body, self.prompt[name], prompts if listed else prompts[0])
        # Chat with ids: SGLang also validates `messages`, so they must not be empty.
        if ask.input_ids and not ask.messages:
            for keys, value in self.beside_input_ids.items():
                put(body, keys, copy.deepcopy(value))
        for name, value in _fields_of(ask).items():
            if name in self.always or name in self.never or (name in _OF_STREAMS and not ask.stream):
                continue
            if name in self.counts:
                if name == "logprob_start" and value != 0:
                    return Unsupported(f"{self.dialect} gives the logprobs of a prompt from its beginning")
                # This number is both the flag for logprobs and the number of alternatives. 0 means only the
                # sampled token, or no logprobs.
                put(body, self.counts[name].at, max(ask.top_logprobs, self.counts[name].least))
                continue
            if name == "top_logprobs" and "logprobs" in self.counts:
                continue
            if name in self.listed:
                put(body, self.listed[name].in_, [self.listed[name].word])
                continue
            places = self.fields.get(name) or tuple(filter(None, [self.logit_fields.get(name)]))
            if not places:
                return Unsupported(f"{self.dialect} has no field for {name}")
            put(body, places[0], value)
        if ask.tools:
            if self.tool is None:
                return Unsupported(f"{self.dialect} has no tools")
            put(body, self.tool.at, [self.tool.written(tool) for tool in ask.tools])
        for name, value in ask.wrong.items():
            places = self._places(name)
            if not places:
                return Unsupported(f"{self.dialect} has no field for {name}")
            put(body, places[0], value)
        _lay_over(body, ask.raw)
        return body

    def _put_messages(self, body: dict[str, Any], messages: Iterable[Mapping[str, Any]]) -> None:
        """Write the messages. If the endpoint has a field for system messages, they are written there."""
        apart = [
            message["content"] for message in messages if self.system and message.get("role") == "system"
        ]
        if self.system is not None and apart:
            put(body, self.system, "\n".join(apart))
        others = [
            dict(message) for message in messages if not (self.system and message.get("role") == "system")
        ]
        put(body, self.prompt["messages"], others)

    def as_wanted(self, refusal: str) -> tuple[RequestBinding, str] | None:
        """Return the binding adapted to the error message of a refusal, and a description of the change.

        Return None if the message does not name a field that can be changed.
        """
        words = set(re.findall(r"\w+", refusal.lower()))
        for name, places in self.fields.items():
            others = [keys for keys in places[1:] if keys[-1] in words]
            if others and places[0][-1] in words:
                wanted = (others[0], *(keys for keys in places if keys is not others[0]))
                what = f"{others[0][-1]} instead of {places[0][-1]}"
                return dataclasses.replace(self, fields={**self.fields, name: wanted}), what
        # Some models refuse requests that set a temperature.
        if "temperature" in words and "temperature" in self.fields and "temperature" not in self.never:
            return dataclasses.replace(self, never=self.never | {"temperature"}), "no temperature"
        if "model" in words and self.model is None:
            return dataclasses.replace(self, model=parse("/model")), "a model"
        return None

    def without(self, form: str) -> RequestBinding:
        """Return the same binding without one form of prompts, for a server that refuses it."""
        prompt = {name: keys for name, keys in self.prompt.items() if name != form}
        return dataclasses.replace(self, prompt=prompt)

    @cached_property
    def written(self) -> dict[str, Keys]:
        """The place of each prompt and field in a body, by name."""
        named = {} if self.model is None else {"model": self.model}
        listed = {name: row.in_ for name, row in self.listed.items()}
        counted = {"top_logprobs": self.counts["logprobs"].at} if "logprobs" in self.counts else {}
        fields = {name: places[0] for name, places in self.fields.items()}
        return {**self.prompt, **named, **fields, **self.logit_fields, **counted, **listed}

    def _places(self, name: str) -> tuple[Keys, ...]:
        """Return the places of a prompt or a field; the first is used for writing.

        Return () if there is none.
        """
        if name in self.prompt:
            return (self.prompt[name],)
        counted = self.counts.get("logprobs" if name == "top_logprobs" else name)
        return self.fields.get(name, (counted.at,) if counted else ())

    @cached_property
    def bound(self) -> tuple[Keys, ...]:
        """The places whose values are parsed into `Asked`, or only change how tokens are reported."""
        fields = (keys for places in self.fields.values() for keys in places)
        named = (self.model,) if self.model is not None else ()
        return (
            *self.prompt.values(),
            *self.prompt_else.values(),
            *fields,
            *(count.at for count in self.counts.values()),
            *named,
            *self.cache_keys,
            *self.rank,
            *self.report_only,
            *self.asks,
            *self.limits.values(),
        )


def _wanted(keys: Keys, names: str | list[str]) -> Wanted:
    """Return the output that a field enables.

    Names that begin with "/" are pointers outside of the choices.
    """
    places = [names] if isinstance(names, str) else names
    pointers = tuple(place for place in places if place.startswith("/"))
    return Wanted(keys[-1], tuple(place for place in places if place not in pointers), pointers)


def _fields_of(ask: Ask) -> dict[str, Any]:
    """Return the fields of an ask that differ from the defaults, as JSON values."""
    fields: dict[str, Any] = {}
    for name in sorted(RULES):
        value = getattr(ask, name)
        if value is not None and value != getattr(_NOTHING, name):
            fields[name] = list(value) if isinstance(value, tuple) else value
    if ask.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in ask.logit_bias.items()}
    if any(name in fields for name in _NEED_LOGPROBS):
        fields["logprobs"] = True
    return fields


def _lay_over(body: dict[str, Any], raw: Mapping[str, Any]) -> None:
    for name, value in raw.items():
        if value is OMIT:
            body.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(body.get(name), dict):
            _lay_over(body[name], value)
        else:
            body[name] = value
