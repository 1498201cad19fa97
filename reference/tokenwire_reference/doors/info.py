"""Information endpoints of the server."""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
from dataclasses import asdict
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference import __version__
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.doors.answering import submit
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.event_stream import unless_client_leaves
from tokenwire_reference.doors.fault_package import fault_names
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.extras.images import takes_images

HEALTH_TIMEOUT = 20.0
"""Seconds within which a healthy server must generate one token."""


_HIDDEN = "***"
_KEYS = re.compile(r"(--(?:admin-)?api-key[= ])\S+")


async def server_info(http_request: HttpRequest) -> Response:
    """Answer GET /server_info with all server arguments and the facts of the reference engine."""
    served = served_by(http_request)
    info = asdict(served.args) | {
        "api_key": served.args.api_key and _HIDDEN,
        "admin_api_key": served.args.admin_api_key and _HIDDEN,
        "served_model_name": served.args.model_name,
        "tokenizer_path": served.args.model_path,
        "context_length": served.model.context_length,
        "sampling_defaults": "openai",
        "disable_overlap_schedule": True,
        "enable_deterministic_inference": served.batch_invariant,
        "return_hidden_states_mode": None,
        "logprob_rule": "logprobs-at-the-temperature",
        "launch_command": _KEYS.sub(rf"\1{_HIDDEN}", " ".join(sys.argv[1:])),
        "max_req_input_len": served.model.context_length - 1,
        "internal_states": [{"num_live_requests": served.manager.live}],
        "kv_events": None,
        "version": __version__,
        "frontend": "tokenwire-reference",
        "tokenwire_reference": {
            "version": __version__,
            "faults": fault_names(enabled=served.args.enable_faults),
            **served.facts,
        },
    }
    return json_answer(info)


async def model_info(http_request: HttpRequest) -> Response:
    """Answer GET /model_info with facts about the model."""
    served = served_by(http_request)
    return json_answer(
        {
            "model_path": served.args.model_path,
            "served_model_name": served.args.model_name,
            "tokenizer_path": served.args.model_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": served.engine.weight_version,
            "load_format": "auto",
            "reasoning_parser": served.args.reasoning_parser,
            "tool_call_parser": served.args.tool_call_parser,
            "disaggregation_mode": served.args.disaggregation_mode,
            "has_image_understanding": takes_images(served.tokenizer),
            "has_audio_understanding": False,
            "vocab_size": served.model.vocab_size,
            "context_length": served.model.context_length,
            "eos_token_ids": sorted(served.model.eos_token_ids),
        }
    )


async def models(http_request: HttpRequest) -> Response:
    """Answer with the model and its adapters, in the shape of OpenAI's list."""
    served = served_by(http_request)
    names = (served.args.model_name, *served.adapters)
    return json_answer({"object": "list", "data": [_model_card(name, served) for name in names]})


async def model(http_request: HttpRequest) -> Response:
    """Answer with the model or one of its adapters, or with 404."""
    served = served_by(http_request)
    name = http_request.path_params["name"]
    if name != served.args.model_name and name not in served.adapters:
        message = f"there is no model {name!r} here; this server has {served.args.model_name!r}"
        error = {
            "message": message,
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return json_answer({"error": error}, 404)
    return json_answer(_model_card(name, served))


def _model_card(name: str, served: Served) -> dict[str, Any]:
    base = served.args.model_name
    return {
        "id": name,
        "object": "model",
        "created": int(served.started),
        "owned_by": "tokenwire-reference",
        "root": served.args.model_path if name == base else name,
        "parent": None if name == base else base,
        "max_model_len": served.model.context_length,
    }


async def health(http_request: HttpRequest) -> Response:
    """Generate one token and answer 200. Answer 503 if no token was generated in time."""
    served = served_by(http_request)
    probe = Request(
        rid=f"HEALTH_CHECK_{uuid.uuid4().hex}",
        prompt_token_ids=(0,),
        sampling=SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
    )
    try:
        generation = submit(served, [probe], group=None)
    except RefusalError as refusal:
        return Response(status_code=refusal.status)
    try:
        work = asyncio.wait_for(generation.whole(), HEALTH_TIMEOUT)
        emissions = await unless_client_leaves(http_request, work)
    except TimeoutError:
        return Response(status_code=503)
    finally:
        generation.close()
    return Response(status_code=200 if emissions[0].output_ids else 503)


async def ping(http_request: HttpRequest) -> Response:
    """Answer 200 while requests are accepted, 503 once the engine has ended or the server is about to."""
    return Response(status_code=503 if served_by(http_request).why_closed else 200)


async def version(_: HttpRequest) -> Response:
    """Answer GET and POST /version."""
    return json_answer({"version": __version__})


async def root(_: HttpRequest) -> Response:
    """Answer with the name of this server."""
    return json_answer("The Tokenwire reference engine is running")
