"""Requests to an engine, and what is compared of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenwire_reference.core.engine import Engine
from tokenwire_reference.core.request import Request, SamplingParams

PROMPT = tuple(range(10, 95))
GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 1.0, "sampling_seed": 11, "top_p": 0.95}


def ask(rid: str = "r", prompt: Sequence[int] = PROMPT, new: int | None = 12, **options: Any) -> Request:
    """A request; sampling parameters and request fields side by side."""
    names = set(SamplingParams.__dataclass_fields__)
    sampling = {**GREEDY, **{key: value for key, value in options.items() if key in names}}
    fields = {key: value for key, value in options.items() if key not in names}
    return Request(rid, tuple(prompt), SamplingParams(max_new_tokens=new, **sampling), **fields)


def scored(rid: str = "r", **options: Any) -> Request:
    """A request for every kind of logprob of every token."""
    wanted = {
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 3,
        "token_ids_logprob": (5, 700),
    }
    return ask(rid, **{**wanted, **options})


def retract(engine: Engine, rid: str) -> None:
    """Take a running request's pages away and let it start over from its ids, invisibly."""
    sequence = engine.scheduler.find(rid)
    assert sequence is not None
    engine.scheduler.retract(sequence)


def record(request: Request) -> tuple[Any, ...]:
    return request.output_ids, request.series, request.prompt_series, request.finish


def neighbours(count: int = 8) -> list[Request]:
    return [
        ask(
            f"n{i}",
            range(20 + i, 30 + 17 * i),
            5 + 3 * i,
            **(SEEDED if i % 2 else GREEDY),
            return_logprob=i % 3 == 0,
        )
        for i in range(count)
    ]
