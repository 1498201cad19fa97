"""Captures on disk: what is written is read, wherever the file ends, and no secret is in it."""

import contextlib
import gzip
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.spec_files import load_schema
from tokenwire.wire import json_lines
from tokenwire.wire.capture import CaptureWriter, capture_chunks, exchange_lines, read_capture, status_of
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, Server, exchange_name
from tokenwire.wire.inert import inert
from tokenwire.wire.json_lines import CaptureError
from tokenwire.wire.redaction import REDACTED

EXCHANGE = Exchange(
    name="generate/greedy-stream",
    request=HttpRequest("POST", "/generate?x=1", {"input_ids": [1, 2]}, headers=(("X-Trace", "7"),)),
    scenario="greedy",
    status=200,
    headers=(("Content-Type", "text/event-stream"), ("Via", "a"), ("Via", "b")),
    reads=(Read(0.25, "data: 好".encode()[:-1]), Read(0.5, b"\xbd\n\ndata: [DONE]\n\n")),
    ending=Ending.COMPLETE,
    duration=0.75,
    started="2026-11-20T13:36:15.000+00:00",
    server=Server("sglang", "0.5.23", ("--stream-interval", "4")),
)


@pytest.mark.parametrize(
    ("name", "scenario", "dialect", "label"),
    [
        (exchange_name("greedy", "whole", "sglang-chat"), "greedy", "sglang-chat", "whole"),
        (exchange_name("greedy", "a/b", "sglang-chat"), "greedy", "sglang-chat", "a/b"),
        (exchange_name("preflight", "v1/models"), "preflight", "", "v1/models"),
        ("sglang-chat/greedy/whole", "by-others", "", "sglang-chat/greedy/whole"),
        ("sglang-chat/1", "greedy", "", "sglang-chat/1"),
        ("sglang-chat", "sglang-chat", "", "sglang-chat"),
        ("watched/00000007", "watch", "", "watched/00000007"),
    ],
)
def test_only_a_name_of_our_form_tells_a_dialect(name: str, scenario: str, dialect: str, label: str) -> None:
    exchange = replace(EXCHANGE, name=name, scenario=scenario)
    assert (exchange.named_dialect, exchange.label) == (dialect, label)


def write(directory: Path, exchange: Exchange, *, compress: bool = False) -> Path:
    with CaptureWriter(directory, compress=compress).open(exchange.name) as file:
        file.exchange(exchange)
    (path,) = (path for path in directory.rglob("*") if path.is_file())
    return path


@pytest.mark.parametrize("compress", [False, True])
def test_what_was_written_is_read(tmp_path: Path, compress: bool) -> None:
    path = write(tmp_path, EXCHANGE, compress=compress)
    assert path.relative_to(tmp_path).as_posix() == "generate/greedy-stream.jsonl" + (
        ".gz" if compress else ""
    )
    assert list(read_capture(path)) == [EXCHANGE]


@pytest.mark.parametrize(
    "value",
    ["\ud800", 10**30, 2**64, 1.0, 1e-7, -0.0, 5e-324, 0.1 + 0.2, True, None, "\u2028\x7f", {"a": {}}],
)
def test_a_value_is_read_from_a_line_as_json_reads_it(tmp_path: Path, value: object) -> None:
    asked = replace(EXCHANGE, request=HttpRequest("POST", "/generate", {"text": value, "again": [value]}))
    (read,) = read_capture(write(tmp_path, asked))
    assert repr(read.request.body) == repr({"text": value, "again": [value]})


_HEADERS = st.lists(st.tuples(st.sampled_from(["Via", "X-A", "Date"]), st.text(max_size=5))).map(tuple)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_TIMES = st.floats(0, 1e6)


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    request = HttpRequest("POST", "/x", draw(_JSON), headers=draw(_HEADERS))
    if draw(st.booleans()):
        request = HttpRequest("PUT", "/y", None, draw(st.binary(max_size=8)), draw(_HEADERS))
    status = draw(st.none() | st.integers(100, 599))
    return Exchange(
        inert(draw(st.text(min_size=1, max_size=5))),
        request,
        inert(draw(st.text(max_size=5))),
        status,
        draw(_HEADERS) if status else (),
        tuple(
            Read(t, d)
            for t, d in draw(st.lists(st.tuples(_TIMES, st.binary(min_size=1, max_size=8)), max_size=4))
        )
        if status
        else (),
        draw(st.sampled_from(Ending)),
        inert(draw(st.text(max_size=5))),
        draw(_TIMES),
        server=Server(*map(inert, draw(st.tuples(st.text(max_size=3), st.text(max_size=3))))),
    )


