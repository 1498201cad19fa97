"""Control endpoints (all POST): abort requests, flush the cache, pause the engine."""

from __future__ import annotations

import asyncio
import uuid

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from tokenwire_reference.core.seams import current_seams
from tokenwire_reference.doors.body import read_body, read_control
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.keys import refuse_control
from tokenwire_reference.doors.served import served_by


async def abort_request(http_request: HttpRequest) -> Response:
    """Abort `rid`, or everything with `abort_all`.

    An unknown id is not an error, because the request may just have ended. An id must match completely, not
    as a prefix. The id of a batch or of several samples aborts all of its requests.
    """
    served = served_by(http_request)
    body = await read_body(http_request, "abort-request")
    rid = body.get("rid")
    if body.get("abort_all"):
        refuse_control(http_request)
        served.manager.abort_all()
    elif rid is not None:
        served.manager.abort(rid)
    return Response()


async def flush_cache(http_request: HttpRequest) -> Response:
    """Clear all cached prefixes; refused while requests are running or waiting."""
    refuse_control(http_request)
    served = served_by(http_request)
    flushes = current_seams().flushing()
    if not flushes or all(await served.of_engines(lambda engine: engine.flush_cache())):
        return PlainTextResponse("Cache flushed.\n")
    return PlainTextResponse("Cache not flushed: requests are running or waiting.\n", status_code=400)


async def pause_generation(http_request: HttpRequest) -> Response:
    """Pause, until `/continue_generation`.

    Running and waiting requests end with their tokens so far (`abort`), lose their cache and wait
    (`retract`), or stay unchanged (`in_place`). New requests wait.
    """
    served, body = await read_control(http_request, "pause-request")
    mode = body.get("mode", "abort")
    if current_seams().pausing():
        await served.of_engines(lambda engine: engine.pause(mode))
    return json_answer({"message": "Generation paused successfully.", "status": "ok"})


async def update_weights(http_request: HttpRequest) -> Response:
    """Load the weights of another model with the same shapes, and use these weights from now on.

    The cache is cleared, unless the body sets `flush_cache` to false. Refused while requests are running.
    """
    served, body = await read_control(http_request, "update-weights-request")
    if served.args.dp_size > 1 or served.args.hicache_storage_dir is not None:
        raise RefusalError(
            "weights cannot be updated on a server with --dp-size or --hicache-storage-dir; "
            "restart the server with the new model"
        )
    try:
        put = await asyncio.to_thread(served.model.other_weights, body["model_path"])
    except (ValueError, OSError) as error:
        raise RefusalError(str(error), param="model_path") from error
    if body.get("abort_all_requests"):
        served.manager.abort_all()
    flush, version = body.get("flush_cache") is not False, body.get("weight_version") or ""
    flush = flush and current_seams().flushing()
    if not all(await served.of_engines(lambda engine: engine.update_weights(put, version, flush=flush))):
        raise RefusalError(
            "requests are running; wait until they have ended, or send abort_all_requests=true"
        )
    return json_answer({"success": True, "message": "Succeeded to update model weights."})


async def update_weight_version(http_request: HttpRequest) -> Response:
    """Give the weights another version, without a change of the weights.

    Running requests end, unless the body sets `abort_all_requests` to false.
    """
    served, body = await read_control(http_request, "rename-request")
    if body.get("abort_all_requests") is not False:
        served.manager.abort_all()
    version = body["new_version"]
    await served.of_engines(lambda engine: engine.rename_weights(version))
    message = f"Weight version updated to {version}"
    return json_answer({"success": True, "message": message, "new_version": version})


async def open_session(http_request: HttpRequest) -> Response:
    """Open a session and answer with its id, which is the requested one or a new one."""
    served, body = await read_control(http_request, "open-session-request")
    session = body.get("session_id") or uuid.uuid4().hex
    if not served.sessions.open(session, appends=bool(body.get("streaming"))):
        raise RefusalError("Failed to open the session. Check if a session with the same id is still open.")
    return json_answer(session)


async def close_session(http_request: HttpRequest) -> Response:
    """Remove a session with its turns. An unknown id is not an error."""
    served, body = await read_control(http_request, "close-session-request")
    served.sessions.close(body.get("session_id") or "")
    return Response()


async def continue_generation(http_request: HttpRequest) -> Response:
    """Continue after a pause; without one, there is no effect. The body may be empty."""
    served, _ = await read_control(http_request, "continue-request", empty=True)
    await served.of_engines(lambda engine: engine.continue_generation())
    return json_answer({"message": "Generation continued successfully.", "status": "ok"})
