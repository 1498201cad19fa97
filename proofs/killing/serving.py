"""The servers that faults are tried on: one process for each way of starting the reference engine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence

from tokenwire.requirement import load_requirements
from tokenwire_faults.catalogue import CUMULATIVE, INCREMENTAL, WHOLE, KnownFault

_FLAGS = {CUMULATIVE: (), INCREMENTAL: ("--incremental-streaming-output",)}
_ITS_OWN = ", for "
"""Between a server and the one fault that it is for: that fault ends it."""
DECODES = ("--disaggregation-mode", "decode")
"""Flags of a server that shares each request with one that prefills."""
WITH_PARROT = ", with the parrot"
"""Behind a server whose right answers are known."""


def servers_for(fault: KnownFault) -> list[str]:
    """Return the servers on which a fault shows. Whole answers show in both delivery modes.

    A server is named by its delivery mode, or by its flags where the fault needs special ones. What a
    requirement on known answers kills is tried on a parrot, too; what no other kills, there alone.
    """
    if fault.ends_the_server:
        return [f"{CUMULATIVE}{_ITS_OWN}{fault.name}"]
    usual = [mode for mode in _FLAGS if mode in fault.shows_in or WHOLE in fault.shows_in]
    usual = [" ".join(fault.server)] if fault.server else usual
    oracles = {load_requirements()[name].oracle == "script" for name in fault.kills}
    return [
        *(usual if oracles != {True} else ()),
        *(f"{name}{WITH_PARROT}" for name in usual[:1] if True in oracles),
    ]


@contextlib.contextmanager
def serve(names: Iterable[str], also: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Start servers, side by side; their URLs by name. All get the flags `also`.

    Raises RuntimeError where one does not start.
    """
    with contextlib.ExitStack() as stack:
        started = {
            name: [
                stack.enter_context(_process(_reference((*flags, *also))))
                for flags in _servers(flags_of(name))
            ]
            for name in names
        }
        urls = {name: [_url(process) for process in processes] for name, processes in started.items()}
        for halves in urls.values():
            if halves[1:]:
                halves[:] = [stack.enter_context(routed(*halves))]
        yield {name: url for name, (url,) in urls.items()}


def flags_of(name: str) -> tuple[str, ...]:
    """Return the flags of a server, by its name."""
    kind = name.partition(_ITS_OWN)[0].removesuffix(WITH_PARROT)
    model = ("--model", "builtin:parrot") if name.endswith(WITH_PARROT) else ()
    return (*model, *_FLAGS.get(kind, tuple(kind.split())))


@contextlib.contextmanager
def routed(prefill: str, decode: str) -> Iterator[str]:
    """Yield a router before a server that prefills and one that decodes; its URL."""
    with _process(("-m", "proofs.killing.router", prefill, decode)) as process:
        yield _url(process)


def _servers(flags: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
    """Return the flags of each server of a name: two if one decodes, with a router before them."""
    if DECODES[0] not in flags:
        return (flags,)
    prefills = (DECODES[0], "prefill", "--disaggregation-bootstrap-port", "0")
    others = tuple(flag for flag in flags if flag not in DECODES)
    return (*others, *prefills), flags


def _reference(flags: tuple[str, ...]) -> tuple[str, ...]:
    model = () if any(flag.startswith("--model") for flag in flags) else ("--model", "builtin:tiny")
    command = ("-m", "tokenwire_reference", "serve", "--port", "0", "--enable-faults")
    return (*command, "--sampling-backend", "mirror", *model, *flags)


@contextlib.contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with (
        tempfile.TemporaryFile() as complaints,  # what faults make a server complain of is of no interest
        subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as server,
    ):
        try:
            yield server
        finally:
            server.terminate()


def _url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    words = server.stdout.readline().split()
    if not words:
        raise RuntimeError(f"{server.args!r} ended with status {server.wait()} before it gave its URL")
    return words[-1]
