"""Failures of the suite: what a command or a listener says of an exception, in one sentence.

Each has one place where any exception arrives: those of libraries, of a stack that is too small, of a memory
that is full. Nothing lists them.
"""

from __future__ import annotations

import os
import sys
import traceback

TRACEBACK = "TOKENWIRE_TRACEBACK"
"""The variable of the environment with which the traceback is printed, too."""
_LONGEST = 300


def failure(what: str, error: BaseException) -> str:
    """Return one sentence on an exception that nobody expected, with the way out."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = " ".join(str(error).split())
    words = "".join(character if character.isprintable() else "\ufffd" for character in words)
    if len(words) > _LONGEST:
        words = f"{words[:_LONGEST]} …"
    kind = "memory ran out" if isinstance(error, MemoryError) else type(error).__name__
    return (
        f"{what} failed: {kind}{': ' * bool(words)}{words}; the suite is at fault, or a file that it was "
        f"given, and not the server; {TRACEBACK}=1 shows where"
    )


def tell_failure(what: str, error: BaseException) -> None:
    """Print one sentence on an exception that nobody expected to standard error."""
    print(failure(what, error), file=sys.stderr)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
