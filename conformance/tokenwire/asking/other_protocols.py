"""Protocols of inference servers that no dialect reads. A message names the protocol of such a target."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.wire.exchange import Exchange


@dataclass(frozen=True)
class OtherProtocol:
    """A protocol, and how to recognize a server of it."""

    name: str
    paths: tuple[str, ...]
    """Endpoints that a user may name as the target."""
    asked: str
    """The path of an information endpoint."""
    has: str
    """A field of the object that this endpoint returns."""

    def is_served(self, exchange: Exchange) -> bool:
        """True if an exchange shows that a server has the information endpoint of this protocol."""
        if exchange.request.path != self.asked or exchange.status != 200:
            return False
        try:
            found = json.loads(exchange.body)
        except (ValueError, RecursionError):
            return False
        return isinstance(found, dict) and self.has in found


@cache
def other_protocols() -> tuple[OtherProtocol, ...]:
    """Return the protocols of `spec/other_protocols.yaml`."""
    rows = read_yaml(spec_root() / "other_protocols.yaml")
    return tuple(OtherProtocol(**{**row, "paths": tuple(row["paths"])}) for row in rows)


def explain(url: str, exchanges: Iterable[Exchange]) -> tuple[str, str] | None:
    """Return a description of a target that has only another protocol, and a next step; None for other
    targets.

    `exchanges`: the requests to the information endpoints of the protocols, with their responses.
    """
    path, exchanges = urlsplit(url).path.rstrip("/"), list(exchanges)
    for protocol in other_protocols():
        named = next((ending for ending in protocol.paths if path.endswith(ending)), "")
        if named:
            fact = f"{url} is an endpoint of {protocol.name}, which no dialect of this suite reads."
            return fact, (
                f"Such servers usually have /v1/chat/completions, too: give the base URL, without {named}."
            )
        if any(map(protocol.is_served, exchanges)):
            fact = (
                f"{url} speaks {protocol.name}, which no dialect of this suite reads, and none of the "
                "endpoints that this suite knows."
            )
            return fact, "Enable its OpenAI-compatible endpoint (/v1/chat/completions)."
    return None
