"""Values in a request that no server can accept.

Lenient parsers accept "5" as 5 and "true" as true. So a value has the wrong type only if no parser can
convert it. Null always means that the field is unset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tokenwire.ask import RULES, Asked, Kind
from tokenwire.checks.check import Target
from tokenwire.dialects.dialect import dialect_of, policy_of
from tokenwire.record import ID_LIMIT, Answer, Stream, fact
from tokenwire.typed_table import counted
from tokenwire.wire import strict_json
from tokenwire.wire.exchange import HttpRequest

_WORDS_FOR_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n"})
_PADDING = -1
_PER_PROMPT = frozenset({"logprobs", "logprob_start", "top_logprobs", "chosen_ids", "request_id"})


@dataclass(frozen=True)
class BadValue:
    """A value that a field cannot have."""

    wire_name: str
    value: Any
    problem: str
    """The error, as the end of a sentence: `is not an integer`."""

    @property
    def words(self) -> str:
        return f"{self.wire_name} {json.dumps(self.value)[:60]}, which {self.problem}"


def _is_number_word(value: object) -> bool:
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False


def _integer_like(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) or _is_number_word(value)


def _boolean_like(value: object) -> bool:
    if isinstance(value, str):
        return value.lower() in _WORDS_FOR_BOOLEANS
    return isinstance(value, (int, float))


def _strings_like(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(item is None or isinstance(item, str) for item in value)
    )


def _ids_like(value: object) -> bool:
    if isinstance(value, list):
        return all(item is None or _ids_like(item) for item in value)
    return _integer_like(value)


_KINDS: Mapping[Kind, tuple[Callable[[object], bool], str]] = {
    "integer": (_integer_like, "is not an integer"),
    "number": (lambda value: isinstance(value, (int, float)) or _is_number_word(value), "is not a number"),
    "boolean": (_boolean_like, "is not a boolean"),
    "flag or number": (_boolean_like, "is neither a boolean nor a number"),
    "strings": (_strings_like, "is not a string or a list of strings"),
    "ids": (_ids_like, "is not a list of token ids"),
    "name": (lambda value: not isinstance(value, Mapping), "is not a string"),
}
_TYPES = {name: _KINDS[rule.kind] for name, rule in RULES.items() if rule.judged}
_LEAST = {name: rule.least for name, rule in RULES.items() if rule.least is not None}


def _values(asked: Asked, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the name on the wire and each value of a field. A list with one value for each prompt yields each
    of its values.
    """
    stated = asked.sent.get(name)
    for value in stated.values if stated else ():
        one_each = asked.batch and name in _PER_PROMPT and isinstance(value, list)
        for item in value if one_each else (value,):
            if stated and item is not None:
                yield stated.wire_name, item


def wrong_types(asked: Asked) -> Iterator[BadValue]:
    """Yield the request fields whose JSON type no parser accepts."""
    for name, (fits, problem) in _TYPES.items():
        for wire_name, value in _values(asked, name):
            if not fits(value):
                yield BadValue(wire_name, value, problem)


def impossible_values(asked: Asked, least: Mapping[str, float | None]) -> Iterator[BadValue]:
    """Yield the numbers that no server can satisfy.

    `least` has the smallest number that each field of the dialect can have, such as -1 for no limit. None
    allows any number.
    """
    for name, lowest in {**_LEAST, **least}.items():
        for wire_name, value in _values(asked, name):
            if lowest is not None and type(value) in (int, float) and value < lowest:
                yield BadValue(wire_name, value, f"is below {lowest}")
    least_new, budget = asked.min_new_tokens, asked.max_new_tokens
    if least_new is not None and budget is not None and 0 <= budget < least_new:
        yield BadValue(asked.sent["min_new_tokens"].wire_name, least_new, f"is above the budget of {budget}")


def _unknown(token: object, vocabulary: int | None) -> bool:
    return type(token) is int and not 0 <= token < (vocabulary or ID_LIMIT)


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def unknown_prompt_ids(asked: Asked, vocabulary: int | None) -> Iterator[BadValue]:
    """Yield the prompt ids that no vocabulary can contain, or that the server's vocabulary does
    not contain.
    """
    stated = asked.sent.get("input_ids")
    for ids in asked.input_ids or () if stated else ():
        if {*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) < (vocabulary or ID_LIMIT):
            continue
        for token in ids:
            if stated and _unknown(token, vocabulary):
                yield BadValue(stated.wire_name, token, "is not in the vocabulary")


def unknown_chosen_ids(asked: Asked, vocabulary: int | None) -> Iterator[BadValue]:
    """Yield out-of-vocabulary ids whose logprobs are requested. -1 fills up a row of ids."""
    yield from _unknown_ids(asked, "chosen_ids", vocabulary)
    yield from _unknown_ids(asked, "chosen_in_top", vocabulary)
    for value in _unknown_ids(asked, "prompt_chosen", vocabulary):
        if value.value != _PADDING:
            yield value


