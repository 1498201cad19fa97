"""A server that is told to crash cuts its streams: no error, no [DONE], no last chunk."""

from __future__ import annotations

import json

import httpx
import pytest
from forked_program import served_forked

from tokenwire_reference.extras.crash_hook import CRASH_STATUS, CrashAfter


def test_it_counts_rows_and_then_delivers_nothing():
    delivered, crashes = [], []
    hook = CrashAfter(3, delivered.append, lambda: crashes.append(len(delivered)))
    for rows in (["a"], ["b", "c"], ["d"]):
        hook(rows)
    assert (delivered, crashes) == ([["a"], ["b", "c"]], [2])


def read(url, body, lines):
    """Add the lines of a stream to a list, as far as they come."""
    with httpx.stream("POST", url, json=body, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            lines.append(line)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/generate", {"input_ids": [72], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}),
        ("/v1/completions", {"prompt": [72], "max_tokens": 400, "ignore_eos": True}),
    ],
)
def test_a_stream_is_cut_after_so_many_emissions(path, fields):
    flags = ("--test-crash-after-stream-outputs", "3", "--incremental-streaming-output")
    lines = []
    with served_forked(*flags) as (url, server):
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
            read(f"{url}{path}", {**fields, "stream": True}, lines)
        server.join(30)
        assert server.exitcode == CRASH_STATUS
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert 1 <= len(events) <= 3
    if path == "/generate":
        assert sum(len(event["output_ids"]) for event in events) == 3
    assert not any("error" in event for event in events)
