"""Runs of pytest in forks of a process that has imported all but our own code."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from importlib import import_module
from multiprocessing import get_context

import pytest

_OTHERS = (
    "httpx",
    "hypothesis.stateful",
    "jsonschema_rs",
    "pytest",
    "rich.console",
    "tokenizers",
    "torch",
    "typer.testing",
    "yaml",
)
_MORE = (
    "safetensors.torch",
    "starlette.testclient",
    "transformers.models.qwen2",
    "transformers.models.llama",
    "uvicorn",
)


def import_others() -> None:
    """Import what is large and not ours, so that no fork has to."""
    if shutil.which("nvidia-smi") is None:
        os.environ["TRITON_INTERPRET"] = "1"  # as the tests do; Triton reads it when torch first imports it
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(prefix="mutants-")
    for name in (*_OTHERS, *_MORE):
        import_module(name)


def in_fork(run: Callable[[], int], cpu_s: int, wall_s: float) -> int | None:
    """Return the exit status of a run in a process of its own, silent; None if it was not over in time.

    cpu_s: what it may compute, the same on a busy machine; wall_s: for one that only waits.
    """
    process = get_context("fork").Process(target=_become, args=(run, cpu_s))
    process.start()
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is over, or was faster
        os.setpgid(process.pid, process.pid)
    process.join(wall_s)
    status = process.exitcode
    if status is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return None if status == -signal.SIGXCPU else status


def run_pytest(*words: str, plugin: object) -> int:
    """Run tests, the same ones every time, and leave nothing behind; their exit status."""
    quiet = ("-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0")
    imported = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return int(pytest.main([*words, *quiet, *imported], plugins=[plugin]))


def _become(run: Callable[[], int], cpu_s: int) -> None:
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    silence = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(silence, descriptor)
    os._exit(run())
