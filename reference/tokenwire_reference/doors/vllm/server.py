"""What a vLLM server says of itself, and how its requests are aborted."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference import __version__
from tokenwire_reference.doors.body import hold_against_schema, read_object
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.served import served_by
from tokenwire_reference.doors.vllm.generate import ID_PREFIX


async def version(_: HttpRequest) -> Response:
    """Answer GET and POST /version."""
    return json_answer({"version": __version__})


async def abort_requests(http_request: HttpRequest) -> Response:
    """Abort requests by the ids that clients chose or that answers bear. Unknown ids are no error."""
    served = served_by(http_request)
    body = hold_against_schema(await read_object(http_request), "abort-requests-request")
    for name in body["request_ids"]:
        served.manager.abort(name)
        served.manager.abort(ID_PREFIX + name)
    return Response()
