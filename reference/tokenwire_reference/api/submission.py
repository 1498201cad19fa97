"""Handing requests to the engine, and what an abort by the server means for the answer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.api.limits import refuse_many_hidden_states, refuse_many_logprobs, refuse_wide_masks
from tokenwire_reference.api.served import Served
from tokenwire_reference.delivery.request_manager import DuplicateRequestIdError, Emission, Generation
from tokenwire_reference.request import Request


def submit(served: Served, requests: Sequence[Request], *, group: str | None) -> Generation:
    """Start the requests of one call.

    Raises RefusalError if they ask for too much, if an id is in use or if nothing is taken any more.
    """
    if (reason := served.why_closed) is not None:
        raise RefusalError(reason, type="503", status=503)
    refuse_wide_masks(requests)
    refuse_many_hidden_states(requests)
    refuse_many_logprobs(requests)
    try:
        return served.manager.submit(requests, group=group)
    except DuplicateRequestIdError as error:
        raise RefusalError(str(error)) from error


def raise_for_server_abort(emissions: Sequence[Emission], *, unless_it_has_ids: bool = False) -> None:
    """Raise RefusalError where the server aborted one of these; in a stream, sampled ids come first."""
    for emission in emissions:
        refusal = RefusalError.of_abort(emission.finish) if emission.finish else None
        if refusal and not (unless_it_has_ids and emission.output_ids):
            raise refusal
