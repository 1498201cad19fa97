"""Sampling parameters of a body, with the checks that a schema cannot express."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from tokenwire_reference.core.request import Constraint, SamplingParams
from tokenwire_reference.core.stopping import stop_patterns
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.served import Served
from tokenwire_reference.extras.constraints import CONSTRAINTS, PLAIN, Channelled, Grammar, grammar_of
from tokenwire_reference.extras.thinking import ThinkingBudget, constraint_of_text

_KNOWN = {field.name for field in fields(SamplingParams)}
_OF_DOORS = {"ignore_stop_token_ids", "min_tokens_before_stop", "constraint", "only_ids", "banned_words"}
"""Sampling parameters that a server family sets, and that a client cannot set."""


def read_sampling_params(
    given: Mapping[str, Any], served: Served, channelled: Channelled = PLAIN
) -> SamplingParams:
    """Return sampling parameters from a body whose names are those of `SamplingParams`. The schema has
    already checked the types.

    Absent and null fields have the defaults of `SamplingParams`; a null `max_new_tokens` means the rest of
    the context. Raises RefusalError for values that cannot be used.
    """
    if given.get("custom_params") is not None and not served.args.model_path.startswith("builtin:scripted"):
        raise RefusalError("custom_params is for builtin:scripted only; leave it out", param="custom_params")
    if (given.get("beam_width") or 1) > 1:
        raise RefusalError("beam_width above 1 is not supported by the reference engine; leave it out")
    values = {
        name: value
        for name, value in given.items()
        if name in _KNOWN and (value is not None or name == "max_new_tokens")
    }
    values["stop"] = _strings(values.get("stop"), "stop", served)
    values["stop_regex"] = _strings(values.get("stop_regex"), "stop_regex", served)
    try:
        stop_patterns(values["stop_regex"])
    except ValueError as error:
        raise RefusalError(str(error), param="stop_regex") from error
    values["stop_token_ids"] = tuple(values.get("stop_token_ids", ()))
    values["logit_bias"] = _logit_bias(values.get("logit_bias", {}), served.model.vocab_size)
    values["only_ids"] = _only_ids(values.get("only_ids"), served.model.vocab_size)
    values["banned_words"] = _banned_words(values.get("banned_words", ()), served)
    values["constraint"] = _constraint(given, served, channelled)
    if values["constraint"] is not None and values["only_ids"]:
        raise RefusalError(
            "allowed_token_ids and a constraint cannot be combined; leave one out", param="allowed_token_ids"
        )
    if constraint_of_text(values["constraint"]) is not None:
        values["ignore_eos"] = False  # With a constraint, the constraint determines the end.
    sampling = SamplingParams(**values)
    if sampling.max_new_tokens is not None and sampling.min_new_tokens > sampling.max_new_tokens:
        raise RefusalError(
            f"min_new_tokens {sampling.min_new_tokens} is above max_new_tokens {sampling.max_new_tokens}"
        )
    if sampling.min_new_tokens:
        ending = served.model.eos_token_ids.union(sampling.stop_token_ids)
        if len(ending) >= served.model.vocab_size:
            raise RefusalError(
                f"min_new_tokens is {sampling.min_new_tokens} and every id of the vocabulary stops; "
                "leave some out of stop_token_ids",
                param="stop_token_ids",
            )
    return sampling


def _constraint(given: Mapping[str, Any], served: Served, chat: Channelled) -> Constraint | None:
    """Return the constraint of a body. Raises RefusalError if it is not supported."""
    try:
        found = grammar_of(given)
        if found is not None and chat.calls is not None:
            raise RefusalError("a constraint of the text and one of its tool calls cannot be combined")
        if chat.calls is not None:
            found = "tools", chat.calls
        grammar = None if found is None else Grammar(*found, chat.begun)
    except ValueError as error:
        raise RefusalError(f"The constraint cannot be kept: {error}") from error
    if grammar is None and chat.budget is None:
        return None
    if served.tokenizer is None:
        raise RefusalError("a constraint needs a tokenizer; start the server without --skip-tokenizer-init")
    if chat.budget is None:
        return grammar
    begun, size = chat.begun is True, served.model.vocab_size
    return ThinkingBudget(chat.budget, begun, served.tokenizer, size, grammar)


def _logit_bias(given: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    """Return the biases by id. Raises RefusalError for an unknown id."""
    digits = len(str(vocab_size))
    unknown = next((key for key in given if len(key) > digits), None)
    if unknown is not None:
        raise RefusalError(
            f"logit_bias has the id {unknown[:20]}…; ids are 0 to {vocab_size - 1}", param="logit_bias"
        )
    biases = {int(key): bias for key, bias in given.items()}
    refuse_unknown_ids("logit_bias", list(biases), vocab_size)
    return biases


def _only_ids(ids: Sequence[int] | None, vocab_size: int) -> tuple[int, ...]:
    """Return the ids that may be sampled. Raises RefusalError for an empty list or an unknown id."""
    if ids is not None and not ids:
        raise RefusalError(
            "allowed_token_ids is empty; name an id, or leave it out", param="allowed_token_ids"
        )
    refuse_unknown_ids("allowed_token_ids", ids or (), vocab_size)
    return tuple(dict.fromkeys(ids or ()))


def _banned_words(words: Sequence[str], served: Served) -> tuple[tuple[int, ...], ...]:
    """Return the ids of each word, with and without a space before it. As in vLLM, the form with a space
    counts only if it begins with another id and has as many ids.
    """
    banned: list[tuple[int, ...]] = []
    for word in _strings(words, "bad_words", served):
        assert served.tokenizer is not None, "strings without a tokenizer are refused"
        bare, spaced = (tuple(served.tokenizer.encode(before + word.lstrip())) for before in ("", " "))
        if not bare:
            raise RefusalError(f"bad_words has {word!r}, which has no token; leave it out", param="bad_words")
        banned.append(bare)
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            banned.append(spaced)
    return tuple(banned)


def _strings(value: str | Sequence[str] | None, name: str, served: Served) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else tuple(value or ())
    if strings and served.tokenizer is None:
        raise RefusalError(f"{name} needs a tokenizer; start the server without --skip-tokenizer-init")
    if "" in strings:
        raise RefusalError(f"{name} holds an empty string, which every text contains; leave it out")
    return strings


def refuse_unknown_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise RefusalError for the first id that is not in the vocabulary."""
    for position, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise RefusalError(
                f"{name}[{position}] is {token_id}, which is not in the vocabulary; "
                f"ids are 0 to {vocab_size - 1}"
            )


