"""The recorder against targets that misbehave: every fault is an ending, none an exception."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tokenwire.asking import recorder as recorder_module
from tokenwire.asking.connection import Connection
from tokenwire.asking.recorder import Recorder
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.checks.reading.times import began, over, overlap
from tokenwire.wire.capture import CaptureWriter, ExchangeWriter, read_capture
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, Server
from tokenwire.wire.redaction import REDACTED

Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

ASK = HttpRequest("POST", "/generate", {"text": "好"})
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def target(handler: Handler) -> AsyncIterator[str]:
    """A server on a free loopback port that reads a request's head and then does as the handler says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        except ConnectionError:
            pass  # the recorder hung up, as it should in some tests
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def answering(answer: bytes) -> Handler:
    async def handle(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return handle


async def hang(_head: bytes, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    while await reader.read(1024):
        pass


def record(handler: Handler, request: HttpRequest = ASK, *, send: Any = (), **options: Any) -> Exchange:
    async def run() -> Exchange:
        async with target(handler) as url:
            recorder = Recorder(url, **{"timeout_s": 20, **options})
            return await recorder.send("a/b", "s", request, **dict(send))

    return asyncio.run(run())


def test_a_stream_byte_for_byte() -> None:
    pieces = [b"data: \xe5\xa5", b"\xbd\n\n", b"data: [DONE]\n\n"]
    exchange = record(answering(CHUNKED + b"".join(map(chunk, pieces)) + b"0\r\n\r\n"))
    assert (exchange.status, exchange.ending, exchange.detail) == (200, Ending.COMPLETE, "")
    assert exchange.body == b"".join(pieces)
    assert exchange.header("content-type") == "text/event-stream"
    times = [0.0, *(read.time for read in exchange.reads), exchange.duration]
    assert times == sorted(times)
    assert exchange.request.body == ASK.body


def test_what_is_sent() -> None:
    seen: list[bytes] = []

    async def handle(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(head + await reader.readexactly(17))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    exchange = record(handle, headers=(("Authorization", "Bearer x"), ("Accept", "application/json")))
    head, body = seen[0].split(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /generate http/1.1"
    assert body == b'{"text":"\\u597d"}'
    assert {b"accept-encoding: identity", b"authorization: bearer x", b"accept: application/json"} <= set(
        lines
    )
    assert b"content-type: application/json" in lines
    assert not [line for line in lines if line.startswith(b"cookie")]
    assert ("Authorization", REDACTED) in exchange.request.headers, "no secret goes further than the wire"


def test_a_recorded_request_is_sent_again_with_its_credentials() -> None:
    heads: list[list[bytes]] = []

    async def handle(head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(sorted(head.lower().split(b"\r\n")))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    ours = (("Authorization", "Bearer x"), ("X-Note", "plain"))

    async def run() -> list[Exchange]:
        async with target(handle) as url:
            recorder = Recorder(url, headers=ours)
            first = await recorder.send("a", "s", HttpRequest("GET", "/x", headers=(("X-Own", "1"),)))
            return [first, await recorder.send("b", "s", first.request)]

    first, again = asyncio.run(run())
    assert first.request == again.request
    assert heads[0] == heads[1]
    assert b"authorization: bearer x" in heads[1]


def test_a_raw_body_and_its_own_headers() -> None:
    seen: list[bytes] = []

    async def handle(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(head.lower() + await reader.readexactly(2))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    request = HttpRequest("POST", "/generate", None, b"{\xff", (("Content-Type", "text/plain"),))
    assert record(handle, request).status == 400
    assert seen[0].endswith(b"{\xff")
    assert seen[0].count(b"content-type:") == 1
    assert b"content-type: text/plain" in seen[0]


@pytest.mark.parametrize(
    ("answer", "ending", "status"),
    [
        pytest.param(b"", Ending.UNREACHABLE, None, id="hung-up-at-once"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", Ending.UNREACHABLE, None, id="no-http"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 110_000, Ending.UNREACHABLE, None, id="huge-head"),
        pytest.param(CHUNKED + b"1;" + b"b" * 110_000, Ending.TRUNCATED, 200, id="huge-chunk-size"),
        pytest.param(CHUNKED + b"1\r\nab\r\n", Ending.TRUNCATED, 200, id="chunk-too-long"),
        pytest.param(CHUNKED + b"1;a=b\r\na\r\n0\r\nA: b\r\n\r\n", Ending.COMPLETE, 200, id="odd-chunks"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", Ending.UNREACHABLE, None, id="odd-encoding"
        ),
        pytest.param(b"HTTP/1.1 101 Switch\r\n\r\n", Ending.UNREACHABLE, None, id="switches-unasked"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", Ending.UNREACHABLE, None, id="half-a-head"),
        pytest.param(CHUNKED + chunk(b"data: 1\n\n"), Ending.TRUNCATED, 200, id="no-last-chunk"),
        pytest.param(CHUNKED + b"9\r\ndata", Ending.TRUNCATED, 200, id="half-a-chunk"),
        pytest.param(CHUNKED + b"zz\r\nx\r\n", Ending.TRUNCATED, 200, id="no-chunk-size"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", Ending.TRUNCATED, 200, id="short-body"
        ),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n{}", Ending.COMPLETE, 200, id="body-until-the-end"),
        pytest.param(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}", Ending.COMPLETE, 500, id="refusal"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n",
            Ending.COMPLETE,
            200,
            id="empty",
        ),
    ],
)
def test_endings(answer: bytes, ending: Ending, status: int | None) -> None:
    exchange = record(answering(answer))
    assert (exchange.ending, exchange.status) == (ending, status)
    assert bool(exchange.detail) == (ending is not Ending.COMPLETE)


@pytest.mark.parametrize(
    "answered", [b"", CHUNKED + chunk(b"data: 1\n\n")], ids=["before the head", "after an event"]
)
@pytest.mark.parametrize("send", [(), (("slow_reader", SlowReader(pause_s=0)),)], ids=["usual", "slow"])
def test_a_reset(answered: bytes, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, keep = asyncio.Event(), recorder_module._Recording.read

    def noted(recording: recorder_module._Recording, when: float, data: bytes) -> None:
        keep(recording, when, data)
        kept.set()

    async def handle(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answered)
        if answered:
            await kept.wait()
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.transport.abort()

    monkeypatch.setattr(recorder_module._Recording, "read", noted)
    exchange = record(handle, send=send)
    assert exchange.ending is (Ending.TRUNCATED if answered else Ending.UNREACHABLE)
    assert "ConnectionResetError" in exchange.detail
    assert exchange.body == (b"data: 1\n\n" if answered else b"")


def test_what_is_wrong_behind_a_head_does_not_undo_it() -> None:
    """Both come in one read."""
    exchange = record(answering(CHUNKED + b"zz\r\n"))
    assert (exchange.status, exchange.ending, exchange.body) == (200, Ending.TRUNCATED, b"")
    exchange = record(answering(CHUNKED + chunk(b"data: 1\n\n") + b"zz\r\n"))
    assert (exchange.body, exchange.detail) == (
        b"data: 1\n\n",
        "RemoteProtocolError: illegal chunk header: bytearray(b'zz\\r\\n')",
    )


def test_a_server_that_keeps_the_connection_open_is_done_at_the_end_of_its_answer() -> None:
    async def handle(_head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: 1\n\n") + b"0\r\n\r\nHTTP/1.1 500 No\r\n\r\n")
        await hang(b"", reader, writer)

    exchange = record(handle)
    assert (exchange.status, exchange.body, exchange.ending) == (200, b"data: 1\n\n", Ending.COMPLETE)


def test_what_comes_before_an_answer_is_none() -> None:
    """And an answer may come, and the connection be closed, before the request was taken."""

    async def handle(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")

    assert record(handle).status == 413


def test_each_arrival_has_its_time_before_any_is_looked_at() -> None:
    async def scene() -> None:
        taken: list[bytes] = []
        connections = [Connection(lambda _, data: taken.append(data)) for _ in range(2)]
        for number, connection in enumerate(connections):
            connection.data_received(b"%d" % number)
        assert taken == []
        await asyncio.sleep(0)
        assert taken == [b"0", b"1"]

    asyncio.run(scene())


def test_a_close_that_is_cancelled_leaves_no_error_behind() -> None:
    async def scene() -> list[str]:
        reported: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(str(context)))
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            connection = Connection(lambda *_: None)
            port = server.sockets[0].getsockname()[1]
            await connection.open("127.0.0.1", port, None, None, b"")
            closing = asyncio.ensure_future(connection.close())
            loop.call_soon(closing.cancel)
            await asyncio.wait([closing])
            await connection.close()
            return reported

    assert asyncio.run(scene()) == []


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "not trusted"])
def test_tls(certificate: tuple[Path, Path], trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    trust = ssl.create_default_context(cafile=certificate[0] if trusted else None)
    monkeypatch.setattr(httpx, "create_ssl_context", lambda trust_env: trust)
    speaks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    speaks.load_cert_chain(*certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: 1\n\n"))
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST /whole"):
            writer.write(b"0\r\n\r\n")
        writer.close()

    async def run() -> list[Exchange]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=speaks) as server:
            recorder = Recorder(f"https://localhost:{server.sockets[0].getsockname()[1]}", timeout_s=20)
            paths = "/whole", "/cut"
            slow = {"slow_reader": SlowReader(pause_s=0)}
            usual = [await recorder.send(path, "s", HttpRequest("POST", path, {})) for path in paths]
            return usual + [
                await recorder.send(f"s{p}", "s", HttpRequest("POST", p, {}), **slow) for p in paths
            ]

    exchanges = asyncio.run(run())
    if trusted:
        assert [exchange.ending for exchange in exchanges] == [Ending.COMPLETE, Ending.TRUNCATED] * 2
        assert {exchange.body for exchange in exchanges} == {b"data: 1\n\n"}
    else:
        assert {exchange.ending for exchange in exchanges} == {Ending.UNREACHABLE}
        assert "CERTIFICATE_VERIFY_FAILED" in exchanges[0].detail


def test_nothing_listens() -> None:
    async def run() -> list[Exchange]:
        async with target(hang) as url:
            pass
        recorder = Recorder(url, timeout_s=20)
        usual = await recorder.send("a", "s", ASK)
        slow = await recorder.send("b", "s", ASK, slow_reader=SlowReader(pause_s=0))
        return [usual, slow]

    for exchange in asyncio.run(run()):
        assert (exchange.ending, exchange.status) == (Ending.UNREACHABLE, None)


@pytest.mark.parametrize("head", [b"", CHUNKED + chunk(b"data: 1\n\n")])
@pytest.mark.parametrize("send", [(), (("slow_reader", SlowReader(pause_s=0)),)])
def test_a_target_that_hangs_ends_in_time(head: bytes, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over when what the target sends is there: no clock of this machine decides."""
    limits: list[asyncio.Timeout] = []
    set_limit, keep = asyncio.timeout, recorder_module._Recording.read

    def limited(seconds: float) -> asyncio.Timeout:
        assert seconds == 7
        limits.append(set_limit(None))
        return limits[-1]

    def over() -> None:
        limits[0].reschedule(asyncio.get_running_loop().time())

    def kept(recording: recorder_module._Recording, when: float, data: bytes) -> None:
        keep(recording, when, data)
        over()

    async def handle(_head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        if not head:
            over()
        await hang(b"", reader, writer)

    monkeypatch.setattr(recorder_module.asyncio, "timeout", limited)
    monkeypatch.setattr(recorder_module._Recording, "read", kept)
    exchange = record(handle, timeout_s=7, send=send)
    assert (exchange.ending, exchange.detail) == (Ending.TIMEOUT, "not over after 7 s")
    assert exchange.status == (200 if head else None)
    assert exchange.body == (b"data: 1\n\n" if head else b"")


def test_an_endless_stream_is_hung_up_on() -> None:
    async def handle(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while not writer.is_closing():
            writer.write(chunk(b"data: {}\n\n" * 100))
            await writer.drain()

    exchange = record(handle, max_body_bytes=5000)
    assert (exchange.ending, exchange.ending.ours) == (Ending.OUTGROWN, True)
    assert "5000" in exchange.detail
    assert exchange.body.startswith(b"data: {}")
    assert len(exchange.body) <= 5000, "a body that nobody reads is not kept"


@pytest.mark.parametrize("answered", [True, False], ids=["after an event", "before the head"])
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "close"])
def test_hanging_up_on_purpose(reset: bool, answered: bool) -> None:
    """The server sees the client leave, by RST or by FIN, and the exchange says who left."""
    came, ways = asyncio.Event(), []

    async def handle(_head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answered:
            writer.write(CHUNKED + chunk(b"data: 1\n\n"))
        came.set()
        try:
            await hang(b"", reader, writer)
            ways.append("close")
        except ConnectionResetError:
            ways.append("reset")
        finally:
            left.set()

    async def leave(tap: Tap) -> None:
        await (tap.events(1) if answered else came.wait())
        tap.hang_up(reset=reset)

    left = asyncio.Event()

    async def run() -> Exchange:
        async with target(handle) as url:
            recorder = Recorder(url, timeout_s=20)
            tap = Tap()
            leaving = asyncio.create_task(leave(tap))
            exchange = await recorder.send("a/b", "s", ASK, tap=tap)
            await asyncio.gather(leaving, left.wait())
            return exchange

    exchange = asyncio.run(run())
    assert (exchange.ending, exchange.ending.ours) == (Ending.HUNG_UP, True)
    assert exchange.body == (b"data: 1\n\n" if answered else b"")
    assert ways == ["reset" if reset else "close"]


def test_a_tap_tells_how_far_an_answer_came_and_that_no_more_comes() -> None:
    answer = CHUNKED + chunk(b"data: 1\n") + chunk(b"\ndata: 2\n\n") + b"0\r\n\r\n"

    async def run() -> list[bool]:
        async with target(answering(answer)) as url:
            recorder = Recorder(url)
            tap = Tap()
            sending = asyncio.create_task(recorder.send("a", "s", ASK, tap=tap))
            seen = await asyncio.gather(*(tap.events(count) for count in (0, 1, 2, 3)))
            assert (await sending).ending is Ending.COMPLETE
            return seen

    assert asyncio.run(run()) == [True, True, True, False]


def test_a_call_goes_aside_of_what_is_under_way() -> None:
    async def run() -> Ending:
        async with target(hang) as url:
            recorder = Recorder(url, max_concurrency=1)
            tap = Tap()
            first = asyncio.create_task(recorder.send("a", "s", ASK, tap=tap))
            beside = Tap()
            beside.hang_up()
            called = await recorder.send("b", "s", ASK, tap=beside, aside=True)
            tap.hang_up()
            await first
            return called.ending

    assert asyncio.run(run()) is Ending.HUNG_UP


def test_a_redirect_is_recorded_and_not_followed() -> None:
    exchange = record(answering(b"HTTP/1.1 307 Go\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"))
    assert (exchange.status, exchange.header("Location")) == (307, "/elsewhere")


def test_an_encoded_body_is_recorded_as_it_came() -> None:
    exchange = record(answering(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"))
    assert (exchange.body, exchange.ending) == (b"abc", Ending.COMPLETE)


def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert record(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")).status == 200


def test_no_more_at_a_time_than_allowed() -> None:
    at_once = most = 0
    full = asyncio.Event()

    async def handle(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 3:
            full.set()
        await full.wait()
        at_once -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def run() -> list[Exchange]:
        async with target(handle) as url:
            recorder = Recorder(url, timeout_s=20, max_concurrency=3)
            return list(await asyncio.gather(*(recorder.send(f"{i}", "s", ASK) for i in range(9))))

    assert {exchange.ending for exchange in asyncio.run(run())} == {Ending.COMPLETE}
    assert most == 3


def test_exchanges_are_written_as_they_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Exchange] = []
    path = tmp_path / "a" / "b.jsonl"
    write_read = ExchangeWriter.read

    async def run() -> Exchange:
        on_disk = asyncio.Event()

        def write_and_look(file: ExchangeWriter, read: Read) -> None:
            write_read(file, read)
            seen.extend(read_capture(path))
            on_disk.set()

        async def handle(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKED + chunk(b"data: 1\n\n"))
            await on_disk.wait()
            writer.write(b"0\r\n\r\n")

        monkeypatch.setattr(ExchangeWriter, "read", write_and_look)
        async with target(handle) as url:
            recorder = Recorder(url, timeout_s=20, capture=CaptureWriter(tmp_path), server=Server("x"))
            return await recorder.send("a/b", "s", ASK)

    exchange = asyncio.run(run())
    assert [(answer.body, answer.ending) for answer in seen] == [(b"data: 1\n\n", Ending.CANCELLED)]
    assert list(read_capture(path)) == [exchange]
    assert exchange.server.name == "x"


def test_a_cancelled_run_leaves_a_whole_capture(tmp_path: Path) -> None:
    async def run() -> None:
        arrived = asyncio.Event()

        async def handle(_head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.set()
            await hang(b"", reader, writer)

        async with target(handle) as url:
            recorder = Recorder(url, capture=CaptureWriter(tmp_path))
            sending = asyncio.create_task(recorder.send("a", "s", ASK))
            await arrived.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending

    asyncio.run(run())
    (exchange,) = read_capture(tmp_path / "a.jsonl")
    assert exchange.ending is Ending.CANCELLED


def test_a_slow_reader_is_felt_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the reader pauses, the server is stuck long before buffers of the usual size would be full."""
    event = b"data: " + b"x" * 9990 + b"\n\n"
    total = 380
    sent_when_stuck: list[int] = []

    async def run() -> Exchange:
        go_on = asyncio.Event()

        async def handle(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKED)
            for sent in range(total):
                writer.write(chunk(event))
                if writer.transport.get_write_buffer_size() > len(event) and not go_on.is_set():
                    sent_when_stuck.append(sent)
                    go_on.set()
                await writer.drain()
            go_on.set()
            writer.write(b"0\r\n\r\n")

        async def until_stuck(_seconds: float) -> None:
            await go_on.wait()

        monkeypatch.setattr(recorder_module, "_pause", until_stuck)
        async with target(handle) as url:
            recorder = Recorder(url, timeout_s=60)
            return await recorder.send("a", "s", ASK, slow_reader=SlowReader())

    exchange = asyncio.run(run())
    assert (exchange.body, exchange.ending) == (event * total, Ending.COMPLETE)
    assert sent_when_stuck
    assert sent_when_stuck[0] < total // 4


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://x", "http://", "", "http://[::1"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        Recorder(url)


def test_a_request_that_cannot_be_sent_is_no_fault_of_the_target() -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        record(hang, HttpRequest("POST", "/x", {}, headers=(("X-A", "b\nc"),)))


def test_a_server_that_tells_its_key_does_not_tell_it_to_the_disk(tmp_path: Path) -> None:
    body = b'{"version":"1","api_key":"hunter2","internal_states":[{"admin_api_key":"hunter3"}]}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    exchange = record(answering(answer), HttpRequest("GET", "/server_info"), capture=CaptureWriter(tmp_path))
    (on_disk,) = read_capture(tmp_path / "a" / "b.jsonl")
    assert exchange.body == on_disk.body
    assert b"hunter" not in (tmp_path / "a" / "b.jsonl").read_bytes()
    assert on_disk.body == (
        b'{"version":"1","api_key":"*******","internal_states":[{"admin_api_key":"*******"}]}'
    )


def test_requests_in_turn_do_not_overlap_by_how_their_times_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that begins 0.3 ms behind the end of another begins within the same millisecond."""
    clock = iter([1_800_000_000.0005, 1_800_000_000.0009])
    monkeypatch.setattr(recorder_module.time, "time", lambda: next(clock))

    async def run() -> list[Exchange]:
        async with target(answering(CHUNKED + b"0\r\n\r\n")) as url:
            recorder = Recorder(url)
            return [replace(await recorder.send(name, "s", ASK), duration=0.0001) for name in ("a", "b")]

    first, second = asyncio.run(run())
    assert not overlap(first, second)
    assert (over(first), began(second)) == pytest.approx((1_800_000_000.0006, 1_800_000_000.0009), abs=1e-6)
