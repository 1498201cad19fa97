"""`meta_info`: the facts about a choice besides its text and ids, in SGLang's order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tokenwire_reference.core.request import MASK, MASK_LOGPROBS, DraftCounts
from tokenwire_reference.core.request_extras import ROUTED_EXPERTS
from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.running.ranks import DP_RANK


def answer_metadata(choices: Sequence[Emission]) -> dict[str, Any]:
    """Return the `metadata` of a whole OpenAI answer, with the weight versions of its first choice."""
    spans = choices[0].weight_versions
    return {"weight_version": spans[-1]["version"], "weight_versions": spans, **_of_prompt(choices[0])}


def _of_prompt(choice: Emission) -> dict[str, Any]:
    """Return the versions of the weights that computed the prompt, if the server reports them."""
    spans = choice.prompt_weight_versions
    return {"prefill_weight_versions": spans} if spans else {}


def usage(consumed: Consumed, *, cache_report: bool) -> dict[str, Any]:
    """Return the `usage` of an OpenAI answer."""
    return {
        **consumed.with_cache(cache_report=cache_report),
        "reasoning_tokens": consumed.reasoning or 0,
        "completion_tokens_details": consumed.details if consumed.reasoning else None,
    }


def meta_info(
    emission: Emission, tokenizer: Tokenizer | None, *, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """Return the meta_info of an emission. With a tokenizer, each logprob entry has its token's text.

    Lists of output tokens cover the emission's tokens; counters count from the start.
    """
    finish, record = emission.finish, emission.record
    info: dict[str, Any] = {
        "id": record.rid,
        "finish_reason": finish.to_wire() if finish else None,
        "prompt_tokens": len(record.prompt_token_ids),
        "weight_version": emission.weight_versions[-1]["version"],
        "num_retractions": record.num_retractions,
    }
    if record.return_logprob or record.return_sampling_mask:
        info |= _logprobs(emission, tokenizer)
    info["reasoning_tokens"] = reasoning_tokens
    info["completion_tokens"] = emission.completion_tokens
    info["cached_tokens"] = record.cached_tokens
    if record.return_hidden_states:
        info["hidden_states"] = list(emission.series.get("hidden_states", ()))
    if finish and (experts := ROUTED_EXPERTS.of(record)) is not None:
        info["routed_experts"] = experts
    if finish:
        info["weight_versions"] = emission.weight_versions
        info |= _of_prompt(emission)
    info["cached_tokens_details"] = record.cached_tokens_details
    info |= {name: values for name, values in emission.series.items() if name not in info}
    info["dp_rank"] = DP_RANK.of(record)
    if finish:
        info["e2e_latency"] = emission.seconds
        if record.drafts:
            info |= _drafts(record.drafts, emission.completion_tokens)
    if emission.first:
        info["response_sent_to_client_ts"] = time.time()
    return info


def _drafts(drafts: DraftCounts, completion_tokens: int) -> dict[str, Any]:
    """Return the counts of drafts under SGLang's names; empty if no step could have checked drafts."""
    info: dict[str, Any] = {}
    steps, correct = len(drafts.right), sum(drafts.right)
    if drafts.proposed:
        info |= {
            "spec_accept_rate": correct / drafts.proposed,
            "spec_accept_length": completion_tokens / steps,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": drafts.proposed,
            "spec_verify_ct": steps,
        }
    if steps:
        counts = Counter(drafts.right)
        info["spec_correct_drafts_histogram"] = [counts[right] for right in range(max(counts) + 1)]
    return info


def _logprobs(emission: Emission, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the requested logprob series of the prompt and of the output, and their lengths."""
    info: dict[str, Any] = {}
    record, output = emission.record, emission.series
    if record.return_logprob:
        prompt = record.prompt_series
        info["input_token_logprobs"] = _entries(prompt.get("input_token_logprobs", ()), tokenizer)
        info["output_token_logprobs"] = _entries(output.get("output_token_logprobs", ()), tokenizer)
        info["output_token_logprobs_length"] = emission.completion_tokens
        top, chosen = record.top_logprobs_num, record.token_ids_logprob
        for wanted, kind in ((top, "top_logprobs"), (chosen, "token_ids_logprobs")):
            if wanted:
                info[f"input_{kind}"] = _rows(prompt.get(f"input_{kind}", ()), tokenizer)
                info[f"output_{kind}"] = _rows(output.get(f"output_{kind}", ()), tokenizer)
    if record.return_sampling_mask:
        for name in (MASK, MASK_LOGPROBS):
            info[name] = list(output.get(name, ()))
        info[f"{MASK}_length"] = emission.completion_tokens
    return info


def _entries(entries: Sequence[Any], tokenizer: Tokenizer | None) -> list[Any]:
    if tokenizer is None:
        return list(entries)
    return [[entry[0], entry[1], tokenizer.decode([entry[1]])] for entry in entries]


def _rows(rows: Sequence[Any], tokenizer: Tokenizer | None) -> list[Any]:
    return [None if row is None else _entries(row, tokenizer) for row in rows]