def refuse_what_does_not_fit(prompt_tokens: int, sampling: SamplingParams, context_length: int) -> None:
    """Raise RefusalError if a prompt, or a prompt together with its budget, exceeds the context length."""
    if prompt_tokens >= context_length:
        raise RefusalError(
            f"the prompt (input_ids, text or messages) has {prompt_tokens} tokens and leaves no room in the "
            f"context length of {context_length}; shorten it"
        )
    budget = sampling.max_new_tokens or 0
    if prompt_tokens + budget > context_length:
        raise RefusalError(
            f"{prompt_tokens} prompt tokens and {budget} new tokens (max_new_tokens, max_tokens) make "
            f"{prompt_tokens + budget}, more than the context length of {context_length}; shorten the prompt "
            "or ask for fewer"
        )


def with_own_seed(sampling: SamplingParams, sample: int) -> SamplingParams:
    """Give each of several samples its own seed; sample 0 has the seed of a single sample."""
    if sampling.sampling_seed is None or sample == 0:
        return sampling
    return replace(sampling, sampling_seed=(sampling.sampling_seed + sample) % 2**63)


def native_sampling_fields(body: Mapping[str, Any], max_new_tokens: int | None) -> dict[str, Any]:
    """Return the sampling fields of a body that has no `sampling_params` object, under the names of
    `SamplingParams`. A budget of None means the rest of the context.
    """
    given = {name: body.get(name) for name in (*(_KNOWN - _OF_DOORS), *CONSTRAINTS)}
    given |= {"min_new_tokens": body.get("min_tokens"), "sampling_seed": body.get("seed")}
    return {**given, "max_new_tokens": max_new_tokens}
