"""The request side of a dialect: renders an ask into a body, and parses a body into the abstract fields."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from tokenwire.ask import OMIT, PENALTIES, RULES, SAMPLING, Ask, Asked, RequestFields, SentField, Turn, Wanted
from tokenwire.dialects.demands import ConstraintBinding, Says, SchemaPlace, ToolBinding
from tokenwire.dialects.history import HistoryBinding
from tokenwire.dialects.request_values import (
    are_ids,
    budgets_of,
    fields_by_prompt,
    id_prompts,
    ints_in,
    is_greedy,
    is_text,
    is_uniform,
    name_or_empty,
    read_fields,
    texts_in,
)
from tokenwire.record import as_list, integer
from tokenwire.typed_table import typed
from tokenwire.wire import strict_json
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import ABSENT, Keys, Pointer, find, parse, put, remove

_NOTHING_TO_GREEDY = frozenset({"temperature", "top_k", "top_p", "min_p", "seed"})
_NEED_LOGPROBS = ("logprob_start", "top_logprobs", "chosen_ids", "logprob_texts")
_IMPLIED = (
    *("return_prompt_token_ids", "return_token_ids", "return_meta_info"),
    *("logprob_texts", "continuous_usage"),
)
"""Fields that others may imply, or that have no effect without another."""
_OF_STREAMS = ("usage", "continuous_usage")
"""Fields without an effect on a whole answer."""
_PROMPTS = ("input_ids", "text", "messages")
_ALL = -1
"""The number of top logprobs that means the whole vocabulary."""
_NOTHING = RequestFields()
_NO_KEY = (ABSENT, None, "")
"""Values of a `cache_keys` field that do not name a key."""
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
    media: Pointer | None = None
    """The place of images in addition to the prompt."""
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
        # Token-in-token-out chat: SGLang validates `messages` beside `input_ids`, so there have to be some.
        if ask.input_ids and not ask.messages:
            for keys, value in self.beside_input_ids.items():
                put(body, keys, copy.deepcopy(value))
        for name, value in _fields_of(ask).items():
            if name in self.always or name in self.never or (name in _OF_STREAMS and not ask.stream):
                continue
            if name in self.counts:
                if name == "logprob_start" and value != 0:
                    return Unsupported(f"{self.dialect} gives the logprobs of a prompt from its beginning")
                # One number asks for logprobs and says how many: 0 is that of the sampled id, or none at all.
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
        # Some models refuse a request that names a temperature.
        if "temperature" in words and "temperature" in self.fields and "temperature" not in self.never:
            return dataclasses.replace(self, never=self.never | {"temperature"}), "no temperature"
        if "model" in words and self.model is None:
            return dataclasses.replace(self, model=parse("/model")), "a model"
        return None

    def without(self, form: str) -> RequestBinding:
        """Return the binding of an endpoint that refuses one form of prompts."""
        prompt = {name: keys for name, keys in self.prompt.items() if name != form}
        return dataclasses.replace(self, prompt=prompt)

    def read(self, request: HttpRequest) -> Asked:
        """Parse a request. An invalid one has default fields and no key."""
        body = _json_body(request)
        if not isinstance(body, dict):
            return Asked()
        if self.history is not None and find(body, (*self.history, "rid")) not in (ABSENT, None):
            return self._turn(request, body, self.history)
        stated = self._stated(body)
        by_field = {name: self._value_of(stated, name) for name in self.fields} | self._counted(body)
        by_field |= self._in_headers(request)
        by_field |= {
            name: row.word in (as_list(find(body, row.in_)) or ()) for name, row in self.listed.items()
        }
        penalties = {name: find(body, keys) for name, keys in self.penalties.items()}
        found = self._prompts_found(body)
        input_ids, listed = id_prompts(found.get("input_ids"))
        text = found.get("text", found.get("messages"))
        if isinstance(text, list) and "text" in found and is_text(text):
            listed = listed or not input_ids
        prompts = len(input_ids) if input_ids else (len(text) if listed and isinstance(text, list) else 1)
        values = read_fields(by_field | penalties)
        n, logprobs = values.get("n", 1), values.get("logprobs", False)
        in_top = (
            ints_in(find(body, self.chosen_in_top)) if self.chosen_in_top is not None and logprobs else ()
        )
        # What depends on logprobs asks for nothing without them: such answers are not to be missed.
        # Where chosen ids take the place of the likeliest (vLLM's logprob_token_ids), no likeliest are asked
        # for.
        if not logprobs or in_top:
            values.pop("top_logprobs", None)
        if not logprobs:
            values.pop("chosen_ids", None)
        if values.get("logprob_start", -1) < 0 or not (logprobs or "logprob_start" in self.counts):
            values.pop("logprob_start", None)
        limits = {name: integer(find(body, keys)) for name, keys in self.limits.items()}
        implied = {name: self._asks(by_field, name) for name in _IMPLIED}
        implied["logprob_texts"] = implied["logprob_texts"] and logprobs
        asked = Asked(
            **values | implied,
            prompts=prompts,
            batch=listed or n > 1,
            input_ids=input_ids,
            texts=texts_in(found.get("text")),
            text_prompt=bool(text),
            budgets=budgets_of(by_field.get("max_new_tokens")),
            greedy=is_greedy(by_field),
            chosen_in_top=in_top,
            wanted=tuple(wanted for keys, wanted in self.wanted.items() if find(body, keys) is True),
            constraints=self.constraint.read(body),
            tools=self.tool.rule(body) if self.tool is not None else None,
            media=self.media is not None and find(body, self.media) not in (ABSENT, None, []),
            model=name_or_empty(find(body, self.model) if self.model is not None else None),
            adapter=self._adapter(body),
            uniform=is_uniform(by_field),
            truncate=limits.get("truncate"),
            most=limits.get("most"),
            rank=self._rank(request, body),
            sent=self._sent_fields(body, stated, found),
        )
        prompt = self._prompts_sent(found, asked)
        if prompt is None:
            return asked
        model = find(body, self.model) if self.model is not None else None
        # Four keys, each equal where something else has to be: the whole answer (key), what was run
        # (prompt_key), what may share a cache (cache_key), the output ids whatever the endpoint (ids_key).
        prompt_key = _canonical([model or None, prompt])
        cache_keys = {
            keys[-1]: value for keys in self.cache_keys if (value := find(body, keys)) not in _NO_KEY
        }
        rest = self._rest(body)
        key, ids_key = self._keys(body, by_field, asked, prompt, rest)
        form, sampling = self._form_and_sampling(rest)
        asked = dataclasses.replace(
            asked,
            key=f"{self.dialect} {prompt_key} {key}" if key else "",
            prompt_key=prompt_key,
            cache_key=_canonical(cache_keys) if cache_keys else "",
            ids_key=ids_key,
            form=_canonical(form) if form else "",
            other_sampling=_canonical(sampling) if sampling else "",
            constrained=self._is_constrained(sampling),
        )
        by_prompt = tuple(
            # Each item of a batch may bring sampling parameters of its own.
            dataclasses.replace(asked, greedy=is_greedy(fields), **read_fields(fields, SAMPLING))
            for fields in fields_by_prompt(by_field, prompts)
        )
        return dataclasses.replace(asked, by_prompt=by_prompt) if by_prompt else asked

    def _adapter(self, body: Mapping[str, Any]) -> SentField | None:
        """Return the adapter of a body; None if it has none."""
        named = find(body, self.adapter) if self.adapter is not None else None
        if self.adapter and named not in _NO_KEY:
            return SentField(str(self.adapter[-1]), (named,))
        model = (
            name_or_empty(find(body, self.model)) if self.adapter_behind and self.model is not None else ""
        )
        name = model.partition(self.adapter_behind)[2] if model else ""
        return SentField("model", (name,)) if name else None

    def _turn(self, request: HttpRequest, body: Mapping[str, Any], history: Keys) -> Asked:
        """Parse a session turn. The engine runs the history and this prompt."""
        session = find(body, history)
        alone = copy.deepcopy(dict(body))
        remove(alone, history)
        asked = self.read(dataclasses.replace(request, body=alone, raw_body=None))
        rid, offset, ids = session["rid"], integer(session.get("offset") or 0), asked.input_ids or ()
        known = isinstance(rid, str) and session.keys() <= {"id", "rid", "offset"} and len(ids) == 1
        turn = Turn(rid, offset, ids[0]) if known and offset is not None else None
        unknown: dict[str, Any] = {"input_ids": None, "texts": (), "text_prompt": False}
        key = f"{asked.key} after {turn.after} {turn.offset}" if asked.key and turn is not None else ""
        return dataclasses.replace(asked, turn=turn, key=key, ids_key="", prompt_key="", **unknown)

    def _form_and_sampling(self, rest: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the rest of a body into fields that shape how tokens are reported, by name, and fields that
        shape the tokens.
        """
        sampling = copy.deepcopy(dict(rest))
        form = {str(keys[-1]): value for keys in self.forms if (value := find(rest, keys)) is not ABSENT}
        for keys in self.forms:
            remove(sampling, keys)
        return form, sampling

    def _is_constrained(self, rest: Mapping[str, Any]) -> bool:
        """True if more than biases and the frequency penalty shapes the tokens."""
        more = copy.deepcopy(dict(rest))
        for keys in self.penalties.values():
            remove(more, keys)
        return bool(more)

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

    def _stated(self, body: Mapping[str, Any]) -> dict[str, tuple[str, list[Any]]]:
        """Map each field to its wire name and its values, one for each batch item, at the first place
        present.
        """
        stated: dict[str, tuple[str, list[Any]]] = {}
        for name, places in self.fields.items():
            for keys in places:
                values = _gather(body, keys) if keys[0] in body else []
                if any(value is not ABSENT for value in values):
                    stated[name] = str(keys[-1]), values
                    break
        return stated

    def _sent_fields(
        self, body: Mapping[str, Any], stated: Mapping[str, tuple[str, list[Any]]], prompts: Iterable[str]
    ) -> dict[str, SentField]:
        """Return every bound field and prompt that the body contains."""
        beside = [(name, self.prompt[name]) for name in prompts] + [
            (name, count.at) for name, count in self.counts.items()
        ]
        gathered = [(name, str(keys[-1]), _gather(body, keys)) for name, keys in beside]
        sent_fields: dict[str, SentField] = {}
        by_names = [(name, *sent) for name, sent in stated.items()]
        for name, wire_name, values in (*by_names, *gathered):
            there = tuple(value for value in values if value is not ABSENT)
            if there:
                sent_fields.setdefault(name, SentField(wire_name, there))
        return sent_fields

    def _prompts_found(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prompts in a body, by their form.

        If one field takes text and ids, everything but text is read as ids.
        """
        # In this order: the endpoint's own place wins over that of another family.
        places = (*self.prompt_else.items(), *self.prompt.items())
        found = {name: value for name, keys in places if (value := find(body, keys)) is not ABSENT}
        if self.prompt.get("text") == self.prompt.get("input_ids"):
            other = "input_ids" if is_text(found.get("text")) else "text"
            found.pop(other, None)
        return found

    def _rank(self, request: HttpRequest, body: Mapping[str, Any]) -> int | None:
        sent = _headers_of(request).get(self.rank_header.lower(), "")
        found = [integer(find(body, keys)) for keys in self.rank]
        found.append(int(sent) if re.fullmatch(r"-?\d{1,9}", sent, re.ASCII) else None)
        return next((rank for rank in found if rank is not None), None)

    def _in_headers(self, request: HttpRequest) -> dict[str, str]:
        sent = _headers_of(request)
        names = {name: header.lower() for name, header in self.headers.items()}
        return {name: sent[header] for name, header in names.items() if header in sent}

    def _counted(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that numbers of top logprobs imply: the flag, the start and the number of an
        ask.
        """
        numbers = {name: find(body, count.at) for name, count in self.counts.items()}
        asked = {
            name: number
            for name, number in numbers.items()
            if type(number) is int and (number == _ALL or number >= self.counts[name].least)
        }
        by_field: dict[str, Any] = {}
        if "logprobs" in asked:
            by_field |= {"logprobs": True, "top_logprobs": asked["logprobs"]}
        if "logprob_start" in asked:
            by_field["logprob_start"] = 0
        return by_field

    def _value_of(self, stated: Mapping[str, tuple[str, list[Any]]], name: str) -> Any:
        """Return the value of a field, or its default; a tuple of values if batch items differ."""
        default = self.defaults.get(name)
        if name not in stated:
            return default
        values = [default if value is ABSENT else value for value in stated[name][1]]
        return values[0] if all(value == values[0] for value in values) else tuple(values)

    def _asks(self, by_field: Mapping[str, Any], name: str) -> bool:
        implied_by = (other for other, implied in self.implies.items() if name in implied)
        asked = any(by_field.get(field) is True for field in (name, *implied_by))
        return asked and (name not in self.only_with or by_field.get(self.only_with[name]) is True)

    def _prompts_sent(self, found: Mapping[str, Any], asked: Asked) -> dict[str, Any] | None:
        """Return the prompts of a body by form, without those ignored beside ids; None if they are
        malformed.
        """
        if "input_ids" not in found:
            return dict(found)
        if asked.input_ids is None:
            return None
        return {
            name: value for name, value in found.items() if self.prompt[name] not in self.beside_input_ids
        }

    def _keys(
        self,
        body: Mapping[str, Any],
        by_field: Mapping[str, Any],
        asked: Asked,
        prompt: Mapping[str, Any],
        rest: Mapping[str, Any],
    ) -> tuple[str, str]:
        """Return canonical JSON of all that shapes the result except the prompt, and the `ids_key` of
        `Asked`.
        """
        if not asked.greedy and asked.seed is None:
            return "", ""
        shaping = {name: by_field[name] for name in by_field if RULES[name].shapes}
        if asked.greedy:
            shaping = {name: value for name, value in shaping.items() if name not in _NOTHING_TO_GREEDY}
        key = _canonical([shaping, rest])
        # Without these values the model's generation config may decide, and the ids are those of this
        # endpoint alone.
        same_ids = all(find(body, keys) == value for keys, value in self.same_ids_need.items())
        plain = (asked.skip_special_tokens, asked.spaces_between_special_tokens) == (True, True)
        alone = prompt.keys() == {"input_ids"} and not asked.batch and asked.greedy
        # Endpoints differ in their defaults: only requests that set all of them are compared (spec/tito.md).
        if not (alone and same_ids and plain and not rest and asked.max_new_tokens is not None):
            return key, ""
        if asked.stop_regex or asked.min_new_tokens or asked.echo:
            return key, ""
        stops = [sorted(asked.stop), sorted(asked.stop_token_ids), asked.no_stop_trim, asked.ignore_eos]
        return key, _canonical([asked.input_ids, asked.max_new_tokens, *stops])

    @cached_property
    def _bound(self) -> tuple[Keys, ...]:
        """The request fields that are already parsed into `Asked`."""
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

    def _rest(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that the dialect does not bind and that may shape the result."""
        rest = _with_own_objects(body)
        for keys in self._bound:
            if keys[0] in rest:
                _remove_everywhere(rest, keys)
        for keys, value in self.neutral.items():
            if find(rest, keys) == value or find(rest, keys) is None:
                remove(rest, keys)
        return {name: value for name, value in rest.items() if value not in (None, {}, [])}


def _headers_of(request: HttpRequest) -> dict[str, str]:
    """Return the last value of each header, by its lower-case name."""
    return {name.lower(): value for name, value in request.headers}


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


def _json_body(request: HttpRequest) -> Any:
    if request.raw_body is None:
        return request.body
    try:
        return strict_json.loads(request.raw_body.decode())
    except ValueError:
        return None


def _gather(body: Any, keys: Keys) -> list[Any]:
    """Return the values at a place, one for each item of a list of objects on the way."""
    for position, key in enumerate(keys):
        if isinstance(body, list):
            return [value for item in body for value in _gather(item, keys[position:])]
        body = body.get(key, ABSENT) if isinstance(body, dict) else ABSENT
    return [body]


def _with_own_objects(value: Any) -> Any:
    """Return a copy of a JSON value that shares only its long lists of integers."""
    if isinstance(value, dict):
        return {name: _with_own_objects(member) for name, member in value.items()}
    if isinstance(value, list) and not are_ids(value):
        return [_with_own_objects(member) for member in value]
    return value


def _remove_everywhere(body: dict[str, Any], keys: Keys) -> None:
    holder = body.get(keys[0])
    if isinstance(holder, list) and len(keys) > 1:
        for item in holder:
            if isinstance(item, dict):
                remove(item, keys[1:])
        body[keys[0]] = [item for item in holder if item]
    else:
        remove(body, keys)


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Encodes a JSON value as text, equal for equal values."""
