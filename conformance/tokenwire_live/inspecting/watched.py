"""The pages of `tokenwire watch`: its counts as HTML and for Prometheus, and violating exchanges in the
player.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Iterable
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from tokenwire.dialects.dialect import load_dialects
from tokenwire.processes import Helper
from tokenwire.report.page import player, policy
from tokenwire.report.templates import template
from tokenwire.requirement import load_requirements
from tokenwire.usage_error import UsageError
from tokenwire.wire.address import Address
from tokenwire.wire.capture import read_capture
from tokenwire_live.inspecting.bench import Answer, Bench, Question
from tokenwire_live.inspecting.requirement_page import requirement_page
from tokenwire_live.inspecting.server import HTML, LOCAL, PageServer
from tokenwire_live.watch.counts import Counts
from tokenwire_live.watch.judging import Opinion, single_answer_requirements, unwatched
from tokenwire_live.watch.latency import EDGES
from tokenwire_live.watch.prometheus import CONTENT_TYPE, exposition
from tokenwire_live.watch.watcher import Watcher

_REFRESH_S = 5


@cache
def _script() -> str:
    return files("tokenwire_live.inspecting").joinpath("watched.js").read_text("utf-8")


def live_page(
    counts: Counts,
    *,
    target: str,
    listening: str,
    waiting: int,
    under_way: int,
    in_full: bool = False,
    profiles: Collection[str] = (),
) -> str:
    """Return the page with the current counts.

    `waiting`: bytes that are not judged yet. `under_way`: exchanges in progress. `in_full`: include the
    target, and each violating exchange with its text and a link. `profiles`: the judged profiles; empty for
    all requirements.
    """
    return template("tokenwire_live.inspecting", "watched.html.jinja").render(
        counts=counts,
        target=target,
        listening=listening,
        waiting=waiting,
        under_way=under_way,
        in_full=in_full,
        refresh=_REFRESH_S,
        script=Markup(_script()),
        policy=policy(_script()) + LOCAL,
        replay_command=_replay_command,
        recorded=_recorded,
        requirements=load_requirements(),
        violations=counts.total.violations.most_common(),
        gaps=counts.gaps.most_common(),
        edges=EDGES,
        judged=len(single_answer_requirements(profiles)),
        unwatched=unwatched(profiles),
    )


def _recorded(opinion: Opinion) -> bool:
    """True if the capture of an exchange still exists.

    Above --record-cap, the oldest captures are deleted.
    """
    return bool(opinion.recorded) and Path(opinion.recorded).is_file()


def _replay_command(opinion: Opinion, requirement: str) -> str:
    """Return the command that judges a recorded exchange again."""
    return shlex.join(["tokenwire", "replay", opinion.recorded, "--requirement", requirement])


def exchange_page(opinion: Opinion) -> str:
    """Return a page that shows a recorded exchange in the player. Raises OSError and ValueError."""
    (exchange,) = read_capture(Path(opinion.recorded))
    root = "../" * (1 + opinion.exchange.count("/"))
    view = Bench(load_dialects())(Question(Answer(exchange, opinion.dialect), 0, root=root))
    played = [view["playback"]] if view["playback"] is not None else []
    return template("tokenwire_live.inspecting", "exchange.html.jinja").render(
        name=opinion.exchange,
        request=f"{opinion.method} {opinion.path}",
        answer=Markup(view["html"]),  # the template escapes this text
        played=htmlsafe_json_dumps(played),
        script=Markup(player()),
        policy=policy(player()),
    )


class WatchPages:
    """Serves the pages while the (async) context is open.

    Without the token, a page shows only counts by requirement, by dialect and by model. Model names come from
    requests. Everything else that clients have sent or received needs the token. `names`: further host names
    of the pages.
    """

    def __init__(self, watcher: Watcher, address: Address, names: Iterable[str] = ()) -> None:
        self._watcher, self._address, self._names = watcher, address, names
        self._helper = Helper(exchange_page)
        self._server = PageServer(
            {"": self._full, "exchange": self._exchange, "requirement": requirement_page},
            open_pages={"": self._live, "metrics": self._metrics, "healthz": self._health},
            way_out=", or name the host by --admin-host.",
        )

    async def __aenter__(self) -> str:
        """Start the server; return the address of the page. Raises OSError."""
        await self._server.listen(self._address, self._names)
        return self._server.url

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()
        self._helper.close()

    async def _full(self, _: str) -> tuple[str, str]:
        return await self._live("", in_full=True)

    async def _live(self, _: str, *, in_full: bool = False) -> tuple[str, str]:
        watcher, target = self._watcher, self._watcher.plan.target
        return HTML, live_page(
            watcher.counts,
            target=f"{'https' if target.tls else 'http'}://{target}",
            listening=str(watcher.listening),
            waiting=watcher.spool.waiting,
            under_way=watcher.under_way,
            in_full=in_full,
            profiles=watcher.plan.judging.profiles,
        )

    async def _metrics(self, _: str) -> tuple[str, str]:
        watcher = self._watcher
        return CONTENT_TYPE, exposition(watcher.counts, watcher.spool.waiting, watcher.under_way)

    async def _health(self, _: str) -> tuple[str, str]:
        return "text/plain; charset=utf-8", "watching\n"

    async def _exchange(self, name: str) -> tuple[str, str]:
        """Return the page of an exchange.

        The exchange must be listed on the current page, so that an address cannot name other files.
        """
        counts = self._watcher.counts
        shown = [found.last for found in counts.findings.values()] + [
            last for _, last in counts.seen.values()
        ]
        opinion = next((known for known in shown if known.exchange == name and _recorded(known)), None)
        if opinion is None:
            raise UsageError(
                "this exchange is not on the page any more, or its capture was deleted (--record-cap)"
            )
        try:
            return HTML, await asyncio.wrap_future(self._helper.submit(opinion))
        except BrokenProcessPool as error:
            raise UsageError(f"the process that read {opinion.recorded} crashed") from error
