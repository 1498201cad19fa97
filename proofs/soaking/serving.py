"""A reference server in a separate process, and requests to it without a client library."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = 300
"""The time limit of a request and of a check, in seconds. If one takes longer, it counts as stuck."""
HELD = "held"
"""The name of the file to which a server writes the number of its allocated bytes."""
_FAILED_IN_BAND = re.compile(rb'"(code|status_code)":5\d\d')


@dataclass(frozen=True)
class Pace:
    """The pace of a slow reader."""

    bytes: int = 1024
    seconds: float = 0.05


@dataclass
class Served:
    """A reference server in a separate process."""

    port: int
    pid: int
    log: Path
    answers: Counter[str] = field(default_factory=Counter)
    """The number of requests for each kind of end: a status, left or stuck."""

    @property
    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1])
        return pages * resource.getpagesize() / 1e6

    async def held(self) -> int:
        """Return the allocated bytes of the server when all requests are over and its cache is empty."""
        await emptied(self)
        await self.ask("/flush_cache", {})
        file = self.log.with_name(HELD)
        file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        async with asyncio.timeout(PATIENCE_S):
            while not file.exists():
                await asyncio.sleep(0.02)
        return int(file.read_text("ascii"))

    async def ask(
        self, path: str, body: Any = None, *, leave_after: int | None = None, pace: Pace | None = None
    ) -> bytes:
        """Send a request. Read the answer to the end, or disconnect after a number of bytes. Return the
        answer with its head.
        """
        with contextlib.closing(socket.socket()) as connection:
            if pace is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, pace.bytes)
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
            reader, writer = await asyncio.open_connection(
                sock=connection, limit=pace.bytes if pace else 1 << 20
            )
            try:
                data = b"" if body is None else json.dumps(body).encode()
                method = "GET" if body is None else "POST"
                head = f"{method} {path} HTTP/1.1\r\nhost: soak\r\nconnection: close\r\n"
                head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
                writer.write(head.encode() + data)
                answer = bytearray()
                while leave_after is None or len(answer) < leave_after:
                    if not (more := await reader.read(pace.bytes if pace else 1 << 16)):
                        break
                    answer += more
                    if pace is not None:
                        await asyncio.sleep(pace.seconds)
                return bytes(answer)
            finally:
                writer.transport.abort()

    async def counted(self, path: str, body: Any, **how: Any) -> bytes:
        """Send a request, and count how it ended."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await self.ask(path, body, **how)
        except TimeoutError:
            self.answers["stuck"] += 1
            return b""
        except OSError:
            self.answers["broken off"] += 1
            return b""
        left = how.get("leave_after") is not None
        self.answers["left" if left else _end_of(answer)] += 1
        return answer


def _end_of(answer: bytes) -> str:
    """Return a description of an answer's end: its status, or its error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if _FAILED_IN_BAND.search(body):
        return "failed in band"
    whole = body.endswith((b"}", b"]", b"data: [DONE]\n\n\r\n0\r\n\r\n"))
    return head[9:12].decode("latin-1") if whole else "cut off"


@contextlib.contextmanager
def served(*flags: str, program: str = "proofs.soaking.counted_server") -> Iterator[Served]:
    """Run the reference server as long as this context is open."""
    command = [sys.executable, "-m", program, "serve", "--port", "0", "--random-seed", "1"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        counted = {
            **os.environ,
            **{"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
            "HELD_FILE": str(log.with_name(HELD)),
        }
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [*command, *flags], stdout=subprocess.PIPE, stderr=errors, text=True, env=counted
            ) as process,
        ):
            try:
                assert process.stdout is not None
                words = process.stdout.readline().split()
                if not words:
                    raise RuntimeError(f"the server did not start: {log.read_text('utf-8')}")
                yield Served(int(words[-1].rpartition(":")[2]), process.pid, log)
            finally:
                process.terminate()


async def emptied(server: Served) -> str:
    """Return a description of what remains of requests after their end, or an empty text. Requests of
    disconnected clients end in the next steps of the server.
    """
    for _ in range(100):
        info = json.loads((await server.ask("/server_info")).partition(b"\r\n\r\n")[2])
        (state,) = json.loads((await server.ask("/v1/loads")).partition(b"\r\n\r\n")[2])["loads"]
        left = {
            "live": info["internal_states"][0]["num_live_requests"],
            "running": state["num_running_reqs"],
            "waiting": state["num_waiting_reqs"],
            "tokens": state["num_used_tokens"],
        }
        if not any(left.values()):
            return ""
        await asyncio.sleep(0.1)
    return str({name: value for name, value in left.items() if value})


def ids(choice: random.Random, most: int) -> list[int]:
    """Return a prompt. Half of the prompts share a prefix."""
    prefix = list(range(100, 132)) if choice.random() < 0.5 else []
    return prefix + [choice.randrange(3, 700) for _ in range(choice.randint(1, most))]
