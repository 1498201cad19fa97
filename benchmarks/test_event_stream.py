"""Our event-stream parser beside httpx-sse, on what a real server sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest

from tokenwire.wire.capture import read_capture
from tokenwire.wire.event_stream import EventStreamParser

CAPTURE = Path(__file__).parents[1] / "fixtures" / "sglang" / "0.5.23" / "S3_retract_stream.jsonl.gz"


@pytest.fixture(scope="module")
def streams() -> list[list[bytes]]:
    """Return the reads of every stream of a capture."""
    return [
        [read.data for read in exchange.reads]
        for exchange in read_capture(CAPTURE)
        if (exchange.header("content-type") or "").startswith("text/event-stream")
    ]


def _ours(streams: list[list[bytes]]) -> list[str]:
    data = []
    for reads in streams:
        parser = EventStreamParser()
        data += [event.data for read in reads for event in parser.feed(read)]
    return data


class _Reads(httpx.SyncByteStream):
    def __init__(self, reads: list[bytes]) -> None:
        self._reads = reads

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._reads)


def _httpx_sse(streams: list[list[bytes]]) -> list[str]:
    data = []
    for reads in streams:
        response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Reads(reads))
        data += [event.data for event in httpx_sse.EventSource(response).iter_sse()]
    return data


@pytest.mark.benchmark(group="event stream: one capture, every event of every stream")
@pytest.mark.parametrize("parse", [_ours, _httpx_sse], ids=["tokenwire", "httpx-sse"])
def test_parse(benchmark: Any, parse: Any, streams: list[list[bytes]]) -> None:
    events = benchmark(parse, streams)
    assert events == _ours(streams)
    assert len(events) > 300
