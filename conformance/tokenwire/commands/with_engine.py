"""Runs a front end over tokenwire's own engine for one command."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

from tokenwire.usage_error import UsageError

_URL = re.compile(r"answers at (http://\S+)")
_END_S = 10.0


@contextlib.contextmanager
def engine_below(command: str) -> Iterator[str]:
    """Run a front end over the engine while the block runs; yield its URL. Raises UsageError.

    It is a separate process, which ends when its standard input is closed, even if this one is killed.
    """
    words = shlex.split(command)
    family = "sglang" if "sglang" in command else "vllm"
    program = [sys.executable, "-m", "tokenwire", "engine", family, "--attached", "--", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            url = next((found[1] for line in process.stdout if (found := _URL.search(line))), None)
            if url is None:
                assert process.stderr is not None
                raise UsageError(f"--engine {command}: {_reason(process.stderr.read())}")
            yield url
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _reason(printed: str) -> str:
    """Return the error message that a command printed, without its usage and its frame."""
    lines = [
        line.strip("│ ") for line in printed.splitlines() if not line.startswith(("Usage", "Try", "╭", "╰"))
    ]
    return " ".join(filter(None, lines)).removeprefix("Error: ").removeprefix("Invalid value: ")
