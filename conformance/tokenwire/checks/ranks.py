"""Checks of data-parallel ranks: who names one is run there, or is refused."""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.checks.about import ANY
from tokenwire.checks.check import Target, check_choices, check_rows
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.refusals import Refused, observe_refusal
from tokenwire.record import Choice, Stream, integer


@check_choices("rank-is-the-asked-one", ANY)
def _rank_is_the_asked_one(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Whose prefix a client knows to be cached on one rank finds it there."""
    due = stream.asked.rank
    emission = choice.delivered[-1]
    rank = integer(emission.details.get("dp_rank"))
    if due is not None and rank is not None:
        message = f"rank {due} was asked for, and rank {rank} ran the request"
        yield expect(emission.at("dp_rank"), due, rank, message)


def _no_such_rank(stream: Stream, target: Target) -> str:
    rank, size = stream.asked.rank, target.advertised.dp_size
    known = rank is None or size is None or 0 <= rank < size
    return "" if known else f"rank {rank} was asked for, of {size} that there are, and that was"


check_rows(observe_refusal, Refused("unknown-rank-refused", ANY, _no_such_rank))