def misfitting_rows(asked: Asked) -> Iterator[BadValue]:
    """Yield the rows of ids for positions of the prompt, if there is not one row for each position."""
    stated, prompts = asked.sent.get("prompt_chosen"), asked.input_ids or ()
    if stated is None or not asked.prompt_chosen or len(prompts) != 1:
        return
    count, due = len(asked.prompt_chosen), max(0, len(prompts[0]) - 1 - asked.prompt_chosen_start)
    if count != due:
        problem = f"has {counted(count, 'row')} for {counted(due, 'position')} of the prompt"
        yield BadValue(stated.wire_name, list(map(list, asked.prompt_chosen)), problem)


def unknown_parameter_ids(stream: Answer, vocabulary: int | None) -> Iterator[BadValue]:
    """Yield stop ids and biased ids outside of the vocabulary.

    If the endpoint has no biases, `logit_bias` is an unknown field, and its ids are ignored.
    """
    yield from _unknown_ids(stream.asked, "stop_token_ids", vocabulary)
    dialect = dialect_of(stream)
    has_biases = dialect is not None and dialect.request.logit_bias is not None
    for token in _biased_ids(stream.exchange.load().request) if has_biases else ():
        if _unknown(token, vocabulary):
            yield BadValue("logit_bias", token, "is not in the vocabulary")


def _biased_ids(request: HttpRequest) -> Iterator[int]:
    body = request.body if isinstance(request.body, Mapping) else {}
    for holder in (body, body.get("sampling_params")):
        biased = holder.get("logit_bias") if isinstance(holder, Mapping) else None
        names = biased if isinstance(biased, Mapping) else ()
        yield from (int(name) for name in names if name.lstrip("-").isdecimal())


def _unknown_ids(asked: Asked, name: str, vocabulary: int | None) -> Iterator[BadValue]:
    for wire_name, value in _values(asked, name):
        for token in _flat(value):
            if _unknown(token, vocabulary):
                yield BadValue(wire_name, token, "is not in the vocabulary")


def unreadable_body(request: HttpRequest) -> str:
    """Describe why a body is not a JSON object. Empty if a parser may accept the body as an object.

    NaN and duplicate keys are not valid JSON, but many parsers accept them. A request without a body is not
    judged.
    """
    if request.raw_body is None:
        known = request.body is None or isinstance(request.body, Mapping)
        return "" if known else f"it is {_json_type(request.body)}"
    if not request.raw_body:
        return "it is empty"
    try:
        value = json.loads(request.raw_body)
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except RecursionError:
        return f"it is nested more than {strict_json.MAX_DEPTH} deep"
    except ValueError as error:
        return f"it is not JSON: {error}"
    return "" if isinstance(value, Mapping) else f"it is {_json_type(value)}"


def _json_type(value: object) -> str:
    return "nothing" if value is None else f"a JSON {type(value).__name__}"


def misfitting_lists(asked: Asked, request: HttpRequest) -> Iterator[BadValue]:
    """Yield the lists that do not have one entry for each prompt."""
    body = request.body
    if not isinstance(body, Mapping) or asked.prompts < 1 or not asked.batch:
        return
    named = {stated.wire_name for name, stated in asked.sent.items() if name in _PER_PROMPT - {"chosen_ids"}}
    for name in sorted(named | {"sampling_params"}):
        value = body.get(name)
        if isinstance(value, list) and len(value) != asked.prompts:
            yield BadValue(name, value, f"has {counted(len(value), 'entry')} for {asked.prompts} prompts")


def bad_values(stream: Answer, target: Target) -> Iterator[BadValue]:
    """Yield all bad values of a request, including ids outside of the server's vocabulary."""
    asked, vocabulary = stream.asked, target.advertised.vocab_size
    yield from unknown_prompt_ids(asked, vocabulary)
    yield from unknown_chosen_ids(asked, vocabulary)
    yield from unknown_parameter_ids(stream, vocabulary)
    yield from meaningless_values(stream)


@fact(Stream)
def _ids_named(stream: Stream) -> tuple[int, int]:
    """Return the smallest and the largest id in a request. Both are 0 if it has none."""
    asked = stream.asked
    sent = (value for name in ("chosen_ids", "stop_token_ids") for _, value in _values(asked, name))
    prompts = asked.input_ids or () if "input_ids" in asked.sent else ()
    every = chain(_flat(list(sent)), *prompts, _biased_ids(stream.exchange.request))
    ids = [token for token in every if type(token) is int]
    return min(ids, default=0), max(ids, default=0)


def names_unknown_ids(stream: Answer, target: Target) -> bool:
    """True if a request contains an id outside of the server's vocabulary."""
    return any(_unknown(token, target.advertised.vocab_size) for token in _ids_named(stream))


def meaningless_values(stream: Answer) -> Iterator[BadValue]:
    """Yield the values of a request that are meaningless on every server."""
    yield from wrong_types(stream.asked)
    yield from impossible_values(stream.asked, policy_of(stream).least)
    yield from misfitting_lists(stream.asked, stream.exchange.load().request)
