"""The servers on which faults are tried: one process for each configuration of the reference engine."""

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
"""The separator between the name of a server and the fault for which alone it is started, because the fault
ends it.
"""
DECODES = ("--disaggregation-mode", "decode")
"""The flags of a server that decodes requests that another server prefilled."""
WITH_PARROT = ", with the parrot"
"""The end of the name of a server whose right answers are known."""


def servers_for(fault: KnownFault) -> list[str]:
    """Return the names of the servers on which a fault shows. Whole answers show it in both delivery modes.

    A server is named by its delivery mode, or by its flags if the fault needs special flags. If requirements
    on known answers kill the fault, it is also tried on a parrot. If only such requirements kill it, it is
    tried only there.
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
    """Start the named servers at the same time, and yield their URLs by name. All get the flags `also`.

    Raises RuntimeError if a server does not start.
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
    """Return the flags of a server, given its name."""
    kind = name.partition(_ITS_OWN)[0].removesuffix(WITH_PARROT)
    model = ("--model", "builtin:parrot") if name.endswith(WITH_PARROT) else ()
    return (*model, *_FLAGS.get(kind, tuple(kind.split())))


@contextlib.contextmanager
def routed(prefill: str, decode: str) -> Iterator[str]:
    """Start a router in front of a server that prefills and one that decodes, and yield its URL."""
    with _process(("-m", "proofs.killing.router", prefill, decode)) as process:
        yield _url(process)


def _servers(flags: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
    """Return the flags of each server that belongs to a name. There are two servers if one of
    them decodes.
    """
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
        tempfile.TemporaryFile() as complaints,  # the messages of servers with faults are ignored
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
