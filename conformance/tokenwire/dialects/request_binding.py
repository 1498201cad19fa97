"""The request side of a dialect: the places of fields in a body, and the body that is rendered for an ask.

`request_reading` parses a body back, and `request_keys` decides which requests have comparable answers.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from tokenwire.ask import OMIT, PENALTIES, RULES, Ask, RequestFields, Wanted
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
"""Fields without an effect on a whole answer."""
_PROMPTS = ("input_ids", "text", "messages")
_NOTHING = RequestFields()
_ANY_MODEL = "default"
"""The model's name if none is known, because servers of one model accept any."""


@dataclass(frozen=True)
class Unsupported:
    """The reason why an endpoint cannot express an ask."""

    reason: str


def _places(value: Any) -> tuple[Keys, ...]:
    """Parse one pointer or several."""
    return tuple(map(parse, [value] if isinstance(value, str) else value))


@dataclass(frozen=True)
class _Count:
    """The place of a number of top logprobs that enables them, and the least number that does."""

    at: Pointer
    least: int = 0

    @classmethod
    def read(cls, value: Any) -> _Count:
        return cls(parse(value)) if isinstance(value, str) else typed(cls, value, "a count")


@dataclass(frozen=True)
class _Listed:
    """A flag that is a word in a list: the place of the list, and the word."""

    in_: Pointer
    word: str


