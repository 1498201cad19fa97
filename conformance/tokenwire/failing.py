"""Unexpected exceptions of the suite, reported as one sentence.

Each command and listener catches all exceptions in one place, including exceptions of libraries, stack
overflows and a lack of memory.
"""

from __future__ import annotations

import os
import sys
import traceback

TRACEBACK = "TOKENWIRE_TRACEBACK"
"""The environment variable that makes the suite also print the traceback."""
_LONGEST = 300


def failure(what: str, error: BaseException) -> str:
    """Describe an unexpected exception in one sentence, which also says how to see the traceback."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = " ".join(str(error).split())
    words = "".join(character if character.isprintable() else "\ufffd" for character in words)
    if len(words) > _LONGEST:
        words = f"{words[:_LONGEST]} …"
    kind = "memory ran out" if isinstance(error, MemoryError) else type(error).__name__
    return (
        f"{what} failed: {kind}{': ' * bool(words)}{words}; this is an error of the suite or of a "
        f"file that it read, and not of the server; {TRACEBACK}=1 shows the traceback"
    )


def tell_failure(what: str, error: BaseException) -> None:
    """Print the description of an unexpected exception to standard error."""
    print(failure(what, error), file=sys.stderr)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
