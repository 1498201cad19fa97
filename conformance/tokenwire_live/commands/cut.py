"""`tokenwire cut`: a proxy before a worker that breaks off a stream when the suite asks for it."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer
from rich.text import Text

from tokenwire.commands.command import command
from tokenwire.report.console import make_console
from tokenwire.wire.address import Address
from tokenwire_live.cutting import CuttingProxy


async def _until_ended(worker: Address, listen: Address) -> None:
    """Run the proxy until SIGINT or SIGTERM. Raises OSError if the address is in use."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    proxy = CuttingProxy(worker)
    listening = await proxy.listen(listen)
    make_console().print(Text(f"listening at http://{listening} for the worker {worker}"), soft_wrap=True)
    try:
        await ended.wait()
    finally:
        await proxy.close()


def _cut(
    *,
    target: Annotated[str, typer.Option("--target", metavar="URL", help="Base URL of the worker.")],
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address at which the gateway connects. Port 0 is any free port.",
        ),
    ] = "127.0.0.1:0",
) -> None:
    """Run a proxy between a gateway and its worker that can break off a stream, as if the worker died.

    Start the gateway with the proxy as its only worker, and name the proxy with `tokenwire check --worker`.
    The scenario `cut-worker` asks the proxy for the cuts. All other bytes are forwarded as they arrive.

    Ctrl-C stops the proxy. Exit status: 0 ended, 2 wrong command line.
    """
    try:
        asyncio.run(_until_ended(Address.of_target(target), Address.listening(listen)))
    except OSError as error:
        raise typer.BadParameter(f"cannot listen: {error}") from error


app = command(_cut, "tokenwire cut --target http://127.0.0.1:30000 --listen 127.0.0.1:30001")
