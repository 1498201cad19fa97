"""vLLM's sampling parameters, under their native names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.sampling_fields import native_sampling_fields

_UNSUPPORTED = (
    *(
        "guided_json",
        "guided_regex",
        "tools",
        "functions",
        "use_beam_search",
    ),
    *("bad_words", "allowed_token_ids", "logits_processors", "truncate_prompt_tokens", "prompt_embeds"),
    *("suffix", "kv_transfer_params", "features", "add_special_tokens"),
)


def refuse_unsupported(body: Mapping[str, Any], *, offered: Collection[str] = ()) -> None:
    """Raise RefusalError for a field that would be ignored in silence, unless this endpoint offers it."""
    for name in _UNSUPPORTED:
        if body.get(name) and name not in offered:
            raise RefusalError(f"{name} is not supported by the reference engine; leave it out", param=name)


def native_fields(body: Mapping[str, Any], budget: int | None, server_interval: int) -> dict[str, Any]:
    """What a body says of sampling. A request can only raise the interval that the server has."""
    given = native_sampling_fields(body, budget)
    given["min_tokens_before_stop"] = body.get("min_tokens")
    if given.get("top_k") == 0:
        given["top_k"] = -1
    given["no_stop_trim"] = bool(body.get("include_stop_str_in_output"))
    given["stream_interval"] = max(body.get("stream_interval") or 1, server_interval)
    return given


def refuse_what_does_not_fit(prompt_tokens: int, budget: int | None, context_length: int) -> None:
    """Raise RefusalError for a prompt, or a prompt with its budget, that the context does not hold."""
    if (budget or 0) > context_length:
        raise RefusalError(
            f"max_tokens is {budget}, more than the context length of {context_length}; ask for fewer",
            param="max_tokens",
        )
    # vLLM wants room for one token at least.
    if prompt_tokens + (budget or 1) > context_length:
        raise RefusalError(
            f"the prompt has {prompt_tokens} tokens, which with {budget or 1} new ones (max_tokens) is more "
            f"than the context length of {context_length}; shorten it or ask for fewer",
            param="input_tokens",
        )
