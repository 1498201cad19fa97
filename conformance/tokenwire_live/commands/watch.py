"""`tokenwire watch`: a transparent proxy that judges the responses."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection

import typer
from rich.console import Console
from rich.text import Text

from tokenwire.commands.command import command, writable_folder
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.console import make_console
from tokenwire.settings import Settings
from tokenwire.wire.address import Address
from tokenwire_live.inspecting.watched import WatchPages
from tokenwire_live.watch.judge_process import JudgePlan
from tokenwire_live.watch.judging import Opinion, single_answer_requirements, unwatched
from tokenwire_live.watch.watcher import Watcher, WatchPlan

_MIB = 1 << 20


async def _until_ended(plan: WatchPlan, admin: Address, settings: Settings, console: Console) -> int:
    """Run the proxy until SIGINT or SIGTERM; return the exit status."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)

    def print_violations(opinion: Opinion) -> None:
        for violation in () if settings.quiet else opinion.violations:
            what = f"{violation.requirement}: {violation.message}"
            event = "" if violation.event is None else f", event {violation.event}"
            words = f"{violation.level}  {opinion.path} {opinion.exchange}{event}: {what}"
            console.print(Text(words), soft_wrap=True)

    watcher = Watcher(plan, print_violations)
    async with watcher, WatchPages(watcher, admin, settings.admin_host) as url:
        console.print(Text(f"watching http://{watcher.listening} for {plan.target}"), soft_wrap=True)
        console.print(Text(f"live page {url}"), soft_wrap=True)
        await ended.wait()
    counts, total = watcher.counts, watcher.counts.total
    gaps = ", ".join(f"{number} {reason}" for reason, number in counts.gaps.most_common())
    violating = total.judged - total.conforming
    words = f"{counts.exchanges} exchanges, {total.judged} judged, {violating} violating"
    console.print(Text(_coverage(plan.judging.profiles)), soft_wrap=True)
    console.print(Text(f"{words}; gaps: {gaps or 'none'}"), soft_wrap=True)
    if any(level == "MUST" for _, level in total.violations):
        return ExitStatus.VIOLATION
    return ExitStatus.CONFORMS if total.judged else ExitStatus.NOTHING_EVALUATED


def _coverage(profiles: Collection[str]) -> str:
    """Describe how many requirements are judged, and what the others need."""
    judged = len(single_answer_requirements(profiles))
    lacking = {need: len(names) for need, names in unwatched(profiles).items()}
    words = f"judged by {judged} of {judged + sum(lacking.values())} requirements"
    needs = ", ".join(f"{count} need {need}" for need, count in lacking.items())
    return f"{words}; {needs}: the live page lists them, `tokenwire check` judges them" if lacking else words


def _watch(settings: Settings) -> None:
    """Run a transparent proxy that judges every response.

    Bytes are forwarded as they arrive, and a separate process judges a copy. If the process is too slow or
    crashes, the traffic goes on, and the gap is counted. With --record, violating exchanges are stored with
    their prompts and answers, but without headers that contain credentials.

    A settings file may set all options but -q. Options that only this command has are in its table [watch].
    Headers in the file are not sent: the target receives only what clients send.

    Ctrl-C stops the proxy. Exit status: 0 no violation, 1 a MUST was violated, 2 wrong command line, 4
    nothing was judged.
    """
    if not single_answer_requirements(settings.profile):
        raise typer.BadParameter(
            "the proxy judges each answer alone, and no single answer can violate "
            f"{', '.join(settings.profile)}; name another --profile"
        )
    plan = WatchPlan(
        listen=Address.listening(settings.listen),
        target=Address.of_target(settings.target),
        sample=settings.sample,
        judging=JudgePlan(
            record="" if settings.record is None else str(writable_folder(settings.record, "--record")),
            record_cap=settings.record_cap * _MIB,
            profiles=settings.profile,
        ),
        judge_patience_s=settings.judge_limit,
        drain_s=settings.drain,
    )
    admin = Address.listening(settings.admin)
    try:
        status = asyncio.run(_until_ended(plan, admin, settings, make_console()))
    except OSError as error:
        raise typer.BadParameter(f"cannot listen: {error}") from error
    raise typer.Exit(status)


app = command(
    _watch,
    "tokenwire watch --listen 127.0.0.1:8000 --target http://127.0.0.1:30000",
    "tokenwire watch --listen 0.0.0.0:8000 --target https://host --admin 127.0.0.1:9464 --record violations",
    "tokenwire watch --config tokenwire.toml --profile core",
)
