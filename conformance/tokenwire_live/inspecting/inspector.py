"""The inspector: serves its page, and performs the actions that the user triggers on the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from tokenwire.asking.run import Plan, Reached
from tokenwire.parrot.speaker import Speaker
from tokenwire.processes import Helper
from tokenwire.report.page import player, policy
from tokenwire.report.templates import template
from tokenwire.target.tokenizer import LocalTokenizer
from tokenwire.wire.exchange import HttpRequest
from tokenwire_live.inspecting.bench import TARGET, TWIN, Bench
from tokenwire_live.inspecting.exchanges import Exchanges
from tokenwire_live.inspecting.form import form
from tokenwire_live.inspecting.keeping import keep
from tokenwire_live.inspecting.presets import presets
from tokenwire_live.inspecting.requirement_page import requirement_page
from tokenwire_live.inspecting.server import HTML, JSON, LOCAL, PageServer

_PULSE_S = 0.1
"""Seconds between two messages to the page. Each message has the news about all streams."""
_pulse = asyncio.sleep


class Inspector:
    """Serves the page while the (async) context is open. targets: the target and, if they are given, its
    worker and its twin. folder: the folder in which a click stores an answer. parrot: writes prompts if the
    target is a parrot.
    """

    def __init__(
        self, plan: Plan, targets: Mapping[str, Reached], folder: Path, parrot: Speaker | None = None
    ) -> None:
        self._plan, self._targets, self._folder, self._parrot = plan, targets, folder, parrot
        self._reached = targets[TARGET]
        self._server = PageServer(
            {
                "": self._page,
                "requirement": requirement_page,
                "presets": self._names,
                "preset": self._preset,
            },
            {"send": self._send, "stop": self._stop, "abort": self._abort, "keep": self._keep},
            self._events,
        )

    async def __aenter__(self) -> str:
        """Start the server; return the address of the page. Raises OSError."""
        found, tokenizer = self._reached.found, self._plan.tokenizer
        known = tokenizer.known.words if isinstance(tokenizer, LocalTokenizer) else None
        words = parrot.words if (parrot := self._parrot) is not None else known
        bench = Bench(
            {dialect.name: dialect for dialect in found.asked},
            {name: reached.found.advertised for name, reached in self._targets.items()},
            tokenizer,
            words.pieces if words is not None else (),
            self._plan.settings.judge_limit,
        )
        self._exchanges = Exchanges(self._targets, bench)
        settings = self._plan.settings
        self._rehearsing = Helper(lambda _: presets(found, parrot, settings))
        await self._server.listen()
        return self._server.url

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()
        self._rehearsing.close()
        await self._exchanges.close()

    @cached_property
    def _presets(self) -> asyncio.Future[dict[str, HttpRequest]]:
        """Return the task that computes the presets.

        The task takes seconds, so it starts only when the page first needs the presets.
        """
        return asyncio.wrap_future(self._rehearsing.submit(None))

    async def _page(self, _: str) -> tuple[str, str]:
        script = player() + files("tokenwire_live.inspecting").joinpath("inspector.js").read_text("utf-8")
        found = self._reached.found
        data = {"forms": [form(dialect, found.model) for dialect in found.asked]}
        page = template("tokenwire_live.inspecting", "page.html.jinja").render(
            target=self._plan.settings.target,
            server=found.advertised,
            targets=self._targets,
            dialects=[dialect.name for dialect in found.asked],
            policy=policy(script) + LOCAL,
            script=Markup(script),
            data=htmlsafe_json_dumps(data),
        )
        return HTML, page

    async def _names(self, _: str) -> tuple[str, str]:
        return JSON, json.dumps(list(await self._presets))

    async def _preset(self, name: str) -> tuple[str, str]:
        request = (await self._presets)[name]
        return JSON, json.dumps({"path": request.path, "body": request.body})

    async def _send(self, wanted: Mapping[str, Any]) -> list[int]:
        sent = [
            (str(request["dialect"]), str(request["body"]), str(request.get("to", TARGET)))
            for request in wanted["requests"]
        ]
        return [self._exchanges.send(*request) for request in sent]

    async def _stop(self, wanted: Mapping[str, Any]) -> None:
        self._exchanges.stop(int(wanted["number"]))

    async def _abort(self, wanted: Mapping[str, Any]) -> str:
        return await self._exchanges.abort(int(wanted["number"]))

    async def _keep(self, wanted: Mapping[str, Any]) -> list[str]:
        kept = [self._exchanges.known[int(number)] for number in wanted["numbers"]]
        urls = {name: reached.found.url for name, reached in self._targets.items()}
        exchanges = [(asked.exchange, urls[asked.to]) for asked in kept]
        checked = [urls[name] for name in (TARGET, TWIN) if any(asked.to == name for asked in kept)]
        return await asyncio.to_thread(
            keep,
            self._folder,
            str(wanted["name"]),
            exchanges,
            checked or [urls[TARGET]],
            self._plan.asked_with,
        )

    async def _events(self, wanted: Mapping[str, str]) -> AsyncIterator[Any]:
        """Yield the rows that have changed, and the view of the shown answer if it has grown."""
        sent: dict[int, dict[str, Any]] | None = None
        seen: object = None
        show, beside = (int(wanted.get(name) or 0) for name in ("show", "beside"))
        while self._server.open:
            rows = {number: asked.row() for number, asked in self._exchanges.known.items()}
            news: dict[str, Any] = {
                "rows": [row for number, row in rows.items() if not sent or sent.get(number) != row],
                "gone": [number for number in sent or () if number not in rows],
            }
            changed = sent is None or any(news.values())
            sent = rows
            state = [(rows[known]["bytes"], rows[known]["open"]) for known in (show, beside) if known in rows]
            if show in rows and state != seen:
                seen = state
                news["view"] = await self._exchanges.view(show, beside)
            if changed or "view" in news:
                yield news
            await _pulse(_PULSE_S)
