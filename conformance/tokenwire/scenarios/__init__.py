"""The scenarios of the standard run. Importing this package registers them all."""

from tokenwire.scenarios import (
    batch,
    cache,
    chat,
    continuation,
    delivery,
    determinism,
    logprobs,
    pressure,
    prompt,
    refusal,
    request_id,
    stop,
)

__all__ = [
    "batch",
    "cache",
    "chat",
    "continuation",
    "delivery",
    "determinism",
    "logprobs",
    "pressure",
    "prompt",
    "refusal",
    "request_id",
    "stop",
]
