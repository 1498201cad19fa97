"""`meta_info`: what is said of a choice beside its text and ids. The keys stand in SGLang's order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.core.request import OWN_SERIES, DraftCounts, Request
from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.reader import Emission


@dataclass(frozen=True)
class LogprobsAsked:
    """Which logprob lists a request asked for."""

    selected: bool = False
    top: bool = False
    chosen: bool = False
    mask: bool = False
    hidden_states: bool = False
    tokenizer: Tokenizer | None = None
    """Gives each entry its token's text; None leaves it null."""

    @classmethod
    def by(cls, request: Request, tokenizer: Tokenizer | None = None) -> LogprobsAsked:
        return cls(
            request.return_logprob,
            request.return_logprob and request.top_logprobs_num > 0,
            request.return_logprob and bool(request.token_ids_logprob),
            request.return_sampling_mask,
            request.return_hidden_states,
            tokenizer,
        )


def weight_versions(version: str, emission: Emission) -> list[dict[str, Any]]:
    """Which weights made which tokens of an answer: one span, as weights never change while we serve."""
    return [{"version": version, "start": 0, "end": emission.completion_tokens}]


def answer_metadata(version: str, choices: Sequence[Emission]) -> dict[str, Any]:
    """The `metadata` of a whole OpenAI answer: the weights behind its first choice."""
    return {"weight_version": version, "weight_versions": weight_versions(version, choices[0])}


def meta_info(
    emission: Emission, asked: LogprobsAsked, *, weight_version: str, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """The meta_info of an emission.

    Lists of output tokens cover what the emission covers; counters count from the start.
    """
    finish = emission.finish
    info: dict[str, Any] = {
        "id": emission.record.rid,
        "finish_reason": finish.to_wire() if finish else None,
        "prompt_tokens": len(emission.record.prompt_token_ids),
        "weight_version": weight_version,
        "num_retractions": emission.record.num_retractions,
    }
    if asked.selected or asked.mask:
        info |= _logprobs(emission, asked)
    info["reasoning_tokens"] = reasoning_tokens
    info["completion_tokens"] = emission.completion_tokens
    info["cached_tokens"] = emission.record.cached_tokens
    if asked.hidden_states:
        info["hidden_states"] = list(emission.series.get("hidden_states", ()))
    if finish and emission.record.routed_experts is not None:
        info["routed_experts"] = emission.record.routed_experts
    if finish:
        info["weight_versions"] = weight_versions(weight_version, emission)
    info["cached_tokens_details"] = emission.record.cached_tokens_details
    for name, values in emission.series.items():
        if name not in OWN_SERIES:
            info[name] = values
    info["dp_rank"] = None
    if finish:
        info["e2e_latency"] = emission.seconds
        if emission.record.drafts:
            info |= _drafts(emission.record.drafts, emission.completion_tokens)
    if emission.first:
        info["response_sent_to_client_ts"] = time.time()
    return info


def _drafts(drafts: DraftCounts, completion_tokens: int) -> dict[str, Any]:
    """How drafts fared, in SGLang's terms; nothing where no step could have checked any."""
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


def _logprobs(emission: Emission, asked: LogprobsAsked) -> dict[str, Any]:
    info: dict[str, Any] = {}
    prompt, output = emission.record.prompt_series, emission.series
    if asked.selected:
        info["input_token_logprobs"] = _entries(prompt.get("input_token_logprobs", ()), asked)
        info["output_token_logprobs"] = _entries(output.get("output_token_logprobs", ()), asked)
        info["output_token_logprobs_length"] = emission.completion_tokens
    for wanted, kind in ((asked.top, "top_logprobs"), (asked.chosen, "token_ids_logprobs")):
        if wanted:
            info[f"input_{kind}"] = _rows(prompt.get(f"input_{kind}", ()), asked)
            info[f"output_{kind}"] = _rows(output.get(f"output_{kind}", ()), asked)
    if asked.mask:
        for name in ("output_token_sampling_mask", "output_token_sampling_logprobs"):
            info[name] = list(output.get(name, ()))
        info["output_token_sampling_mask_length"] = emission.completion_tokens
    return info


def _entries(entries: Sequence[Any], asked: LogprobsAsked) -> list[Any]:
    if asked.tokenizer is None:
        return list(entries)
    return [[entry[0], entry[1], asked.tokenizer.decode([entry[1]])] for entry in entries]


def _rows(rows: Sequence[Any], asked: LogprobsAsked) -> list[Any]:
    return [None if row is None else _entries(row, asked) for row in rows]
