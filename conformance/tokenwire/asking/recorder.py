"""The recorder: sends requests, and records every byte of the responses with its time.

No other module of the suite uses the network, except `connection`. Nothing is corrected: no retries,
redirects, cookies, decompression or proxies from the environment. A failure of the target is recorded as the
ending of the exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

import h11
import httpx

from tokenwire import __version__
from tokenwire.asking.connection import Connection
from tokenwire.asking.stopwatch import Stopwatch
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.usage_error import UsageError
from tokenwire.wire.capture import CaptureWriter, ExchangeWriter
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, Server, as_started
from tokenwire.wire.http_answer import AnswerReader
from tokenwire.wire.redaction import Headers, Mask, MaskedReads, redact_reads, redact_settings, redact_url

_HIGHEST_PORT = 65535
_OWN_HEADERS = {
    "accept": "*/*",
    "accept-encoding": "identity",
    "user-agent": f"tokenwire/{__version__}",
}
MAX_BODY_BYTES = 8 << 20
"""The largest response body in bytes.

This size holds the longest requested stream in which each event repeats all earlier tokens.
"""
MAX_LINES = 1 << 16
"""The most lines of a response body.

This allows eight lines for each token of the longest request, because events may have several lines and
comments. A body with this number of lines can be parsed quickly.
"""
_KEPT_OF_OUTGROWN = 4096


async def _pause(seconds: float) -> None:
    """Wait while the slow reader does not read."""
    await asyncio.sleep(seconds)


class _Recording:
    """An exchange in progress, in memory and on disk. The credentials of the request are removed."""

    def __init__(self, file: ExchangeWriter | None, mask: Mask, *, is_settings: bool = False) -> None:
        """Begin a recording.

        `is_settings`: the response may contain API keys of the server, so it is redacted and written only
        when complete.
        """
        self._file = file
        self.mask = mask
        self._is_settings = is_settings
        self._arriving = MaskedReads(mask)
        self._sent = time.monotonic()
        self.status: int | None = None
        self.headers: Headers = ()
        self.reads: list[Read] = []
        self.size = 0
        self.lines = 0
        self.ending = Ending.UNREACHABLE
        self.detail = ""
        self.duration = 0.0
        """The duration in seconds, set at the end."""

    def seconds(self) -> float:
        return time.monotonic() - self._sent

    def response(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, self.mask.headers(headers)
        if self._file is not None:
            self._file.response(status, self.headers)

    def read(self, time_read: float, data: bytes) -> None:
        """Record bytes of the body and their arrival time."""
        self.size += len(data)
        # Lines of an event stream end with LF, CRLF or CR alone.
        self.lines += data.count(b"\n") or data.count(b"\r")
        self._keep(self._arriving.feed(Read(time_read - self._sent, data)))

    def _keep(self, reads: Iterable[Read]) -> None:
        for read in reads:
            self.reads.append(read)
            if self._file is not None and not self._is_settings:
                self._file.read(read)

    def end(self, ending: Ending, detail: str = "") -> None:
        self.ending, self.detail = ending, self.mask.text(detail)

    def outgrow(self, limit: str) -> None:
        """End the recording at a size limit, and keep only the beginning of the body in memory.

        The file on disk is complete.
        """
        self.end(Ending.OUTGROWN, f"the body outgrew {limit}")
        self._keep(self._arriving.rest())
        first = self.reads[0]
        self.reads = [replace(first, data=first.data[:_KEPT_OF_OUTGROWN])]

    def close(self) -> None:
        """Write the remaining bytes and the ending."""
        self.duration = self.seconds()
        self._keep(self._arriving.rest())
        if self._is_settings:
            self._is_settings = False
            reads, self.reads = redact_reads(self.reads, redact_settings), []
            self._keep(reads)
        if self._file is not None:
            self._file.end(self.ending, detail=self.detail, duration=self.duration)


class Recorder:
    """Sends requests to one target, with limited concurrency.

    base_url: scheme, host and optionally a path prefix. timeout_s: limit for a whole exchange, from
    connecting to the last byte. headers: sent with every request. max_concurrency: the most exchanges at a
    time; `timeout_s` does not include the time in the queue. max_body_bytes: a longer response is aborted, as
    is a response of more than MAX_LINES lines; only its beginning is recorded. capture: writes exchanges to
    disk as they arrive. server: facts about the target, written into every exchange. secrets: lower-case
    names of further headers with credentials. on_exchange: called with each finished exchange. stopwatch:
    measures the time in which exchanges run.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = 60.0,
        headers: Headers = (),
        max_concurrency: int = 16,
        max_body_bytes: int = MAX_BODY_BYTES,
        capture: CaptureWriter | None = None,
        server: Server | None = None,
        secrets: frozenset[str] = frozenset(),
        on_exchange: Callable[[Exchange], None] = lambda _: None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Prepare the recorder. Raises UsageError if base_url is not an http or https URL."""
        shown = redact_url(base_url)
        try:
            url = httpx.URL(base_url)
        except httpx.InvalidURL as error:
            raise UsageError(f"{shown!r} is not a URL: {error}; write http://host:port") from error
        if url.scheme not in {"http", "https"} or not url.host:
            raise UsageError(f"{shown!r} is not the URL of a server; write http://host:port")
        if url.port is not None and not 0 < url.port <= _HIGHEST_PORT:
            raise UsageError(
                f"{shown!r} has the port {url.port}, but a port is from 1 to {_HIGHEST_PORT}; write "
                "http://host:port"
            )
        if url.userinfo:
            raise UsageError(
                "the URL contains credentials; remove them, and pass a header: "
                "--header 'Authorization: Basic env:MY_KEY'"
            )
        if url.query or url.fragment:
            raise UsageError(
                f"{shown!r} has a query, but paths are appended to a base URL; remove it, or let a proxy "
                "before the server add it to every request"
            )
        self.server = server or Server()
        self._base = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = headers
        with_headers = HttpRequest("GET", "/", headers=headers)
        self._headers_as_shown = Mask.of(with_headers, secrets).request(with_headers, secrets).headers
        self._slots = asyncio.Semaphore(max_concurrency)
        self._max_body_bytes = max_body_bytes
        self._capture = capture
        self._secrets = secrets
        self._on_exchange = on_exchange
        self._stopwatch = stopwatch or Stopwatch()
        self._url = url
        self._tls: ssl.SSLContext | None = None
        self.cut: list[Exchange] = []
        """Exchanges that were interrupted at the end of the run.

        These exchanges are recorded, but `send` did not return them.
        """

    async def send(
        self,
        name: str,
        scenario: str,
        request: HttpRequest,
        *,
        slow_reader: SlowReader | None = None,
        tap: Tap | None = None,
        aside: bool = False,
    ) -> Exchange:
        """Send a request and record the response.

        If the target fails, the ending of the exchange says how. `tap`: follows the progress of the response,
        and may abort it. `aside`: send at once, without waiting in the queue. The exchange contains no
        credentials, in memory and on disk. Raises ValueError for a request that HTTP cannot express, and
        FileExistsError if the capture has an exchange of this name.
        """
        async with contextlib.nullcontext() if aside else self._slots:
            # A repeated request has the recorded headers, whose credentials were removed. So the headers of
            # the recorder replace the recorded headers.
            besides = (header for header in request.headers if header not in self._headers_as_shown)
            request = replace(request, headers=(*self._headers, *besides))
            mask = Mask.of(request, self._secrets)
            shown = mask.request(request, self._secrets)
            started = as_started(time.time())
            with contextlib.ExitStack() as files:
                file = files.enter_context(self._capture.open(name)) if self._capture is not None else None
                if file is not None:
                    file.request(name, scenario, shown, started=started, server=self.server)
                # SGLang's /server_info contains the server's own keys.
                recording = _Recording(file, mask, is_settings=request.method == "GET")

                def so_far() -> Exchange:
                    return Exchange(
                        name,
                        shown,
                        scenario,
                        recording.status,
                        recording.headers,
                        tuple(recording.reads),
                        recording.ending,
                        recording.detail,
                        recording.duration or recording.seconds(),
                        started,
                        self.server,
                    )

                if tap is not None:
                    tap.so_far = so_far
                try:
                    with self._stopwatch.exchange():
                        await self._record(request, recording, slow_reader, tap)
                except asyncio.CancelledError:
                    recording.end(Ending.CANCELLED, "the run was ended")
                    raise
                finally:
                    recording.close()
                    if tap is not None:
                        tap.end()
                    if recording.ending is Ending.CANCELLED:
                        self.cut.append(so_far())
            exchange = so_far()
            self._on_exchange(exchange)
            return exchange

    async def _record(
        self,
        request: HttpRequest,
        recording: _Recording,
        slow_reader: SlowReader | None,
        tap: Tap | None,
    ) -> None:
        try:
            head, body = self._outgoing(request)
            reader = AnswerReader(head)
        # The error quotes the invalid part, which may be a credential.
        except h11.LocalProtocolError as error:
            words = recording.mask.text(f"{request.method} {request.path} cannot be sent: {error}")
            raise ValueError(words) from None
        # Each exchange has a new connection. A server may close a reused one just as a request is sent.
        reception = _Reception(reader, recording, slow_reader, tap, self._max_body_bytes)
        window = slow_reader.window if slow_reader is not None else None
        receiving = reception.receive(self._url, self._trust(), window, reader.request_head + body)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                if tap is None:
                    await receiving
                else:
                    await _unless_left(receiving, tap, reception.connection, recording)
        except (h11.RemoteProtocolError, OSError) as error:
            # `asyncio.timeout` raises TimeoutError, which is an OSError.
            if limit.expired():
                recording.end(Ending.TIMEOUT, f"not over after {self._timeout_s:g} s")
                return
            ending = Ending.UNREACHABLE if recording.status is None else Ending.TRUNCATED
            # All errors before a connection get the same name. `target.death` recognizes by it that no server
            # listened.
            kind = type(error).__name__ if reception.connected else "ConnectError"
            recording.end(ending, f"{kind}: {error}")

    def _trust(self) -> ssl.SSLContext | None:
        """Return the TLS context for the target; None for http URLs."""
        if self._tls is None and self._url.scheme == "https":
            self._tls = httpx.create_ssl_context(trust_env=False)
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _outgoing(self, request: HttpRequest) -> tuple[h11.Request, bytes]:
        body = request.raw_body
        headers = dict(_OWN_HEADERS)
        if body is None and request.body is not None:
            body = json.dumps(request.body, separators=(",", ":")).encode("ascii")
        if body is not None:
            headers["content-type"] = "application/json"
        outgoing = httpx.Request(request.method, self._base + request.path, headers=headers, content=body)
        for name, value in request.headers:
            outgoing.headers[name] = value
        head = h11.Request(method=outgoing.method, target=outgoing.url.raw_path, headers=outgoing.headers.raw)
        return head, body or b""


class _Reception:
    """Receives the bytes of one exchange's connection and records them."""

    def __init__(
        self,
        reader: AnswerReader,
        recording: _Recording,
        slow_reader: SlowReader | None,
        tap: Tap | None,
        max_body_bytes: int,
    ) -> None:
        self._reader = reader
        self._recording = recording
        self._slow_reader = slow_reader
        self._tap = tap
        self._max_body_bytes = max_body_bytes
        self._enough = asyncio.Event()
        """Set once a slow reader has read as many bytes as it should before its pause."""
        self.connection = Connection(self._take)
        self.connected = False

    async def receive(
        self, url: httpx.URL, tls: ssl.SSLContext | None, window: int | None, asked: bytes
    ) -> None:
        """Send the request and record the whole response. Raises h11.RemoteProtocolError and OSError."""
        connection, slow_reader = self.connection, self._slow_reader
        pausing: asyncio.Task[None] | None = None
        try:
            await connection.open(
                url.raw_host.decode("ascii"), url.port or (443 if tls else 80), tls, window, asked
            )
            self.connected = True
            if slow_reader is not None:
                pausing = asyncio.create_task(self._pause(slow_reader.pause_s))
            await connection.over
        finally:
            if pausing is not None:
                pausing.cancel()
            await connection.close()

    async def _pause(self, seconds: float) -> None:
        await self._enough.wait()
        await _pause(seconds)
        self.connection.resume()

    def _take(self, arrived: float, data: bytes) -> None:
        try:
            self._keep(arrived, data)
        finally:  # if the body is invalid, the head is still recorded
            if self._reader.head is not None:
                self._begin(self._reader.head)
        slow_reader, over = self._slow_reader, self.connection.over
        if over.done():
            return
        if self._reader.over:
            self._recording.end(Ending.COMPLETE)
            over.set_result(None)
        elif slow_reader and not self._enough.is_set() and self._recording.size >= slow_reader.after_bytes:
            self._enough.set()
            self.connection.pause()

    def _keep(self, arrived: float, data: bytes) -> None:
        reader, recording, tap = self._reader, self._recording, self._tap
        for piece in reader.feed(data):
            if recording.status is None and reader.head is not None:
                self._begin(reader.head)
            recording.read(arrived, piece)
            if tap is not None:
                tap.read(piece)
            if recording.size > self._max_body_bytes:
                self._hang_up(f"{self._max_body_bytes} bytes")
                return
            if recording.lines > MAX_LINES:
                self._hang_up(f"{MAX_LINES} lines")
                return

    def _begin(self, head: h11.Response) -> None:
        """Record the status and headers of the response."""
        if self._recording.status is not None:
            return
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in head.headers.raw_items())
        self._recording.response(head.status_code, headers)
        if self._tap is not None:
            self._tap.begin()

    def _hang_up(self, limit: str) -> None:
        self._recording.outgrow(limit)
        self.connection.over.set_result(None)


async def _unless_left(
    reading: Coroutine[Any, Any, None], tap: Tap, connection: Connection, recording: _Recording
) -> None:
    """Read a response to its end, unless the scenario aborts it through `tap`."""
    # Two tasks are awaited, because the scenario may abort while no bytes arrive.
    task, leaving = asyncio.create_task(reading), asyncio.create_task(tap.left.wait())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return
        if tap.resets:
            connection.reset_on_close()
        recording.end(Ending.HUNG_UP, f"hung up on purpose after {recording.size} bytes")
    finally:
        task.cancel()
        leaving.cancel()
        await asyncio.wait({task})
