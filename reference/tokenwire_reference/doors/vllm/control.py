"""vLLM's control endpoints, which vLLM serves only in its development mode."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.engine import PauseMode
from tokenwire_reference.core.seams import current_seams
from tokenwire_reference.doors.body import read_control
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.keys import refuse_control
from tokenwire_reference.doors.served import served_by

_MODES: dict[str, PauseMode] = {"abort": "abort", "keep": "in_place"}


async def pause(http_request: HttpRequest) -> Response:
    """Pause, until `/resume`.

    Running requests end (`abort`) or stay unchanged (`keep`). New requests wait.
    """
    refuse_control(http_request)
    named = http_request.query_params.get("mode", "abort")
    mode = _MODES.get(named)
    if mode is None:
        raise RefusalError(f"mode is {named!r}; send abort or keep", param="mode")
    if current_seams().pausing():
        await served_by(http_request).of_engines(lambda engine: engine.pause(mode))
    return json_answer({"status": "paused"})


async def is_paused(http_request: HttpRequest) -> Response:
    """Report if the server is paused."""
    paused = await served_by(http_request).of_engines(lambda engine: engine.paused)
    return json_answer({"is_paused": any(paused)})


async def resume(http_request: HttpRequest) -> Response:
    """Continue after a pause; without one, there is no effect."""
    refuse_control(http_request)
    await served_by(http_request).of_engines(lambda engine: engine.continue_generation())
    return json_answer({"status": "resumed"})


async def update_weight_version(http_request: HttpRequest) -> Response:
    """Give the weights another version, without a change of the weights. Running requests continue."""
    served, body = await read_control(http_request, "rename-request")
    version = body["new_version"]
    await served.of_engines(lambda engine: engine.rename_weights(version))
    return json_answer({"success": True, "new_version": version})
