"""`tokenwire watch`: a transparent proxy that judges what passes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tokenwire.commands import options
from tokenwire.judging.verdict import ExitStatus
from tokenwire.profile import load_profiles
from tokenwire.report.terminal import make_console
from tokenwire.watch.judging import Opinion, single_answer_requirements
from tokenwire.watch.proxy import Address, BadAddress
from tokenwire.watch.watcher import Watcher, WatchPlan
from tokenwire.wire.exchange import Exchange

EXAMPLES = options.examples(
    "tokenwire watch --listen 127.0.0.1:8000 --target http://127.0.0.1:30000",
    "tokenwire watch --listen 0.0.0.0:8000 --target https://host --admin 127.0.0.1:9464 --record violations",
    "tokenwire watch --config tokenwire.toml --profile core",
)
_MIB = 1 << 20


async def _watch(plan: WatchPlan, console: Console, *, quiet: bool) -> int:
    """Watch until SIGINT or SIGTERM comes; the exit status."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)

    def tell(exchange: Exchange, opinion: Opinion) -> None:
        for violation in () if quiet else opinion.violations:
            what = f"{violation.requirement}: {violation.message}"
            at = "" if violation.event is None else f", event {violation.event}"
            words = f"{violation.level}  {exchange.request.path} {exchange.name}{at}: {what}"
            console.print(Text(words), soft_wrap=True)

    watcher = Watcher(plan, tell)
    async with watcher:
        console.print(Text(f"watching http://{watcher.listening} for {plan.target}"), soft_wrap=True)
        if watcher.admin_listening is not None:
            console.print(Text(f"live page http://{watcher.admin_listening}/"), soft_wrap=True)
        await ended.wait()
    tally = watcher.tally
    gaps = ", ".join(f"{number} {reason}" for reason, number in tally.gaps.most_common())
    violating = tally.judged - tally.conforming
    words = f"{tally.exchanges} exchanges, {tally.judged} judged, {violating} violating"
    console.print(Text(f"{words}; gaps: {gaps or 'none'}"), soft_wrap=True)
    if any(level == "MUST" for _, level in tally.violations):
        return ExitStatus.VIOLATION
    return ExitStatus.CONFORMS if tally.judged else ExitStatus.NOTHING_EVALUATED


def _profiles(names: list[str] | None) -> tuple[str, ...]:
    """Raises BadParameter for unknown profiles, and for those of which nothing can be judged here."""
    profiles = options.known("profile", names or (), load_profiles())
    if not single_answer_requirements(profiles):
        raise typer.BadParameter(
            f"one answer alone can violate no sentence of {', '.join(profiles)}, and a watcher has no more; "
            "name another --profile"
        )
    return profiles


def watch(
    *,
    config: options.ConfigFile = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect; port 0 for any.")
    ],
    target: Annotated[str, typer.Option("--target", metavar="URL", help="The server that gets it all.")],
    admin: Annotated[
        str, typer.Option("--admin", metavar="HOST:PORT", help="Where the live page and /metrics are.")
    ] = "127.0.0.1:0",
    record: Annotated[
        Path | None, typer.Option("--record", metavar="DIR", help="Keep exchanges that violate there.")
    ] = None,
    record_cap: Annotated[
        int, typer.Option("--record-cap", metavar="MIB", min=1, help="What they may take; the oldest go.")
    ] = 256,
    drain: Annotated[
        float, typer.Option("--drain", min=0, help="Seconds to judge what is left when it ends.")
    ] = 10.0,
    profile: options.Profiles = None,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Do not print violations as they come.")
    ] = False,
) -> None:
    """Stand in front of a server, pass everything on unchanged, and judge each answer.

    Bytes go through as they come; copies are judged in a process of its own. Where that is too slow or dies,
    traffic goes on and the gap is counted. Prompts and answers of violating exchanges are kept as they were
    where --record is given; headers that hold credentials are not.

    A file of settings may hold all options but -q, in its table [watch] those that no other command has. Its
    headers are not sent: nothing reaches the target but what clients send.

    Ctrl-C ends it. Exit status: 0 nothing was violated, 1 a MUST was, 2 wrong command line, 4 nothing was
    judged.
    """
    try:
        plan = WatchPlan(
            listen=Address.listening(listen),
            target=Address.of_target(target),
            admin=Address.listening(admin),
            record=None if record is None else options.writable_folder(record, "--record"),
            record_cap=record_cap * _MIB,
            profiles=_profiles(profile),
            drain_s=drain,
        )
    except BadAddress as error:
        raise typer.BadParameter(str(error)) from error
    try:
        status = asyncio.run(_watch(plan, make_console(), quiet=quiet))
    except OSError as error:
        raise typer.BadParameter(f"cannot listen: {error}") from error
    raise typer.Exit(status)
