"""A router in front of a server that prefills and a server that decodes. It treats a request like SGLang's
router.

    python -m proofs.killing.router PREFILL DECODE

It prints its URL. Both servers get each POST request, with a new bootstrap room for each prompt. The client
gets the response of the decoding server, byte for byte. Other requests go only to the prefilling server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

_PROMPTS = ("input_ids", "text", "prompt")
_OF_A_CONNECTION = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


def _shared(body: Any, port: int, rooms: count[int]) -> Any:
    """Return a body with a bootstrap room for each of its prompts. Any other value is returned unchanged."""
    if not isinstance(body, dict):
        return body
    given = next((body[name] for name in _PROMPTS if body.get(name)), None)
    listed = given if isinstance(given, list) and not isinstance(given[0], int) else None
    room = next(rooms) if listed is None else [next(rooms) for _ in listed]
    return {**body, "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}


def _passed_on(headers: httpx.Headers | Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OF_A_CONNECTION}


def router(prefill: str, decode: str) -> Starlette:
    """Return the application that routes requests to the servers at two URLs."""
    info = httpx.get(f"{prefill}/server_info", timeout=60).json()["tokenwire_reference"]
    rooms = count(1)
    # Connections are not reused, because the server may close one just when a request is sent on it.
    fresh = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    client = httpx.AsyncClient(timeout=None, limits=fresh)
    prefilling: set[asyncio.Task[httpx.Response]] = set()

    async def serve(request: Request) -> Response:
        body = await request.body()
        with contextlib.suppress(ValueError):
            body = json.dumps(
                _shared(json.loads(body), info["disaggregation_bootstrap_port"], rooms)
            ).encode()
        path = f"{request.url.path}?{request.url.query}".removesuffix("?")
        asked, *besides = (
            client.build_request(
                request.method, url + path, content=body, headers=_passed_on(request.headers)
            )
            for url in ((decode, prefill) if request.method == "POST" else (prefill,))
        )
        for other in besides:
            task = asyncio.ensure_future(client.send(other))
            prefilling.add(task)
            task.add_done_callback(prefilling.discard)
        answer = await client.send(asked, stream=True)
        return StreamingResponse(
            answer.aiter_raw(),
            answer.status_code,
            _passed_on(answer.headers),
            background=BackgroundTask(answer.aclose),
        )

    return Starlette(routes=[Route("/{path:path}", serve, methods=["GET", "POST", "DELETE"])])


def main(urls: Sequence[str]) -> None:
    """Serve until the process is stopped."""
    listening = socket.create_server(("127.0.0.1", 0))
    app = router(*urls)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1:])