def _nothing() -> Any:
    return field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RequestBinding:
    """The places of a request's fields at one endpoint. Made from the `request` part of a dialect."""

    dialect: str
    model: Pointer | None = None
    prompt: Mapping[str, Pointer]
    media: Annotated[tuple[Keys, ...], _places] = ()
    """The places of media in addition to the prompt; images are in the first."""
    prompt_else: Mapping[str, Pointer] = _nothing()
    """The places of prompts in another family's requests."""
    batches: bool
    alone_in_a_list: bool = False
    """True if a single prompt is a list, too."""
    fields: Mapping[str, Annotated[tuple[Keys, ...], _places]]
    logprob_count: Annotated[_Count, _Count.read] | None = None
    """The number that enables `logprobs`, if it is not a flag."""
    prompt_logprob_count: Annotated[_Count, _Count.read] | None = None
    """The number that enables logprobs of the whole prompt."""
    listed: Mapping[str, _Listed] = _nothing()
    headers: Mapping[str, str] = _nothing()
    """Headers that replace the value of a field."""
    always: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    implies: Mapping[str, tuple[str, ...]] = _nothing()
    only_with: Mapping[str, str] = _nothing()
    """Fields without an effect, each with the field that it requires."""
    defaults: Mapping[str, Any] = _nothing()
    constants: Mapping[Pointer, Any] = _nothing()
    beside_input_ids: Mapping[Pointer, Any] = _nothing()
    neutral: Mapping[Pointer, Any] = _nothing()
    same_ids_need: Mapping[Pointer, Any] = _nothing()
    cache_keys: tuple[Pointer, ...] = ()
    """Fields that partition the cache of prefixes: only requests with equal values share it."""
    adapter: Pointer | None = None
    """The place of the adapter's name."""
    adapter_behind: str = ""
    """The separator before an adapter in the model's name; empty if it cannot contain one."""
    rank: tuple[Pointer, ...] = ()
    """Fields with the data-parallel rank of a request."""
    rank_header: str = ""
    """The header with the data-parallel rank of a request."""
    history: Pointer | None = None
    """The place of the request that the prompt continues."""
    goes_on: str = ""
    """The field with the id of the answer to continue; empty without one."""
    report_only: tuple[Pointer, ...] = ()
    forms: tuple[Pointer, ...] = ()
    """Fields that shape the report about the tokens, and not the tokens."""
    asks: Mapping[Pointer, Any] = _nothing()
    """Fields that enable other outputs of the answer, each with the output's name, or its names and
    pointers.
    """
    logit_bias: Pointer | None = None
    frequency_penalty: Pointer | None = None
    chosen_in_top: Pointer | None = None
    """The place of ids whose logprobs replace the likeliest; it is parsed, but never sent."""
    says: Says | None = None
    """The way to force an exact text by a grammar; None without one."""
    tool: ToolBinding | None = None
    reasoning: ReasoningControls = field(default_factory=ReasoningControls)
    turns: HistoryBinding | None = None
    """The form of earlier turns with calls; None where the endpoint has none."""
    constraints: Mapping[Pointer, str] = _nothing()
    schema_as: SchemaPlace | None = None
    system: Pointer | None = None
    """The place of system messages outside of the conversation; None if they are part of it."""
    truncate: Pointer | None = None
    """The place of an input's truncation."""
    most: Pointer | None = None
    """The place of the number of results."""
    same_results: Mapping[str, Mapping[str, Any]] = _nothing()
    """Fields of a body that return the same results in another form, by name."""

    def __post_init__(self) -> None:
        unknown = (self.fields.keys() - RULES.keys()) | (self.prompt.keys() - set(_PROMPTS))
        if unknown:
            raise ValueError(f"an ask has no field {sorted(unknown)[0]!r}; it has {sorted(RULES)}")

    @cached_property
    def counts(self) -> Mapping[str, _Count]:
        """Return the numbers of top logprobs that enable an output, by output."""
        named = {"logprobs": self.logprob_count, "logprob_start": self.prompt_logprob_count}
        return {name: count for name, count in named.items() if count is not None}

    @cached_property
    def limits(self) -> Mapping[str, Keys]:
        """Return the places of the truncation of inputs, and of the number of results."""
        places = {"truncate": self.truncate, "most": self.most}
        return {name: keys for name, keys in places.items() if keys is not None}

    @cached_property
    def penalties(self) -> Mapping[str, Keys]:
        """Return the places of the fields of `PENALTIES`."""
        places = {name: getattr(self, name) for name in PENALTIES}
        return {name: keys for name, keys in places.items() if keys is not None}

    @cached_property
    def added(self) -> tuple[str, ...]:
        """The fields that the suite adds to all requests, the budget and report-only fields aside."""
        needed = {*self.fields.get("max_new_tokens", ()), *self.report_only}
        return tuple(str(keys[0]) for keys in self.constants if keys not in needed)

    @cached_property
    def wanted(self) -> Mapping[Keys, Wanted]:
        """Return the outputs that the fields of `asks` enable."""
        return {keys: _wanted(keys, names) for keys, names in self.asks.items()}

    @cached_property
    def constraint(self) -> ConstraintBinding:
        return ConstraintBinding(self.constraints, self.schema_as)

    def render(self, ask: Ask, model: str = "") -> dict[str, Any] | Unsupported:
        """Return the body for an ask, or the reason why there is none."""
        if ask.prompts == 0 and not ask.raw:
            return Unsupported("the ask holds no prompt")
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
        # Token-in-token-out chat: SGLang validates `messages` beside `input_ids`, so they must not be empty.
        if ask.input_ids and not ask.messages:
            for keys, value in self.beside_input_ids.items():
                put(body, keys, copy.deepcopy(value))
        for name, value in _fields_of(ask).items():
            if name in self.always or name in self.never or (name in _OF_STREAMS and not ask.stream):
                continue
            if name in self.counts:
                if name == "logprob_start" and value != 0:
                    return Unsupported(f"{self.dialect} gives the logprobs of a prompt from its beginning")
                # One number enables logprobs and sets their number: 0 means the sampled id, or none at all.
                put(body, self.counts[name].at, max(ask.top_logprobs, self.counts[name].least))
                continue
            if name == "top_logprobs" and "logprobs" in self.counts:
                continue
            if name in self.listed:
                put(body, self.listed[name].in_, [self.listed[name].word])
                continue
            places = self.fields.get(name) or tuple(filter(None, [self.penalties.get(name)]))
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
        """Write messages into a body; system messages go to a separate field if the endpoint has one."""
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
        """Return the binding with the change that a refusal's words require, and its description.

        Returns None if the words do not name a possible change.
        """
        words = set(re.findall(r"\w+", refusal.lower()))
        for name, places in self.fields.items():
            others = [keys for keys in places[1:] if keys[-1] in words]
            if others and places[0][-1] in words:
                wanted = (others[0], *(keys for keys in places if keys is not others[0]))
                what = f"{others[0][-1]} instead of {places[0][-1]}"
                return dataclasses.replace(self, fields={**self.fields, name: wanted}), what
        # Some models refuse a request with a temperature.
        if "temperature" in words and "temperature" in self.fields and "temperature" not in self.never:
            return dataclasses.replace(self, never=self.never | {"temperature"}), "no temperature"
        if "model" in words and self.model is None:
            return dataclasses.replace(self, model=parse("/model")), "a model"
        return None

    def without(self, form: str) -> RequestBinding:
        """Return the binding of an endpoint that refuses one form of prompts."""
        prompt = {name: keys for name, keys in self.prompt.items() if name != form}
        return dataclasses.replace(self, prompt=prompt)

    @cached_property
    def written(self) -> dict[str, Keys]:
        """Return the place of each prompt and field of the endpoint, by name."""
        named = {} if self.model is None else {"model": self.model}
        listed = {name: row.in_ for name, row in self.listed.items()}
        counted = {"top_logprobs": self.counts["logprobs"].at} if "logprobs" in self.counts else {}
        fields = {name: places[0] for name, places in self.fields.items()}
        return {**self.prompt, **named, **fields, **self.penalties, **counted, **listed}

    def _places(self, name: str) -> tuple[Keys, ...]:
        """Return the places of a prompt or a field, the first one for writing; empty if the endpoint lacks
        it.
        """
        if name in self.prompt:
            return (self.prompt[name],)
        counted = self.counts.get("logprobs" if name == "top_logprobs" else name)
        return self.fields.get(name, (counted.at,) if counted else ())

    @cached_property
    def bound(self) -> tuple[Keys, ...]:
        """Return the places of a body that are parsed into `Asked`, or that shape only the report."""
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
    """Return the output that a field enables. A name that begins with "/" is outside the choices."""
    places = [names] if isinstance(names, str) else names
    pointers = tuple(place for place in places if place.startswith("/"))
    return Wanted(keys[-1], tuple(place for place in places if place not in pointers), pointers)


def _fields_of(ask: Ask) -> dict[str, Any]:
    """Return the fields of an ask that must be written, as JSON."""
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
