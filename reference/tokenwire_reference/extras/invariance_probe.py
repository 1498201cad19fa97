"""Probes if a model on a device gives the same bits for a request alone, in a batch, in chunks, and with a
cached prefix.

The probe runs once when a server starts, and `/server_info` reports the results. If a result is False,
repeated requests may have different results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.model import Model
from tokenwire_reference.core.request import Request, SamplingParams

PROMPT_TOKENS = 40
NEW_TOKENS = 8
NEIGHBOURS = 16


def probe_invariance(
    make_engine: Callable[[EngineArgs], Engine], model: Model, *, page_size: int
) -> Mapping[str, bool]:
    """Run one request in five ways; return True for each way with equal ids and logprobs, bit by bit."""
    length = min(PROMPT_TOKENS, model.context_length - NEW_TOKENS)
    if length < 1:
        return {}
    alone = _ask(model, 0, length)
    company = [_ask(model, i, max(1, length - i)) for i in range(1, NEIGHBOURS + 1)]
    cached, retracted = _ask(model, 0, length), _ask(model, 0, length)
    chunked, together = _ask(model, 0, length), _ask(model, 0, length)
    pages = (NEIGHBOURS + 1) * -(-(length + NEW_TOKENS) // page_size)
    chunk = -(-length // 2 // page_size) * page_size

    def engine(**options: Any) -> Engine:
        return make_engine(EngineArgs(max_total_tokens=pages * page_size, page_size=page_size, **options))

    in_pages = engine(chunked_prefill_size=-(-length // page_size) * page_size)
    _run(in_pages, [alone])
    _run(in_pages, [cached])
    _run(engine(chunked_prefill_size=chunk), [chunked])
    _run(engine(chunked_prefill_size=8 * page_size), [*company[:8], together, *company[8:]])
    options = {"prefix_caching": False, "test_retract_interval": 3}
    _run(engine(chunked_prefill_size=chunk, **options), [retracted])
    return {
        "alone_and_in_company": _same(alone, together),
        "whole_and_chunked_prefill": _same(alone, chunked),
        "cold_and_warm_cache": _same(alone, cached),
        "with_and_without_retraction": _same(alone, retracted),
    }


def _ask(model: Model, number: int, length: int) -> Request:
    return Request(
        f"probe-{number}",
        tuple((number * 7919 + index * 104729) % model.vocab_size for index in range(length)),
        SamplingParams(max_new_tokens=NEW_TOKENS, temperature=1.0, sampling_seed=number, ignore_eos=True),
        return_logprob=True,
    )


def _run(engine: Engine, requests: Sequence[Request]) -> None:
    for request in requests:
        engine.add(request)
    while not engine.idle:
        engine.step()


def _same(a: Request, b: Request) -> bool:
    return (a.output_ids, a.series) == (b.output_ids, b.series)
