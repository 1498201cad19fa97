"""Aborting requests and flushing the cache."""

from __future__ import annotations

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from tokenwire_reference.api.body import read_object
from tokenwire_reference.api.errors import MALFORMED, RefusalError
from tokenwire_reference.served import served_by


async def abort_request(http_request: HttpRequest) -> Response:
    """Abort `rid`, or everything with `abort_all`.

    An id that nobody has is no error: the request may just have ended. An id is matched whole, never as a
    prefix; that of a batch or of several samples aborts them all.
    """
    served = served_by(http_request)
    body = await read_object(http_request)
    rid, abort_all = body.get("rid"), body.get("abort_all", False)
    if not isinstance(rid, str | None) or not isinstance(abort_all, bool | None):
        raise RefusalError(
            f"rid is {rid!r} and abort_all {abort_all!r}; send a string and a boolean", type=MALFORMED
        )
    if abort_all:
        served.manager.abort_all()
    elif rid is not None:
        served.manager.abort(rid)
    return Response()


async def flush_cache(http_request: HttpRequest) -> Response:
    """Forget all cached prefixes; refused while requests are running or waiting."""
    served = served_by(http_request)
    flushed = await asyncio.wrap_future(served.engine_thread.call(served.engine.flush_cache))
    if flushed:
        return PlainTextResponse("Cache flushed.\n")
    return PlainTextResponse("Cache not flushed: requests are running or waiting.\n", status_code=400)
