"""Why a choice ended, as vLLM says it."""

from __future__ import annotations

from typing import Any

from tokenwire_reference.api.vllm.call import VllmCall
from tokenwire_reference.delivery.request_manager import Emission


def finish_fields(emission: Emission, call: VllmCall) -> dict[str, Any]:
    """`finish_reason`, and `stop_reason`: the stop string or the stop id, null for the end of sequence."""
    finish = emission.finish
    if finish is None:
        return {"finish_reason": None, "stop_reason": None}
    matched = finish.matched
    stop_ids = call.requests[emission.index].sampling.stop_token_ids
    by_itself = isinstance(matched, int) and matched not in stop_ids
    return {"finish_reason": finish.type, "stop_reason": None if by_itself else matched}
