"""`tokenwire engine`: runs a real front end over an engine with predictable answers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import typer

from tokenwire.commands.command import command, usage_errors
from tokenwire.parrot.vocabulary import Vocabulary
from tokenwire_engine.launch import DEFAULTS, Ending, Family, Wanted, front_end
from tokenwire_engine.schedule import parse_schedule


def _engine(
    family: Annotated[Family, typer.Argument(help="The server family of the front end.")],
    words: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND…", help="The command that starts the front end, without a model."),
    ],
    *,
    vocabulary: Annotated[Vocabulary, typer.Option(help="Kind of vocabulary.")] = Vocabulary.BYTE_LEVEL,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Use the tokenizer of the model in DIR instead.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULE",
            help="Schedule of requests that contain none. SGLang's attach what a mirror sampler attaches.",
        ),
    ] = None,
    version: Annotated[
        str,
        typer.Option("--front-end-version", metavar="X.Y.Z", help="Use the protocol of this release."),
    ] = "",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every message of the engine into this file.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the output of the front end into this file.")
    ] = None,
    attached: Annotated[
        bool, typer.Option("--attached", help="Stop when the standard input is closed.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="If the front end ends, start it again at the same address.")
    ] = False,
) -> None:
    """Run a real front end over Tokenwire's own engine, whose answers are predictable. No weights, kernels or
    GPU are needed.

    The front end is vLLM's or SGLang's own, unmodified. Each request may contain a schedule: the tokens of
    each step, and other events such as an abort.
    """
    default = DEFAULTS[family] if schedule is None else schedule
    with usage_errors(ValueError):
        parse_schedule(default)
    wanted = Wanted(
        family,
        tuple(words),
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        schedule=default,
        version=version,
        trace=trace and trace.resolve(),
        log=log and log.resolve(),
    )
    with _ended(attached=attached) as ending, usage_errors():
        while not ending.wished:
            with front_end(wanted, ending) as running:
                typer.echo(f"{' '.join(words)} answers at {running.url} ({running.seconds:.1f} s)")
                typer.echo(f"check it: tokenwire check --target {running.url}")
                sys.stdout.flush()
                status = running.wait(ending)
            if status is not None:
                typer.echo(f"the front end ended with status {status}", err=True)
                if not again:
                    raise typer.Exit(1)
            wanted = wanted.at(running.port)


@contextlib.contextmanager
def _ended(*, attached: bool) -> Iterator[Ending]:
    """Yield a flag that is set by SIGTERM, by SIGINT or, if `attached`, by the end of the standard input."""
    ending = Ending()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def end(*_: Any) -> None:
        ending.wish()

    before = {number: signal.signal(number, end) for number in numbers}
    if attached:

        def watch() -> None:
            # The standard input is read without a buffer. Python would wait for the lock of a buffer when the
            # process ends.
            while os.read(0, 1 << 12):
                pass
            ending.wish()

        Thread(target=watch, daemon=True).start()
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


app = command(
    _engine,
    "tokenwire engine vllm -- vllm-rs serve",
    "tokenwire engine vllm -- vllm serve --stream-interval 4",
    "tokenwire engine sglang --schedule 'steps=2,1,4' -- python -m sglang.launch_server",
    name="engine",
)
