"""What a server refuses for the head of a request, before it has read a body."""

from __future__ import annotations

import asyncio

import pytest

from tokenwire_reference.doors.heads import MOST_HEAD_BYTES, MOST_HEADERS, RefuseHeads, too_long
from tokenwire_reference.server_args import ServerArgs

MANY = [(b"x", b"y")]


def status(headers, *, path="/generate", query=b"") -> int:
    """What a request with this head is answered with; 200 where it is passed on. Its body is not read."""
    sent = []

    async def passed(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message) -> None:
        sent.append(message)

    async def receive():
        raise AssertionError("the body was read")

    scope = {"type": "http", "path": path, "raw_path": path.encode(), "query_string": query}
    app = RefuseHeads(passed, args=ServerArgs(max_body_bytes=100), why=too_long)
    asyncio.run(app({**scope, "headers": headers}, receive, send))
    return sent[0]["status"]


@pytest.mark.parametrize(
    ("headers", "query", "expected"),
    [
        ([], b"", 200),
        (MANY * MOST_HEADERS, b"", 200),
        (MANY * (MOST_HEADERS + 1), b"", 431),
        ([(b"x", b"y" * MOST_HEAD_BYTES)], b"", 431),
        ([], b"y" * MOST_HEAD_BYTES, 431),
        ([(b"content-length", b"100")], b"", 200),
        ([(b"content-length", b"101")], b"", 413),
        ([(b"content-length", b"9" * 5000)], b"", 413),
    ],
)
def test_a_head_beyond_a_limit_is_refused_for_itself(headers, query, expected):
    assert status(headers, query=query) == expected


def test_each_door_refuses_heads(answers, call, scripted_engine):
    (response,) = answers(
        scripted_engine([[5]]), call("/v1/models", method="GET", headers={"x": "y" * MOST_HEAD_BYTES})
    )
    assert response.status_code == 431
    assert "65536 bytes" in response.text
