"""Sampling parameters of the OpenAI routes, under their native names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAME_NAME = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
    *("stop", "stop_token_ids", "stop_regex", "no_stop_trim", "ignore_eos", "n"),
    *("skip_special_tokens", "spaces_between_special_tokens", "stream_interval", "custom_params"),
)


def native_sampling_fields(body: Mapping[str, Any], max_new_tokens: int | None) -> dict[str, Any]:
    """What a body says of sampling; a budget of None is what the context holds."""
    given = {name: body[name] for name in _SAME_NAME if body.get(name) is not None}
    given["max_new_tokens"] = max_new_tokens
    given["min_new_tokens"] = body.get("min_tokens")
    given["sampling_seed"] = body.get("seed")
    return given