@given(st.lists(exchanges(), max_size=3))
@settings(deadline=None)
def test_any_exchanges_survive_and_fit_the_schema(
    tmp_path_factory: pytest.TempPathFactory, given: list[Exchange]
) -> None:
    lines = [line for exchange in given for line in exchange_lines(exchange)]
    validator = jsonschema.Draft202012Validator(load_schema("exchange"))
    for line in lines:
        validator.validate(line)
    path = tmp_path_factory.mktemp("capture") / "all.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(read_capture(path)) == given


@pytest.mark.parametrize(
    "defect",
    [
        {"kind": "response", "status": "200", "headers": []},
        {"kind": "response", "status": 200, "headers": [["a"]]},
        {"kind": "read", "time": 0.1},
        {"kind": "read", "time": 0.1, "text": "a", "base64": "YQ=="},
        {"kind": "read", "time": -1, "text": "a"},
        {"kind": "read", "time": 1, "base64": "%"},
        {"kind": "end", "time": 1, "ending": "gone", "detail": ""},
        {"kind": "note", "text": "a"},
    ],
)
def test_the_schema_refuses(defect: dict[str, object]) -> None:
    assert not jsonschema.Draft202012Validator(load_schema("exchange")).is_valid(defect)


def test_a_file_cut_off_anywhere_is_readable(tmp_path: Path) -> None:
    whole = write(tmp_path, EXCHANGE).read_bytes()
    cut = tmp_path / "cut.jsonl"
    first_line = whole.index(b"\n") + 1
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        read = list(read_capture(cut))
        if length < first_line:
            assert read == []
            continue
        (exchange,) = read
        assert exchange.request == EXCHANGE.request
        assert exchange.ending is Ending.CANCELLED
        assert "capture" in exchange.detail
        assert EXCHANGE.body.startswith(exchange.body)
        lines = whole[:length].count(b"\n")
        assert exchange.status == (200 if lines >= 2 else None)
        assert len(exchange.reads) == max(0, lines - 2)


def test_a_gzipped_file_cut_off_anywhere_is_readable(tmp_path: Path) -> None:
    whole = write(tmp_path, EXCHANGE, compress=True).read_bytes()
    cut = tmp_path / "cut.jsonl.gz"
    most = 0
    for length in range(len(whole) - 8):
        cut.write_bytes(whole[:length])
        for exchange in read_capture(cut):
            assert exchange.ending in {Ending.CANCELLED, Ending.COMPLETE}
            assert EXCHANGE.body.startswith(exchange.body)
            most = max(most, len(exchange.body))
    assert most == len(EXCHANGE.body), "what had arrived can be read before the file is whole"


