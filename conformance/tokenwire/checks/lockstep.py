"""Per-token series in lockstep with the output ids: in every emission, one entry for each id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from tokenwire.checks.about import about, finished_choices
from tokenwire.checks.check import Relation, Target, check_rows
from tokenwire.checks.evidence import Observation, Row, expect, expect_each, in_wire_order
from tokenwire.checks.reading.fields import untold_count
from tokenwire.dialects.logprobs import LISTS, NAMED_TOP
from tokenwire.record import Delivery, Emission, Stream, as_list
from tokenwire.typed_table import counted


def _observe_no_list(emission: Emission, name: str, value: object) -> Observation:
    """Return the violation of a series that is not a list although the emission has ids."""
    kind = "is missing" if value is None else f"is a {type(value).__name__}, not a list,"
    message = f"{name} {kind} for {emission.entries_in_words}"
    return expect(emission.at(name), emission.expected_entries, value, message, holds=False)


def lockstep(emissions: Sequence[Emission], names: Iterable[str]) -> Iterator[Observation]:
    """Observe the length of the named series in the given emissions.

    If a choice carries a series at all, every emission with ids must carry it. Other emissions may lack it.
    """
    for name in names:
        sizes: list[Row] = []
        for emission in emissions:
            value, due = emission.series.get(name), emission.expected_entries
            if not emission.counted or (value is None and due <= 0):
                continue
            entries = as_list(value)
            if entries is None:
                yield _observe_no_list(emission, name, value)
            else:
                sizes.append((emission, name, len(entries) == due, due, len(entries)))
        yield from expect_each(sizes, "{field} has {actual} entries for {emission.entries_in_words}")


@dataclass(frozen=True)
class Lockstep(Relation):
    """The named series of a choice must have one entry for each id, in every emission."""

    names: Literal["customized", "server_series"]
    """Either the series of a custom sampler, or the server's own series, such as logprobs."""


def _observe_lockstep(row: Lockstep, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check the length of each series in each emission. A budget of zero has its own requirement."""
    if stream.asked.max_new_tokens == 0:
        return
    # If the request enabled no alternatives, the list of alternatives in completions may be empty.
    empty = frozenset() if stream.asked.top_logprobs else frozenset({NAMED_TOP})
    wanted = {choice.index: sorted(getattr(choice, row.names) - empty) for choice in stream.choices}
    every = (lockstep(choice.delivered, wanted[choice.index]) for choice in stream.delivering)
    yield from in_wire_order(chain.from_iterable(every))
    for choice in finished_choices(stream):
        due = untold_count(stream, choice)
        for name in sorted(LISTS.intersection(wanted[choice.index])) if due is not None else ():
            if (entries := choice.series(name)) is not None:
                message = (
                    f"{name} has {counted(len(entries), 'entry')} in total, but the usage counts {due} tokens"
                )
                yield expect(choice.last_at(name), due, len(entries), message)


check_rows(
    _observe_lockstep,
    Lockstep("customized-info-incremental", about(delivery=Delivery.INCREMENTAL), "customized"),
    Lockstep("customized-info-cumulative", about(delivery=Delivery.CUMULATIVE), "customized"),
    Lockstep("customized-info-whole", about(delivery=Delivery.WHOLE), "customized"),
    Lockstep("logprobs-incremental", about(delivery=Delivery.INCREMENTAL), "server_series"),
    Lockstep("logprobs-cumulative", about(delivery=Delivery.CUMULATIVE), "server_series"),
    Lockstep("logprobs-whole", about(delivery=Delivery.WHOLE), "server_series"),
)
