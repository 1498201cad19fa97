"""Our two programs in processes of their own, forked from one that has already imported everything.

To import torch takes a server seconds, and to import itself takes the suite half of one. From `main` on, a
process does the same however it came to its modules.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import IO, Any

import pytest

_MAINS = {"tokenwire": "tokenwire.cli", "tokenwire-reference": "tokenwire_reference.cli"}
_COMMANDS = [
    *(f"tokenwire.commands.{name}" for name in ("check", "init", "again", "demo")),
    *(f"tokenwire_twin.commands.{name}" for name in ("compare", "twin")),
    "tokenwire_live.commands.watch",
]
_IMPORTED = [*_MAINS.values(), *_COMMANDS, "tokenwire_reference.serve"]
_LONGEST_RUN_S = 3600
"""So that a run that hangs ends. It is no measure: a machine that has much to do is slow."""
_FORKS = multiprocessing.get_context("forkserver")
assert all(map(find_spec, _IMPORTED)), "multiprocessing leaves out in silence what it does not find"
_FORKS.set_forkserver_preload(_IMPORTED)


def run_forked(
    program: str, *words: str, folder: Path, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run a program to its end, as subprocess.run does. Raises TimeoutExpired after an hour."""
    with (
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
        forked(
            program, *words, stdout=stdout, stderr=stderr, folder=folder, environment=environment
        ) as process,
    ):
        process.join(_LONGEST_RUN_S)
        if process.exitcode is None:
            raise TimeoutExpired([program, *words], _LONGEST_RUN_S)
        for file in (stdout, stderr):
            file.seek(0)
        return CompletedProcess([program, *words], process.exitcode, stdout.read(), stderr.read())


@contextlib.contextmanager
def forked(
    program: str,
    *words: str,
    stdout: IO[Any],
    stderr: IO[Any],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[BaseProcess]:
    """A program that runs while this is open; it is told to end when this closes.

    folder: where it runs; here without. environment: variables that it has beside ours.
    """
    surroundings = {**os.environ, **(environment or {})}
    ends = [Connection(os.dup(file.fileno()), readable=False) for file in (stdout, stderr)]
    process = _FORKS.Process(
        target=_become, args=(program, words, folder or Path.cwd(), surroundings, *ends), daemon=True
    )
    process.start()
    for end in ends:
        end.close()
    try:
        yield process
    finally:
        process.terminate()
        process.join()
        process.close()


@contextlib.contextmanager
def served_forked(*flags: str, program: str = "tokenwire-reference") -> Iterator[tuple[str, BaseProcess]]:
    """The reference engine on a free port, as long as this is open: its URL, and its process.

    The model is builtin:tiny unless --model says otherwise. A server that ends before it gives its URL fails
    the test with what it wrote. program: also a module with a `main` that changes the engine and serves it.
    """
    model = () if any(flag.startswith("--model") for flag in flags) else ("--model", "builtin:tiny")
    words = (program, "serve", "--port", "0", *model, *flags)
    reader, writer = os.pipe()
    with (
        os.fdopen(reader) as output,
        os.fdopen(writer) as stdout,
        tempfile.TemporaryFile("w+") as complaints,
        forked(*words, stdout=stdout, stderr=complaints) as process,
    ):
        stdout.close()
        url = output.readline().split()
        if not url:
            process.join()
            complaints.seek(0)
            pytest.fail(f"{' '.join(words)} ended with status {process.exitcode}:\n{complaints.read()}")
        yield url[-1], process


def _become(
    program: str, words: tuple[str, ...], folder: Path, surroundings: Mapping[str, str], *ends: Connection
) -> None:
    """Be a program in this process; the ends are its stdout and its stderr."""
    os.environ.clear()
    os.environ.update(surroundings)
    os.chdir(folder)
    for descriptor, end in enumerate(ends, sys.stdout.fileno()):
        os.dup2(end.fileno(), descriptor)
        end.close()
    sys.argv = [program, *words]
    import_module(_MAINS.get(program, program)).main()
