"""Unexpected exceptions of the suite, reported in one sentence.

Each command and listener catches all exceptions in one place, including those of libraries, of a full stack
and of a full memory.
"""

from __future__ import annotations

import os
import sys
import traceback

TRACEBACK = "TOKENWIRE_TRACEBACK"
"""The environment variable that also prints the traceback."""
_LONGEST = 300


def failure(what: str, error: BaseException) -> str:
    """Describe an unexpected exception in one sentence, with the way out."""
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
    """Print the sentence of an unexpected exception to standard error."""
    print(failure(what, error), file=sys.stderr)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
