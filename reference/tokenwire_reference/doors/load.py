"""The load of the server: `/v1/loads`, `/get_load`, vLLM's `/load`, and `/metrics`."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from tokenwire_reference import __version__
from tokenwire_reference.core.load import EngineLoad, total_load
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.meters import METRICS_TYPE, exposition
from tokenwire_reference.doors.served import Served, served_by


async def _loads(served: Served) -> list[EngineLoad]:
    return await served.of_engines(lambda engine: engine.load)


async def loads(http_request: HttpRequest) -> Response:
    """Answer GET /v1/loads: a load for each rank."""
    served = served_by(http_request)
    meters, most = served.manager.meters, served.args.max_running_requests
    between = {} if served.disaggregation is None else served.disaggregation.load()
    hits = meters.cached_tokens / meters.prompt_tokens if meters.prompt_tokens else 0.0
    return json_answer(
        {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": __version__,
            "accelerator": None if served.args.device == "cpu" else served.args.device,
            "num_accelerators": 1,
            "loads": [
                {
                    "timestamp": time.time(),
                    "dp_rank": rank,
                    "num_running_reqs": load.running,
                    "num_waiting_reqs": load.waiting,
                    "num_used_tokens": load.used_tokens,
                    "num_total_tokens": load.used_tokens,
                    "max_total_num_tokens": load.total_tokens,
                    "max_running_requests": most,
                    "token_usage": load.used_tokens / load.total_tokens,
                    "cache_hit_rate": hits,
                    "utilization": load.running / most,
                    "memory": {"token_capacity": load.total_tokens},
                    "disaggregation": {"mode": served.args.disaggregation_mode, **between},
                    "queues": {"waiting": load.waiting},
                }
                for rank, load in enumerate(await _loads(served))
            ],
        }
    )


async def get_load(http_request: HttpRequest) -> Response:
    """Answer GET /get_load, an older endpoint than /v1/loads. Gateways still use it."""
    return json_answer(
        [
            {
                "dp_rank": rank,
                "num_reqs": load.running + load.waiting,
                "num_waiting_reqs": load.waiting,
                "num_tokens": load.used_tokens,
            }
            for rank, load in enumerate(await _loads(served_by(http_request)))
        ]
    )


async def server_load(http_request: HttpRequest) -> Response:
    """Answer GET /load with vLLM's number of running requests."""
    return json_answer({"server_load": served_by(http_request).manager.live})


async def metrics(http_request: HttpRequest) -> Response:
    """Answer GET /metrics in Prometheus' text format; 404 if the server does not measure."""
    served = served_by(http_request)
    if not served.args.enable_metrics and served.args.api_dialect == "sglang":
        raise HTTPException(404)
    text = exposition(served.args, served.manager.meters, total_load(await _loads(served)))
    return PlainTextResponse(text, media_type=METRICS_TYPE)
