"""Foreign captures: one line for each exchange, as other recorders write them."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tokenwire.wire.capture import CaptureWriter, exchanges_of
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest
from tokenwire.wire.foreign_capture import any_chunks, foreign_chunks
from tokenwire.wire.json_lines import CaptureError
from tokenwire.wire.redaction import REDACTED
from tokenwire.wire.spill import CaptureReader

_BODY = "data: 好\n\ndata: [DONE]\n\n"


def line(**response: Any) -> dict[str, Any]:
    return {
        "name": "b_stream",
        "note": response.pop("note", ""),
        "server": {"name": "sglang", "version": "0.5.23", "flags": ["--stream-interval", "4"], "env": {}},
        "request": {
            "method": "POST",
            "path": "/generate",
            "headers": {"Authorization": "Bearer x"},
            "body": {"stream": True},
            "body_is_raw_text": False,
        },
        "response": {
            "status": 200,
            "headers": [["Content-Type", "text/event-stream"]],
            "complete": True,
            "http_chunks_ms_len": [[100.0, 11], [250.0, len(_BODY.encode()) - 11]],
            "body": {"text": _BODY},
            **response,
        },
    }


def read(path: Path, *lines: dict[str, Any]) -> list[Exchange]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(exchanges_of(foreign_chunks(path)))


def test_an_exchange(tmp_path: Path) -> None:
    (exchange,) = read(tmp_path / "A_base.jsonl", line())
    assert exchange.name == "b_stream"
    assert exchange.scenario == "A_base"
    assert exchange.request == HttpRequest(
        "POST", "/generate", {"stream": True}, None, (("Authorization", REDACTED),)
    )
    assert exchange.server.flags == ("--stream-interval", "4")
    assert [(item.time, len(item.data)) for item in exchange.reads] == [(0.1, 11), (0.25, 14)]
    assert exchange.body.decode() == _BODY
    assert (exchange.ending, exchange.detail, exchange.duration) == (Ending.COMPLETE, "", 0.25)


def test_flags_as_a_command_line_and_notes_that_are_no_text(tmp_path: Path) -> None:
    written = line(note={"tail": [1, 2]}, complete=False)
    written["server"]["flags"] = "--stream-interval 4"
    (exchange,) = read(tmp_path / "a.jsonl", written)
    assert exchange.server.flags == ("--stream-interval", "4")
    assert exchange.ending is Ending.TRUNCATED


def test_reads_cut_inside_a_character(tmp_path: Path) -> None:
    (exchange,) = read(tmp_path / "x.jsonl", line(http_chunks_ms_len=[[1, 7], [2, len(_BODY.encode()) - 7]]))
    assert exchange.reads[0].data == "data: 好".encode()[:7]
    assert exchange.body.decode() == _BODY


def test_lengths_that_do_not_add_up_cut_nothing(tmp_path: Path) -> None:
    (exchange,) = read(tmp_path / "x.jsonl", line(http_chunks_ms_len=[[10, 5], [30, 5]]))
    assert [(item.time, item.data.decode()) for item in exchange.reads] == [(0.03, _BODY)]


def test_arrivals_with_the_framing(tmp_path: Path) -> None:
    raw = line(recv_s_len=[[0.1, 182], [0.4, 50]], http_chunk_sizes=[11, 14])
    del raw["response"]["http_chunks_ms_len"]
    (exchange,) = read(tmp_path / "x.jsonl", raw)
    assert [(item.time, len(item.data)) for item in exchange.reads] == [(0.4, 11), (0.4, 14)]


@pytest.mark.parametrize(
    ("response", "ending"),
    [
        ({"complete": False}, Ending.TRUNCATED),
        ({"complete": False, "note": "client closed the socket in mid-stream"}, Ending.CANCELLED),
        (
            {"status": 0, "complete": False, "body": {"text": ""}, "http_chunks_ms_len": []},
            Ending.UNREACHABLE,
        ),
    ],
)
def test_endings(tmp_path: Path, response: dict[str, Any], ending: Ending) -> None:
    (exchange,) = read(tmp_path / "x.jsonl", line(**response))
    assert exchange.ending is ending
    assert exchange.detail
    assert (exchange.status is None) == (ending is Ending.UNREACHABLE)


def test_bodies_that_are_no_json(tmp_path: Path) -> None:
    raw = line(body={"base64": base64.b64encode(b"\xff").decode()}, http_chunks_ms_len=[[1, 1]])
    raw["request"] |= {"body": "{broken", "body_is_raw_text": True, "headers": ["X-Request-Id: r-1"]}
    (exchange,) = read(tmp_path / "x.jsonl", raw)
    assert exchange.body == b"\xff"
    assert (exchange.request.body, exchange.request.raw_body) == (None, b"{broken")
    assert exchange.request.headers == (("X-Request-Id", "r-1"),)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    whole = json.dumps(line())
    path.write_text(whole + "\n" + whole[:-20])
    assert len(list(exchanges_of(foreign_chunks(path)))) == 1
    path.write_text(whole[:-20] + "\n" + whole + "\n")
    with pytest.raises(CaptureError, match=r"x\.jsonl, line 1"):
        list(exchanges_of(foreign_chunks(path)))


def test_either_form_is_told_by_its_first_line(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.jsonl.gz"
    foreign.write_bytes(gzip.compress((json.dumps(line()) + "\n").encode()))
    (exchange,) = exchanges_of(any_chunks(foreign))
    with CaptureWriter(tmp_path).open("own") as file:
        file.exchange(exchange)
    assert list(exchanges_of(any_chunks(tmp_path / "own.jsonl"))) == [exchange]
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    assert list(exchanges_of(any_chunks(empty))) == []


def test_an_exchange_is_read_again_from_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    ours = read(path, line(), line(status=400), line(body={"text": "好" * 9}))
    located = [item for chunk in foreign_chunks(path) for item in chunk.located()]
    captures = CaptureReader()
    captures.add(path)
    assert [captures.exchange("b_stream", item.span) for item in reversed(located)] == ours[::-1]
    path.write_text(path.read_text().replace("b_stream", "c_stream"))
    with pytest.raises(CaptureError, match=r"x\.jsonl has changed"):
        captures.exchange("b_stream", located[0].span)
