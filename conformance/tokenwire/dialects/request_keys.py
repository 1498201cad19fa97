"""The keys of a request. They decide which answers may be compared with each other.

Each key is equal for requests that have something in common:

- `key`: they must yield the same record at one endpoint, because prompt, model and sampling are equal.
  Repeated answers are compared, streams with whole answers, and answers before a fault with those after it.
- `prompt_key`: they have one model and one prompt, however they are sampled. What depends on the prompt
  alone is compared: its echo, its logprobs, the logprobs of the first token.
- `cache_key`: they share the server's cache of prefixes. What a cache may change is compared.
- `ids_key`: they must yield the same ids at every endpoint of one server. Token-in-token-out compares them.

A key is empty if nothing may be compared: `key` and `ids_key` for sampling without a seed, each of them for
a request that cannot be parsed. Three more values restrict a comparison. `form` holds fields that change
the report of the tokens. `other_sampling` holds fields that shape them, such as a grammar. `constrained` is
True if these are more than penalties.

The dialect decides in which key a field is:

- A field of `Asked` that shapes the tokens (`RULES`) is in `key`. One that shapes only the report is in
  none.
- A field that the dialect does not name is in `key` and in `other_sampling`, because it may shape the
  tokens.
- A field under `neutral` is in none while it has its neutral value, and is like an unknown one otherwise.
- A field under `forms` is in `key` and in `form`.
- A field under `cache_keys` is in `cache_key` alone.
- A field under `report_only`, `asks`, `rank`, `truncate` or `most` is in none.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.ask import RULES, Asked
from tokenwire.dialects.request_binding import RequestBinding
from tokenwire.dialects.request_values import are_ids
from tokenwire.wire.json_pointer import ABSENT, Keys, find, remove

NO_NAME = (ABSENT, None, "")
"""Values of a name field that mean that no name is given."""
_NOTHING_TO_GREEDY = frozenset({"temperature", "top_k", "top_p", "min_p", "seed"})

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Encodes a JSON value as text. Equal values have equal texts."""


@dataclass(frozen=True)
class RequestKeys:
    """The keys of a request, and the values that restrict comparisons.

    `Asked` has fields of the same names.
    """

    key: str
    prompt_key: str
    cache_key: str
    ids_key: str
    form: str
    other_sampling: str
    constrained: bool


def request_keys(
    binding: RequestBinding,
    body: Mapping[str, Any],
    by_field: Mapping[str, Any],
    asked: Asked,
    found: Mapping[str, Any],
) -> RequestKeys | None:
    """Return the keys of a request; None if its prompt is malformed.

    `by_field`: the JSON value of each known field. `found`: the prompts in the body, by form.
    """
    prompt = _prompts_run(binding, found, asked)
    if prompt is None:
        return None
    model = find(body, binding.model) if binding.model is not None else None
    prompt_key = _canonical([model or None, prompt])
    rest = _rest(binding, body)
    result_key = _result_key(by_field, asked, rest)
    form, sampling = _form_and_sampling(binding, rest)
    return RequestKeys(
        key=f"{binding.dialect} {prompt_key} {result_key}" if result_key else "",
        prompt_key=prompt_key,
        cache_key=_or_empty(
            {keys[-1]: value for keys in binding.cache_keys if (value := find(body, keys)) not in NO_NAME}
        ),
        ids_key=_ids_key(binding, body, asked, prompt, rest),
        form=_or_empty(form),
        other_sampling=_or_empty(sampling),
        constrained=_is_constrained(binding, sampling),
    )


def _or_empty(fields: Mapping[Any, Any]) -> str:
    return _canonical(fields) if fields else ""


def _prompts_run(binding: RequestBinding, found: Mapping[str, Any], asked: Asked) -> dict[str, Any] | None:
    """Return the prompts of a body by form; None if they are malformed.

    If the server ignores a prompt in presence of ids, it is left out.
    """
    if "input_ids" not in found:
        return dict(found)
    if asked.input_ids is None:
        return None
    return {
        name: value for name, value in found.items() if binding.prompt[name] not in binding.beside_input_ids
    }


def _may_repeat(asked: Asked) -> bool:
    return asked.greedy or asked.seed is not None


def _result_key(by_field: Mapping[str, Any], asked: Asked, rest: Mapping[str, Any]) -> str:
    """Return all sampling fields as canonical JSON; empty if the output is random."""
    if not _may_repeat(asked):
        return ""
    shaping = {name: by_field[name] for name in by_field if RULES[name].shapes}
    if asked.greedy:
        shaping = {name: value for name, value in shaping.items() if name not in _NOTHING_TO_GREEDY}
    return _canonical([shaping, rest])


def _ids_key(
    binding: RequestBinding,
    body: Mapping[str, Any],
    asked: Asked,
    prompt: Mapping[str, Any],
    rest: Mapping[str, Any],
) -> str:
    """Return ids, token limit and stops of a plain greedy request as canonical JSON; empty for other
    requests.

    Endpoints have different defaults, so only requests that set all of these values are compared
    (spec/tito.md).
    """
    # Without these values, the model's generation config may decide. The ids are then comparable only within
    # this endpoint.
    same_ids = all(find(body, keys) == value for keys, value in binding.same_ids_need.items())
    plain = (asked.skip_special_tokens, asked.spaces_between_special_tokens) == (True, True)
    alone = prompt.keys() == {"input_ids"} and not asked.batch and asked.greedy
    if not (alone and same_ids and plain and not rest and asked.max_new_tokens is not None):
        return ""
    if asked.stop_regex or asked.min_new_tokens or asked.echo:
        return ""
    stops = [sorted(asked.stop), sorted(asked.stop_token_ids), asked.no_stop_trim, asked.ignore_eos]
    return _canonical([asked.input_ids, asked.max_new_tokens, *stops])


def _rest(binding: RequestBinding, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a body that the dialect does not know. These fields may influence sampling."""
    rest = _with_own_objects(body)
    for keys in binding.bound:
        if keys[0] in rest:
            _remove_everywhere(rest, keys)
    for keys, value in binding.neutral.items():
        if find(rest, keys) == value or find(rest, keys) is None:
            remove(rest, keys)
    return {name: value for name, value in rest.items() if value not in (None, {}, [])}


def _form_and_sampling(
    binding: RequestBinding, rest: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide unknown fields into those that change how tokens are reported, by name, and those that influence
    sampling.
    """
    sampling = copy.deepcopy(dict(rest))
    form = {str(keys[-1]): value for keys in binding.forms if (value := find(rest, keys)) is not ABSENT}
    for keys in binding.forms:
        remove(sampling, keys)
    return form, sampling


def _is_constrained(binding: RequestBinding, sampling: Mapping[str, Any]) -> bool:
    """True if fields other than the logit bias and the frequency penalty influence sampling."""
    more = copy.deepcopy(dict(sampling))
    for keys in binding.penalties.values():
        remove(more, keys)
    return bool(more)


def _with_own_objects(value: Any) -> Any:
    """Copy a JSON value. Long lists of integers are shared with the original."""
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
