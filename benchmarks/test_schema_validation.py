"""Compare jsonschema-rs, which the judge uses, with jsonschema, on the events of a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema_rs
import pytest

from tokenwire.spec_files import load_schema
from tokenwire.wire.capture import read_capture
from tokenwire.wire.event_stream import EventStreamParser

CAPTURE = Path(__file__).parents[1] / "fixtures" / "sglang" / "0.5.23" / "F3_mirror_incr_int4.jsonl.gz"


@pytest.fixture(scope="module")
def events() -> list[Any]:
    """Return the JSON value of every `/generate` event of a capture."""
    values = []
    for exchange in read_capture(CAPTURE):
        if exchange.request.path == "/generate" and (exchange.header("content-type") or "").startswith(
            "text/event"
        ):
            parsed = EventStreamParser().feed(exchange.body)
            values += [json.loads(event.data) for event in parsed if event.data != "[DONE]"]
    return values


@pytest.mark.benchmark(group="schema: every /generate event of one capture")
@pytest.mark.parametrize(
    "validator",
    [
        jsonschema_rs.Draft202012Validator(load_schema("generate-event")),
        jsonschema.Draft202012Validator(load_schema("generate-event")),
    ],
    ids=["jsonschema-rs", "jsonschema"],
)
def test_validate(benchmark: Any, validator: Any, events: list[Any]) -> None:
    verdicts = benchmark(lambda: [validator.is_valid(event) for event in events])
    assert len(verdicts) >= 100
    assert verdicts == [jsonschema_rs.is_valid(load_schema("generate-event"), event) for event in events]
