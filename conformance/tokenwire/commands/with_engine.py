"""Runs a front end over Tokenwire's own engine, for the duration of one command."""

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
def engine_below(command: str, *, again: bool = False) -> Iterator[str]:
    """Run a front end over Tokenwire's engine in this context, and yield the front end's URL.

    The engine is a separate process. The engine ends when its standard input is closed, even if this process
    is killed. With `again`, a front end that crashes is restarted at the same address. Raises UsageError.
    """
    words = shlex.split(command)
    family = "sglang" if "sglang" in command else "vllm"
    ends = ["--attached", *["--again"] * again]
    program = [sys.executable, "-m", "tokenwire", "engine", family, *ends, "--", *words]
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
    """Return the error message in the output of a command, without the usage and the box around it."""
    lines = [
        line.strip("│ ") for line in printed.splitlines() if not line.startswith(("Usage", "Try", "╭", "╰"))
    ]
    return " ".join(filter(None, lines)).removeprefix("Error: ").removeprefix("Invalid value: ")
