"""Adapters by name: chosen by requests, loaded and unloaded while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from tokenwire_reference.core.request import Adapter
from tokenwire_reference.doors.body import read_control
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.served import Served


def adapter_named(name: str | None, served: Served) -> Adapter | None:
    """Return the adapter with this name; None if no name is given.

    Raises RefusalError for an unknown name.
    """
    if not name:
        return None
    if name not in served.adapters:
        loaded = ", ".join(served.adapters) or "none"
        raise RefusalError(f"the adapter {name!r} is not loaded; loaded are: {loaded}", param="lora_path")
    return served.adapters[name]


def adapter_of(body: Mapping[str, Any], served: Served) -> Adapter | None:
    """Return the adapter that a body names: in `lora_path`, as its model, or as `MODEL:ADAPTER`.

    Raises RefusalError for an unknown adapter.
    """
    model = body.get("model") or ""
    if model in served.adapters:
        return served.adapters[model]
    base = f"{served.args.model_name}:"
    behind = model.removeprefix(base) if model.startswith(base) else ""
    return adapter_named(behind or body.get("lora_path"), served)


async def load_adapter(http_request: HttpRequest) -> Response:
    """Load an adapter under a name that is not in use yet."""
    served, body = await read_control(http_request, "load-adapter-request")
    name, path = body["lora_name"], body["lora_path"]
    if name in served.adapters or name == served.args.model_name:
        raise RefusalError(
            f"the adapter {name!r} is already loaded; unload it, or choose another name", param="lora_name"
        )
    try:
        served.adapters[name] = await asyncio.to_thread(served.model.adapters.read, name, path)
    except ValueError as error:
        raise RefusalError(str(error), param="lora_path") from error
    return _done(served, f"Success: LoRA adapter '{name}' added successfully.")


async def unload_adapter(http_request: HttpRequest) -> Response:
    """Unload an adapter. Running requests continue to use it."""
    served, body = await read_control(http_request, "unload-adapter-request")
    name = body["lora_name"]
    adapter_named(name, served)
    del served.adapters[name]
    return _done(served, f"Success: LoRA adapter '{name}' removed successfully.")


def _done(served: Served, words: str) -> Response:
    if served.args.api_dialect == "vllm":
        return PlainTextResponse(words)
    return json_answer({"success": True, "error_message": "", "loaded_adapters": list(served.adapters)})
