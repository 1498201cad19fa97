"""Presets for the page's form: the requests of scenarios, and scripts for a parrot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from tokenwire.asking.preflight import Preflight
from tokenwire.asking.rehearsal import Rehearsal
from tokenwire.asking.run import chosen
from tokenwire.asking.scenario import Conversation, Transcript
from tokenwire.parrot.speaker import Speaker
from tokenwire.settings import Settings
from tokenwire.wire.exchange import Exchange, HttpRequest


@dataclass
class _Noting(Rehearsal):
    """A rehearsal (a run without a server) that stores the requests."""

    requests: dict[str, HttpRequest] = field(default_factory=dict)

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        self.requests.setdefault(name, request)
        return await super().send(name, scenario, request, **how)


def presets(found: Preflight, parrot: Speaker | None, settings: Settings) -> dict[str, HttpRequest]:
    """Return the requests that a run with these settings would send, by exchange name. Nothing is sent."""
    return asyncio.run(_rehearsed(found, parrot, settings))


async def _rehearsed(found: Preflight, parrot: Speaker | None, settings: Settings) -> dict[str, HttpRequest]:
    noting = _Noting(found.asked, found.advertised.context)
    for scenario in chosen(replace(settings, gentle=True)):
        for dialect in found.asked:
            talk = Conversation(
                scenario.name,
                dialect,
                noting,
                found.advertised,
                Transcript(),
                found.model,
                settings.budget,
                parrot,
            )
            if scenario.fits(dialect) and (parrot is not None or not scenario.parrot):
                await scenario.run(talk)
    return {name: request for name, request in noting.requests.items() if request.method != "GET"}
