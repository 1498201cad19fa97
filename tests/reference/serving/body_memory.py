"""Print how many times its size a long body takes in memory until it is read or refused, for many kinds.

Each is read in a process of its own, which has read a short one of the kind before.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Callable

from tokenwire_reference.doors import body as bodies
from tokenwire_reference.doors.errors import RefusalError

SIZE = 4_000_000
UNIT = 1 if sys.platform == "darwin" else 1024
MESSAGE = '{"role": "user", "content": "x"}'


def many(entry: str) -> str:
    return "[" + ",".join([entry] * (SIZE // (len(entry) + 1))) + "]"


def names() -> str:
    return "{" + ",".join(f'"{i}":1' for i in range(SIZE // 10)) + "}"


def chat(field: str, value: str) -> str:
    return f'{{"messages": [{MESSAGE}], "{field}": {value}}}'


def with_params(params: str) -> str:
    return f'{{"input_ids": {[[1]] * 1024}, "sampling_params": {params}}}'


BODIES: dict[str, tuple[str, Callable[[], str]]] = {
    "stop_token_ids": ("generate-request", lambda: with_params(f'{{"stop_token_ids": {many("5")}}}')),
    "logit_bias": ("generate-request", lambda: with_params(f'{{"logit_bias": {names()}}}')),
    "sampling_params": ("generate-request", lambda: with_params(many("{}"))),
    "stop_regex": ("chat-request", lambda: chat("stop_regex", many('"a"'))),
    "ids": ("generate-request", lambda: f'{{"input_ids": {many("123")}}}'),
    "numbers": ("generate-request", lambda: f'{{"input_ids": {many("1.5")}}}'),
    "batches": ("generate-request", lambda: f'{{"input_ids": {many("[1]")}}}'),
    "batches_of_numbers": ("generate-request", lambda: f'{{"input_ids": [{many("1.5")}]}}'),
    "texts": ("generate-request", lambda: f'{{"text": {many(chr(34) + "a" + chr(34))}}}'),
    "text_and_no_flag": ("generate-request", lambda: f'{{"text": "a", "stream": "{"x" * SIZE}"}}'),
    "unknown": ("generate-request", lambda: f'{{"text": "a", "unknown": {many("[]")}}}'),
    "names": ("generate-request", names),
    "messages": ("chat-request", lambda: f'{{"messages": {many(MESSAGE)}}}'),
    "parts": ("chat-request", lambda: f'{{"messages": [{{"role": "user", "content": {many(MESSAGE)}}}]}}'),
    "schema": ("chat-request", lambda: chat("response_format", f'{{"json_schema": {many("[]")}}}')),
    "tools": ("chat-request", lambda: chat("tools", many('{"type": "function"}'))),
    "template": ("vllm-chat-request", lambda: chat("chat_template_kwargs", names())),
    "input": ("responses-request", lambda: f'{{"input": {many(MESSAGE)}}}'),
    "long_message": (
        "messages-request",
        lambda: f'{{"messages": [{{"role": 5, "content": "{"x" * SIZE}"}}]}}',
    ),
}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def measure(schema: str, make: Callable[[], str]) -> tuple[int, float]:
    """Return the size of a body, and how many times that its reading takes."""
    content = make().encode()
    bodies._validator(schema)
    result, said = os.pipe()
    child = os.fork()
    if not child:
        before = peak()
        with contextlib.suppress(RefusalError):
            bodies.hold_against_schema(bodies._parsed(content), schema)
        os.write(said, str((peak() - before) / len(content)).encode())
        os._exit(0)
    os.close(said)
    with open(result, "rb") as pipe:  # noqa: PTH123 - a file descriptor
        times = float(pipe.read())
    os.waitpid(child, 0)
    return len(content), round(times, 1)


if __name__ == "__main__":
    print(json.dumps({name: measure(schema, make) for name, (schema, make) in BODIES.items()}))
