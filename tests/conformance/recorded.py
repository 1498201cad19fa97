"""Exchanges as a small SGLang would write them, and captures of them, for tests of replay and the command
line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenwire.wire.capture import CaptureWriter
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

IDS = [104, 101, 108, 108, 111, 33]


def meta_info(delivered: list[int], *, finished: bool, request_id: str) -> dict[str, Any]:
    finish = {"type": "length", "length": len(delivered)} if finished else None
    return {
        "id": request_id,
        "finish_reason": finish,
        "prompt_tokens": 2,
        "weight_version": "default",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": len(delivered),
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
    }


def document(delivered: list[int], *, finished: bool, request_id: str = "r1") -> dict[str, Any]:
    return {
        "text": bytes(delivered).decode("latin-1"),
        "output_ids": delivered,
        "meta_info": meta_info(delivered, finished=finished, request_id=request_id),
    }


def request(*, stream: bool) -> HttpRequest:
    body = {
        "input_ids": [1, 2],
        "sampling_params": {"temperature": 0, "max_new_tokens": len(IDS)},
        "stream": stream,
    }
    return HttpRequest("POST", "/generate", body)


def whole(name: str, scenario: str = "by-hand") -> Exchange:
    body = json.dumps(document(IDS, finished=True, request_id=name)).encode()
    return Exchange(
        name,
        request(stream=False),
        scenario,
        200,
        (("content-type", "application/json"),),
        (Read(0.1, body),),
        Ending.COMPLETE,
        started=name,
    )


def streamed(name: str, scenario: str = "by-hand", *, forgets_an_id: bool = False) -> Exchange:
    """A cumulative stream; with `forgets_an_id`, its last event has lost the third id and does not say so."""
    reads = []
    for end in range(1, len(IDS) + 1):
        event = document(IDS[:end], finished=end == len(IDS), request_id=name)
        if forgets_an_id and end == len(IDS):
            del event["output_ids"][2]
        reads.append(Read(0.1 * end, f"data: {json.dumps(event)}\n\n".encode()))
    reads.append(Read(0.1 * len(IDS) + 0.1, b"data: [DONE]\n\n"))
    return Exchange(
        name,
        request(stream=True),
        scenario,
        200,
        (("content-type", "text/event-stream; charset=utf-8"),),
        tuple(reads),
        Ending.COMPLETE,
        started=name,
    )


def write_folder(folder: Path, *exchanges: Exchange) -> Path:
    """The exchanges as `--record` writes them, a file for each."""
    writer = CaptureWriter(folder)
    for exchange in exchanges:
        with writer.open(exchange.name) as file:
            file.exchange(exchange)
    return folder


def write_file(path: Path, *exchanges: Exchange) -> Path:
    """The exchanges in one file, as another recorder might write them: one to a line."""
    lines = [
        {
            "name": exchange.name,
            "server": {"name": "sglang", "version": "0.0.0", "flags": []},
            "request": {
                "method": exchange.request.method,
                "path": exchange.request.path,
                "headers": {},
                "body": exchange.request.body,
            },
            "response": {
                "status": exchange.status,
                "headers": [list(pair) for pair in exchange.headers],
                "complete": True,
                "body": {"text": exchange.body.decode()},
            },
        }
        for exchange in exchanges
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path
