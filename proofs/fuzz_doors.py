"""Requests that schemathesis generates from the reference's OpenAPI document. They must not crash the server.

The server runs in this process, with a small model. Half of the requests fit the document, and the other half
violate it. No answer may have a status of 500 or above, in its head or in an event. At the end, the server
must not keep any request.

    python -m proofs.fuzz_doors                              100 requests of each kind to each endpoint
    python -m proofs.fuzz_doors --examples 1000 --dialect vllm --seed 7

Exit status: 0 if nothing failed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import httpx
import schemathesis
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode

from tokenwire_reference.doors.app import build_app
from tokenwire_reference.loading import load_model
from tokenwire_reference.running.engine_runner import EngineRunner
from tokenwire_reference.serve import assemble
from tokenwire_reference.server_args import ServerArgs

CONTEXT_LENGTH = 256
_BUDGETS = ("max_new_tokens", "max_tokens", "max_completion_tokens")
_FAILED_IN_BAND = re.compile(rb'"(code|status_code)":5\d\d')

Send = Callable[[dict[str, Any]], httpx.Response]


def fuzz(
    dialect: str, examples: int, *, random_seed: int | None = None, only: Collection[str] = ()
) -> Counter[tuple[str, int]]:
    """Send `examples` requests of each kind to each endpoint, and count the statuses by path.

    Without a seed, the requests are the same each time. `only` names the paths; if it is empty, all paths are
    used. Raises AssertionError for a request that fails, and for a request that is still running at the end.
    """
    statuses: Counter[tuple[str, int]] = Counter()
    with _served(dialect) as send:
        document = send({"method": "GET", "url": "/openapi.json"}).json()
        for result in schemathesis.openapi.from_dict(_sharpened(document)).get_all_operations():
            door = result.ok()
            if only and door.path not in only:
                continue
            for mode in GenerationMode if door.body else (GenerationMode.POSITIVE,):
                run = settings(
                    max_examples=examples,
                    derandomize=random_seed is None,
                    database=None,
                    deadline=None,
                    phases=[Phase.generate, Phase.shrink],
                    suppress_health_check=list(HealthCheck),
                )(given(case=door.as_strategy(generation_mode=mode))(_asking(mode, send, statuses)))
                (run if random_seed is None else seed(random_seed)(run))()
    return statuses


def _asking(mode: GenerationMode, send: Send, statuses: Counter[tuple[str, int]]) -> Callable[[Case], None]:
    """Return a function that sends one request and counts its status. It raises AssertionError if the request
    fails.
    """

    def ask(case: Case) -> None:
        asked = case.as_transport_kwargs()
        if mode is GenerationMode.POSITIVE and "json" in asked:
            asked["json"] = json.loads(json.dumps(asked["json"]), parse_float=_plain)
        response = send(asked)
        statuses[case.operation.path, response.status_code] += 1
        failed = response.status_code >= 500 or _FAILED_IN_BAND.search(response.content)
        assert not failed, f"{asked} was answered with {response.text[:500]}"

    return ask


@contextlib.contextmanager
def _served(dialect: str) -> Iterator[Send]:
    """Run a server in this process, and yield a function that sends it a request and returns the response."""
    loop = asyncio.new_event_loop()
    args = ServerArgs(api_dialect=dialect, enable_metrics=True, chunked_prefill_size=CONTEXT_LENGTH)
    torch.set_num_threads(args.cpu_threads)
    served = assemble(args, load_model("builtin:tiny", context_length=CONTEXT_LENGTH), loop)
    app = httpx.ASGITransport(build_app(served), raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=app, base_url="http://reference")

    def send(request: dict[str, Any]) -> httpx.Response:
        """Send a request. If it paused the server, end the pause before the next request."""
        asked = {
            name: request[name] for name in ("method", "url", "headers", "params", "json") if name in request
        }
        response = loop.run_until_complete(client.request(**asked, content=request.get("data")))
        loop.run_until_complete(client.post("/continue_generation"))
        return response

    served.runner.start()
    try:
        yield send
        assert send({"method": "GET", "url": "/health"}).status_code == 200
        assert served.manager.live == 0
        runner = served.runner
        assert isinstance(runner, EngineRunner), "one rank"
        runner.call(served.engine.check_integrity).result()
    finally:
        loop.run_until_complete(asyncio.to_thread(served.runner.stop))
        loop.close()


def _plain(number: str) -> float:
    """Return 7 for 7.0, which is an integer in JSON Schema, but not for the server."""
    return int(float(number)) if float(number).is_integer() else float(number)


def _sharpened(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose requests are valid more often: the ids exist in the model, and the budgets are
    small.
    """
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        if name.endswith(".tokenId"):
            schema["exclusiveMaximum"] = 300
        for field in _BUDGETS:
            if field in (properties := schema.get("properties", {})):
                properties[field] = {"type": "integer", "minimum": 1, "maximum": 8}
                schema["required"] = [*schema.get("required", ()), field]
    schemas["generate-request"]["required"] = ["input_ids", "sampling_params"]
    return document


def main() -> int:
    """Run the command line program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=100, help="requests of each kind to each door")
    parser.add_argument("--dialect", choices=("sglang", "vllm"), action="append", help="both if not given")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for dialect in options.dialect or ("sglang", "vllm"):
        try:
            statuses = fuzz(dialect, options.examples, random_seed=options.seed)
        except AssertionError as failure:
            print(failure)
            return 1
        print(f"{dialect}: {statuses.total()} requests, none failed")
        for (path, status), times in sorted(statuses.items()):
            print(f"  {path} {status}: {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
