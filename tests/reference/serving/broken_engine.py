"""The reference's server with a cache that breaks at the first request: a program of `forked_program`."""

from __future__ import annotations

from tokenwire_reference.cli import main as serve
from tokenwire_reference.core.kv import PageAccountingError
from tokenwire_reference.core.scheduler import Scheduler
from tokenwire_reference.running.engine_runner import EngineOnLoop


def main() -> None:
    """Run the command line of the reference."""
    start = EngineOnLoop.start

    def advance(*_: object) -> None:
        raise PageAccountingError("page 7 is in two places at once")

    def start_then_break(thread: EngineOnLoop) -> None:
        """What probes the engine before it serves has to succeed."""
        Scheduler.advance = advance  # type: ignore[method-assign]
        start(thread)

    EngineOnLoop.start = start_then_break  # type: ignore[method-assign]
    serve()
