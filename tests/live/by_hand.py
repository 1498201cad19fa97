"""An inspector under way, asked as its page asks it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from tokenwire.asking.run import Plan, reach
from tokenwire.settings import Settings
from tokenwire_live.inspecting.bench import TARGET
from tokenwire_live.inspecting.inspector import Inspector

DIALECT = "sglang-generate"
BODY = {"input_ids": [65], "sampling_params": {"max_new_tokens": 20}, "stream": True}


class Page:
    """What the script of the page asks."""

    def __init__(self, address: str, client: httpx.AsyncClient) -> None:
        self.address, self.client = address, client
        self.origin = {"origin": str(httpx.URL(address).copy_with(path="/")).rstrip("/")}

    async def post(self, deed: str, wanted: Mapping[str, Any]) -> Any:
        return (await self.client.post(f"{self.address}{deed}", json=wanted, headers=self.origin)).json()

    async def send(self, *bodies: Mapping[str, Any], to: str = TARGET) -> Any:
        """The numbers of the requests, or why they were not sent."""
        asked = [{"dialect": DIALECT, "body": json.dumps(body), "to": to} for body in bodies]
        return await self.post("send", {"requests": asked})

    async def news(self, wanted: str = "") -> AsyncIterator[dict[str, Any]]:
        async with self.client.stream("GET", f"{self.address}events{wanted}") as answer:
            async for line in answer.aiter_lines():
                if line:
                    yield json.loads(line.removeprefix("data: "))

    async def ended(self, number: int, beside: int | None = None) -> str:
        """The answer as HTML, once it has ended, and the other one, too."""
        rows: dict[int, dict[str, Any]] = {}
        async for news in self.news(f"?show={number}&beside={beside or ''}"):
            rows |= {row["number"]: row for row in news["rows"]}
            view = news.get("view", {}).get("html", "")
            if view and not any(rows[shown]["open"] for shown in (number, beside) if shown):
                return view
        raise AssertionError("the page was told no more")


def inspected(
    url: str,
    folder: Path,
    talk: Callable[[Page], Awaitable[None]],
    *,
    found: Mapping[str, Mapping[str, Any]] | None = None,
    scenario: tuple[str, ...] = ("greedy-stream",),
    **others: str,
) -> None:
    """Talk with the inspector of servers, by their names. `found`: what else is known of each."""

    async def run() -> None:
        urls = {TARGET: url, **others}
        plans = {
            name: Plan(Settings(target=target, dialect=(DIALECT,), scenario=scenario))
            for name, target in urls.items()
        }
        reached = {name: await reach(plan) for name, plan in plans.items()}
        targets = {
            name: replace(known, found=replace(known.found, **(found or {}).get(name, {})))
            for name, known in reached.items()
        }
        async with contextlib.AsyncExitStack() as open_:
            address = await open_.enter_async_context(Inspector(plans[TARGET], targets, folder))
            client = httpx.AsyncClient(verify=False, trust_env=False, timeout=120)
            await talk(Page(address, await open_.enter_async_context(client)))

    asyncio.run(run())
