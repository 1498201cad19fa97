"""Run pytest in forks of a process that has already imported all large libraries, but not our own code."""

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
    """Import large libraries once, so that no fork has to import them."""
    if shutil.which("nvidia-smi") is None:
        # like in the tests; Triton reads this variable when torch first imports it
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(prefix="mutants-")
    for name in (*_OTHERS, *_MORE):
        import_module(name)


def in_fork(run: Callable[[], int], cpu_s: int, wall_s: float) -> int | None:
    """Run a function in a fork without output, and return its exit status. None if it exceeded its time.

    cpu_s: the limit of CPU seconds, which does not depend on the load of the machine. wall_s: the limit of
    elapsed seconds, for a process that only waits.
    """
    process = get_context("fork").Process(target=_become, args=(run, cpu_s))
    process.start()
    assert process.pid is not None
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # the process may have ended, or may have done this itself
        os.setpgid(process.pid, process.pid)
    process.join(wall_s)
    status = process.exitcode
    if status is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return None if status == -signal.SIGXCPU else status


def run_pytest(*words: str, plugin: object) -> int:
    """Run tests in a reproducible way without leaving files, and return pytest's exit status."""
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