def test_chunks_of_any_size_hold_the_same_exchanges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that read like a request line do not begin one; an exchange without end ends before the next."""
    like_a_line = '{"kind":"request"}\n"request"'
    asked = {"kind": "request", "text": like_a_line}
    other = replace(EXCHANGE, name="b", request=HttpRequest("POST", "/generate", asked), scenario=like_a_line)
    reads = (Read(0.1, like_a_line.encode()), Read(0.2, b"\xff"))
    other = replace(other, reads=reads, headers=(("kind", "request"), ("request", "kind")))
    (*unended, _), (*begun, _) = exchange_lines(EXCHANGE), exchange_lines(other)
    written = [
        [*exchange_lines(EXCHANGE)],
        [*exchange_lines(other)],
        unended,
        [*exchange_lines(other)],
        begun,
    ]
    text = "".join(json.dumps(line) + "\n" for lines in written for line in lines)
    text = text.replace('"kind": ', '"kind":', 20)
    path = tmp_path / "several.jsonl"
    for cut in (0, 30, len(json.dumps(begun[-1])) + 30):
        path.write_text(text[: len(text) - cut])
        at_once = replace(next(capture_chunks(path)), data=path.read_bytes())
        given = list(at_once.located())
        assert [answer.exchange.ending is Ending.COMPLETE for answer in given] == [
            True,
            True,
            False,
            True,
            False,
        ]
        for size in (*range(1, 300, 7), 700, 1500):
            monkeypatch.setattr(json_lines, "_PIECE", size)
            several = list(capture_chunks(path))
            assert b"".join(chunk.data for chunk in several) == at_once.data
            assert [item for chunk in several for item in chunk.located()] == given
        assert len(several) > 2
        monkeypatch.undo()


def test_a_line_is_named_by_its_number_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_PIECE", 200)
    path = write(tmp_path, EXCHANGE)
    path.write_text(path.read_text() * 3 + "{}\n")
    assert len(list(capture_chunks(path))) > 1
    with pytest.raises(CaptureError, match="line 16: "):
        list(read_capture(path))


def test_an_exchange_without_end_does_not_swallow_the_next(tmp_path: Path) -> None:
    lines = [json.dumps(line) for line in exchange_lines(EXCHANGE)]
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join([*lines[:-1], *lines]) + "\n")
    first, second = read_capture(path)
    assert first.ending is Ending.CANCELLED
    assert first.reads == EXCHANGE.reads
    assert second == EXCHANGE


@pytest.mark.parametrize(
    "line", ["not json", "[]", '{"kind": "note"}', '{"kind": "read", "time": 0, "text": "a"}']
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CaptureError, match=r"bad\.jsonl, line 1"):
        list(read_capture(path))


REQUEST, RESPONSE, READ, *_, END = map(json.dumps, exchange_lines(EXCHANGE))


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([REQUEST.replace('"POST"', "null")], "method is None"),
        ([REQUEST.replace('"/generate?x=1"', "7")], "path is 7"),
        ([REQUEST.replace('"2026-11-20T13:36:15.000+00:00"', "null")], "started is None"),
        ([REQUEST.replace('["X-Trace", "7"]', '[null, "7"]')], "is not a pair of strings"),
        ([REQUEST.replace('["--stream-interval", "4"]', "[1]")], "not a list of strings"),
        ([REQUEST, RESPONSE.replace("200", '"200"')], "not a status"),
        ([REQUEST, RESPONSE, READ.replace("0.25", "NaN")], "not a number of seconds"),
        ([REQUEST, RESPONSE, END.replace('"detail": ""', '"detail": {}')], "detail is {}"),
    ],
)
def test_a_member_of_another_type_is_named(tmp_path: Path, lines: list[str], what: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(CaptureError, match=f"line {len(lines)}: .*{what}"):
        list(read_capture(path))


def test_lines_are_on_disk_as_they_arrive(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path).open("a") as file:
        file.request("a", "s", HttpRequest("GET", "/"))
        file.response(200, ())
        file.read(Read(0.1, b"x"))
        (seen,) = read_capture(tmp_path / "a.jsonl")
        assert (seen.body, seen.ending) == (b"x", Ending.CANCELLED)
        file.end(Ending.COMPLETE)
    (seen,) = read_capture(tmp_path / "a.jsonl")
    assert seen.ending is Ending.COMPLETE


@pytest.mark.parametrize("name", ["../out", "a//b", "/etc/x", "", "."])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="does not name a file"):
        CaptureWriter(tmp_path / "inside").open(name)
    assert list(tmp_path.rglob("*")) == []


def test_a_name_is_written_once(tmp_path: Path) -> None:
    write(tmp_path, EXCHANGE)
    with pytest.raises(FileExistsError):
        CaptureWriter(tmp_path).open(EXCHANGE.name)


_SECRETS = {"Authorization", "X-Api-Key", "api-key", "Cookie", "Proxy-Authorization", "X-Auth-Token"}


def test_secrets_do_not_reach_the_disk(tmp_path: Path) -> None:
    secret = "sk-hidden"
    headers = tuple((name, secret) for name in sorted(_SECRETS))
    exchange = Exchange(
        "a",
        HttpRequest(
            "GET", f"/x?api_key={secret}&max_tokens=5&token={secret}", headers=(*headers, ("X-Note", "kept"))
        ),
        "s",
        200,
        (("Set-Cookie", secret), ("Server", "kept")),
        (),
        Ending.COMPLETE,
    )
    path = write(tmp_path, exchange)
    assert secret not in path.read_text()
    (read,) = read_capture(path)
    assert read.request.path == f"/x?api_key={REDACTED}&max_tokens=5&token={REDACTED}"
    assert ("X-Note", "kept") in read.request.headers
    assert ("Server", "kept") in read.headers


def test_a_gzipped_capture_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    first = write(tmp_path / "1", EXCHANGE, compress=True)
    second = write(tmp_path / "2", EXCHANGE, compress=True)
    assert first.read_bytes() == second.read_bytes()
    assert gzip.decompress(first.read_bytes()).count(b"\n") == 5


def test_gzipped_files_joined_are_one_capture(tmp_path: Path) -> None:
    zipped = write(tmp_path / "1", EXCHANGE, compress=True).read_bytes()
    path = tmp_path / "joined.jsonl.gz"
    path.write_bytes(zipped + zipped)
    assert list(read_capture(path)) == [EXCHANGE, EXCHANGE]


def test_a_file_that_is_not_gzipped_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl.gz"
    path.write_text("{}\n")
    with pytest.raises(CaptureError, match=r"plain\.jsonl\.gz is not a gzipped file"):
        list(read_capture(path))


@pytest.mark.parametrize(("status", "legal"), [(99, False), (100, True), (999, True), (1000, False)])
def test_a_status_has_three_digits(status: int, legal: bool) -> None:
    with contextlib.nullcontext() if legal else pytest.raises(TypeError, match="is not a status"):
        assert status_of(status) == status
