"""What the HTTP routes work with: one served model, its manager and its engine's thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from starlette.requests import Request as HttpRequest

from tokenwire_reference.delivery.engine_thread import EngineThread
from tokenwire_reference.delivery.request_manager import RequestManager
from tokenwire_reference.engine.load import EngineLoad
from tokenwire_reference.server_args import ServerArgs
from tokenwire_reference.text.tokenizer import Tokenizer


class ServedModel(Protocol):
    """What the routes need to know of a model."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...


class ServedEngine(Protocol):
    """What the routes ask of an engine, on its own thread."""

    def flush_cache(self) -> bool:
        """Forget cached prefixes; False where requests are live and nothing was done."""

    def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None:
        """Compute nothing more until `continue_generation`."""

    def continue_generation(self) -> None:
        """Compute again."""

    @property
    def load(self) -> EngineLoad: ...


@dataclass(frozen=True)
class Served:
    """All that stands behind the routes of one server."""

    args: ServerArgs
    model: ServedModel
    tokenizer: Tokenizer | None
    """None with `--skip-tokenizer-init`."""
    engine: ServedEngine
    engine_thread: EngineThread
    manager: RequestManager
    facts: dict[str, Any] = field(default_factory=dict)
    """What the engine tells of itself, for `/server_info`."""
    started: float = field(default_factory=time.time)


def served_by(http_request: HttpRequest) -> Served:
    """What stands behind the app that a request came to."""
    served: Served = http_request.app.state.served
    return served
