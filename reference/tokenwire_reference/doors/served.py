"""The objects that the HTTP routes use: one served model, its request manager, and the
runner of its engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request as HttpRequest

from tokenwire_reference.core.request import Adapter
from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.constraining import Constraining
from tokenwire_reference.doors.request_manager import RequestManager
from tokenwire_reference.doors.sessions import Responses, Sessions
from tokenwire_reference.running.engine_runner import EngineRunner
from tokenwire_reference.running.ranks import Ranks
from tokenwire_reference.server_args import ServerArgs

if TYPE_CHECKING:
    from tokenwire_reference.core.engine import Engine
    from tokenwire_reference.core.model import Model
    from tokenwire_reference.doors.disaggregation import Disaggregation

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Served:
    """The objects that the HTTP routes of one server use."""

    args: ServerArgs
    model: Model
    tokenizer: Tokenizer | None
    """The tokenizer; None with `--skip-tokenizer-init`."""
    engine: Engine
    """The engine; with several engines, the first of them."""
    runner: EngineRunner | Ranks
    manager: RequestManager
    disaggregation: Disaggregation | None = None
    """The part of this server in requests that a prefill and a decode server share; None
    for a single server.
    """
    adapters: dict[str, Adapter] = field(default_factory=dict)
    """Adapters by their names in requests."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """An event that is set when the server is asked to end.

    Then running requests may finish, and new requests are refused.
    """
    sessions: Sessions = field(default_factory=Sessions)
    responses: Responses = field(default_factory=Responses)
    constraining: Constraining = field(init=False)
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about the engine, which `/server_info` reports."""
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraining", Constraining(self.args))

    @property
    def batch_invariant(self) -> bool:
        """True if ids and logprobs depend only on the request, according to the probe at the start of the
        server.
        """
        return not self.args.near_ties and all(self.facts.get("batch_invariance", {}).values())

    async def of_engines(self, function: Callable[[Engine], _Result]) -> list[_Result]:
        """Run a function on each engine, between two steps of that engine, and return the results."""
        return await asyncio.gather(*map(asyncio.wrap_future, self.runner.each(function)))

    @property
    def why_closed(self) -> str | None:
        """The reason why new requests are refused; None if they are accepted."""
        if (failure := self.runner.failure) is not None:
            return f"the engine stopped: {failure}; restart the server"
        return (
            "the server is about to end; send the request to another server"
            if self.draining.is_set()
            else None
        )


def served_by(http_request: HttpRequest) -> Served:
    """Return the `Served` of the application that received an HTTP request."""
    served: Served = http_request.app.state.served
    return served
