"""Recognizes known bugs of servers. A violation is attributed to a bug only if its evidence has the bug's
pattern.

`spec/signatures.yaml` lists the bugs. Its patterns are functions in this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import Judgement
from tokenwire.judging.run import Run
from tokenwire.record import Delivery, Emission, Stream, as_list, integer
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed

_MOST_FINDINGS = 20
"""The most violations of a judgement that are compared with the patterns.

A report lists no more violations than this.
"""
_QUOTED = re.compile(r"'([^']*)'")


@dataclass(frozen=True)
class _Signature:
    """The pattern of one bug, as it appears in responses."""

    upstream: tuple[str, ...]
    bug: str
    pattern: str
    requirements: tuple[str, ...]
    dialects: tuple[str, ...] = ()
    """The dialects in which the bug occurs; empty for all."""


@cache
def load_signatures() -> tuple[_Signature, ...]:
    """Load all signatures in the order of the file. Raises ValueError for an invalid row."""
    path = spec_root() / "signatures.yaml"
    return tuple(typed(_Signature, row, str(path)) for row in read_yaml(path))


def looks_like(judgement: Judgement) -> tuple[str, ...]:
    """Return the issues and pull requests about bugs whose pattern fits a violation of a judgement."""
    threads: dict[str, None] = {}
    by_exchange = judgement.run.by_exchange
    for signature in load_signatures():
        if judgement.requirement.id not in signature.requirements:
            continue
        for seen in judgement.violations[:_MOST_FINDINGS]:
            stream = by_exchange.get(seen.place.exchange)
            if stream is None or (signature.dialects and stream.dialect not in signature.dialects):
                continue
            if PATTERNS[signature.pattern](seen, stream.load(), judgement.run):
                threads.update(dict.fromkeys(signature.upstream))
                break
    return tuple(threads)


Pattern = Callable[[Observation, Stream, Run], bool]
PATTERNS: dict[str, Pattern] = {}


def _pattern(predicate: Pattern) -> Pattern:
    PATTERNS[predicate.__name__.strip("_").replace("_", "-")] = predicate
    return predicate


def _emission(seen: Observation, stream: Stream) -> Emission | None:
    """Return the emission in which an observation was made. None if the observation is not in an emission."""
    return next(
        (
            emission
            for choice in stream.delivering
            for emission in choice.delivered
            if emission.event.index == (seen.place.event or 0)
            and seen.place.pointer in emission.pointers.values()
        ),
        None,
    )


def _counts(seen: Observation) -> tuple[int, int] | None:
    """Return the expected and the actual number of an observation. None if one of them is not an integer."""
    expected, actual = integer(seen.expected), integer(seen.actual)
    return None if expected is None or actual is None else (expected, actual)


@_pattern
def _fewer_entries_than_ids(seen: Observation, _stream: Stream, _run: Run) -> bool:
    counts = _counts(seen)
    return counts is not None and 0 < counts[1] < counts[0]


@_pattern
def _one_value_for_all_ids(seen: Observation, _stream: Stream, _run: Run) -> bool:
    return seen.actual is not None and isinstance(seen.actual, int | float | str) and _counts(seen) is None


@_pattern
def _entries_of_all_ids_so_far(seen: Observation, stream: Stream, _run: Run) -> bool:
    counts, emission = _counts(seen), _emission(seen, stream)
    if counts is None or emission is None or emission.delivery is not Delivery.INCREMENTAL:
        return False
    return counts[1] == emission.after > counts[0]


@_pattern
def _whole_answer_lost_ids(seen: Observation, stream: Stream, _run: Run) -> bool:
    emission = _emission(seen, stream)
    if emission is None or stream.delivery is not Delivery.WHOLE:
        return False
    return 0 < emission.after < (integer(emission.counters.get("completion_tokens")) or 0)


@_pattern
def _finish_told_again(seen: Observation, stream: Stream, _run: Run) -> bool:
    for choice in stream.choices:
        finishes = [emission.finish for emission in choice.emissions if emission.finish is not None]
        if len(finishes) > 1 and seen.actual == len(finishes) and finishes[0].type == finishes[1].type:
            return True
    return False


@_pattern
def _details_are_doubled(seen: Observation, stream: Stream, _run: Run) -> bool:
    emission, details = _emission(seen, stream), seen.actual
    if emission is None or not isinstance(details, Mapping):
        return False
    cached = integer(emission.counters.get("cached_tokens"))
    counts = [count for count in map(integer, details.values()) if count is not None]
    return bool(cached) and sum(counts) == 2 * (cached or 0)


@_pattern
def _id_begins_with_the_aborted_one(seen: Observation, _stream: Stream, _run: Run) -> bool:
    """True if the observation names a request id that begins with the id of an aborted request."""
    name, *aborted = _QUOTED.findall(seen.message) or [""]
    return any(name.startswith(other) for other in aborted if other)


@_pattern
def _only_entries_without_text_are_missing(seen: Observation, stream: Stream, _run: Run) -> bool:
    counts = _counts(seen)
    if counts is None or counts[1] >= counts[0] or stream.delivery is Delivery.WHOLE:
        return False
    speaking = [emission for emission in stream.emissions() if emission.text]
    return bool(speaking) and all(any(map(as_list, emission.series.values())) for emission in speaking)


@_pattern
def _all_zero(seen: Observation, _stream: Stream, _run: Run) -> bool:
    return isinstance(seen.actual, int | float) and seen.actual == 0


@_pattern
def _prompt_ids_never_told(seen: Observation, _stream: Stream, run: Run) -> bool:
    if not str(seen.expected).startswith("prompt_token_ids ") or seen.actual != "absent":
        return False
    return not run.tells_prompt_ids


@_pattern
def _ids_of_another_prompt(seen: Observation, stream: Stream, _run: Run) -> bool:
    emission = _emission(seen, stream)
    prompts = stream.asked.input_ids or ()
    ids = as_list(emission.prompt_token_ids) if emission else None
    return ids is not None and len(prompts) > 1 and tuple(ids) in prompts


@_pattern
def _null_content_beside_ids(seen: Observation, stream: Stream, _run: Run) -> bool:
    return seen.actual is None and stream.asked.input_ids is not None


@_pattern
def _usage_in_every_event(_seen: Observation, stream: Stream, _run: Run) -> bool:
    with_usage = {usage.place.event for usage in stream.usages}
    speaking = [event.index for event in stream.events if event.data is not None]
    return len(speaking) > 2 and with_usage.issuperset(speaking)
