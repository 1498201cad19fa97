"""Answers as they stand on the wire, read by their dialects."""

from __future__ import annotations

import json
from typing import Any

from control_calls import clock

from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Stream
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

DONE = "[DONE]"


def _json(value: Any) -> str:
    """JSON, in which half of a surrogate pair is escaped."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def answered(
    dialect: str,
    body: dict[str, Any],
    *answers: Any,
    status: int = 200,
    label: str = "one",
    scenario: str = "one",
    seconds: float = 0.0,
    named: bool = True,
) -> Stream:
    """An exchange, read by its dialect: a document, or the events of a stream, one read for each.

    `named`: events have their type as their name where the dialect names them.
    """
    spoken = load_dialects()[dialect]
    written = [item if isinstance(item, str) else _json(item) for item in answers]
    streams = bool(body.get("stream")) and status == 200
    has_names = named and spoken.has_items
    names = [f"event: {item['type']}\n" if has_names and "type" in item else "" for item in answers]
    data = [f"{name}data: {item}\n\n" if streams else item for name, item in zip(names, written, strict=True)]
    exchange = Exchange(
        f"{dialect}/{scenario}/{label}",
        HttpRequest(spoken.endpoint.methods[0], spoken.endpoint.path, body),
        scenario,
        status,
        (("content-type", "text/event-stream" if streams else "application/json"),),
        tuple(Read(0.1 * number, item.encode()) for number, item in enumerate(data, 1)),
        Ending.COMPLETE,
        duration=0.1 * len(data),
        started=clock(seconds),
    )
    return spoken.read(exchange)
