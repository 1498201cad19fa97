"""Admission of a request: checks that it can run, and begins its record."""

from __future__ import annotations

from collections.abc import Collection

from tokenwire_reference.core import logprobs
from tokenwire_reference.core.detokenizer import Detokenizer
from tokenwire_reference.core.model import Model
from tokenwire_reference.core.request import SERIES_ASKED_FOR, Drafter, Request
from tokenwire_reference.core.request_extras import ROUTED_EXPERTS_START, WANTS_EMBEDDING
from tokenwire_reference.core.scheduler import Sequence
from tokenwire_reference.core.stopping import StopRules


def sequence_of(
    request: Request, model: Model, *, capacity: int, num_draft_tokens: int, drafter: Drafter | None
) -> Sequence:
    """Return the sequence of a request. Raises ValueError with the sizes and limits if the request can never
    run.

    `capacity` is the size of the KV cache in positions; `drafter` is used if the model itself does not draft.
    """
    prompt, sampling = request.prompt_token_ids, request.sampling
    room = model.context_length - len(prompt)
    budget = sampling.max_new_tokens
    if not prompt:
        raise ValueError("the prompt is empty; give at least one token id")
    if WANTS_EMBEDDING.of(request) and not model.hidden_states.available:
        raise ValueError(f"{model.name} has no hidden states to embed with; serve another model")
    if request.return_hidden_states and (num_draft_tokens or not model.hidden_states.available):
        raise ValueError(
            f"return_hidden_states needs a model with a last layer, and no drafts; {model.name} has "
            f"{num_draft_tokens} drafts; leave it out"
        )
    if ROUTED_EXPERTS_START.of(request) is not None and not model.experts.available:
        raise ValueError(
            f"{model.name} has no experts, and return_routed_experts asks for them; leave it out"
        )
    if room < (budget or 0) or room < 0:
        raise ValueError(
            f"{len(prompt)} prompt tokens and max_new_tokens {budget} exceed the context length of "
            f"{model.context_length} tokens"
        )
    _check_ids(model, "prompt_token_ids", prompt)
    _check_ids(model, "logit_bias", sampling.logit_bias)
    _check_ids(model, "stop_token_ids", sampling.stop_token_ids)
    _check_ids(model, "token_ids_logprob", request.token_ids_logprob)
    if request.logprob_start_len > len(prompt):
        raise ValueError(
            f"logprob_start_len is {request.logprob_start_len}, and the prompt has {len(prompt)} tokens"
        )
    if budget is None:
        budget = max(0, min(room, capacity - len(prompt)))
    # Stops are searched in the visible text.
    detokenizer = None if model.tokenizer is None else Detokenizer.of(model.tokenizer, sampling, prompt)
    rules = StopRules(sampling, model.eos_token_ids, budget, detokenizer)
    return Sequence(request, request.seams.stop_rules(rules), list(prompt), model.drafter(request) or drafter)


def begin_series(sequence: Sequence) -> None:
    """Create an empty list for each output series and each prompt series that a request wants."""
    request = sequence.request
    families = logprobs.families(request)
    names = [f"output_{family}" for family in families]
    names += [name for flag, asked in SERIES_ASKED_FOR.items() if getattr(request, flag) for name in asked]
    request.series = {**request.series, **{name: [] for name in names}}
    for family in families:
        request.prompt_series[f"input_{family}"] = []
        if sequence.scores_prompt and request.logprob_start_len == 0:
            # The first token of a prompt has no logprob, because nothing precedes it.
            token = [None, request.prompt_token_ids[0], None]
            request.prompt_series[f"input_{family}"].append(token if family == "token_logprobs" else None)


def _check_ids(model: Model, name: str, ids: Collection[int]) -> None:
    if not ids or (min(ids) >= 0 and max(ids) < model.vocab_size):
        return
    wrong = next(i for i in ids if not 0 <= i < model.vocab_size)
    raise ValueError(
        f"{name} contains out-of-vocabulary token id {wrong}; valid range is [0, {model.vocab_size})"
    )
