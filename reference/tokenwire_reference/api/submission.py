"""Handing requests to the engine."""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.request import Request
from tokenwire_reference.request_manager import DuplicateRequestIdError, Generation
from tokenwire_reference.served import Served


def submit(served: Served, requests: Sequence[Request], *, group: str | None) -> Generation:
    """Start the requests of one call. Raises RefusalError where an id is in use or the engine is gone."""
    if (failure := served.engine_thread.failure) is not None:
        raise RefusalError(f"the engine stopped: {failure}; restart the server", type="503", status=503)
    try:
        return served.manager.submit(requests, group=group)
    except DuplicateRequestIdError as error:
        raise RefusalError(str(error)) from error
