"""One trial of a mutation, and the counts of many trials."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from proofs.mutation.edit import Edit, Hand
from proofs.mutation.illegal import ILLEGAL, unchanged
from proofs.mutation.legal import LEGAL
from proofs.mutation.source import Source, verdicts_of, violations
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict

_RED = (Verdict.FAIL, Verdict.WARN, Verdict.HARNESS_ERROR)
_OF_TIMES = {"stream-comes-in-a-burst"}
"""Requirements that depend only on the times of the reads. The times of an edited stream are not those of the
recording.
"""
_READ_SIZES = (1, 7, 64, 1000, 10**9)


@dataclass
class Tally:
    """Counts of tried edits by name, and the problems that were found."""

    tried: Counter[str] = field(default_factory=Counter)
    caught_by: Counter[str] = field(default_factory=Counter)
    """The number of illegal edits that each requirement caught."""
    missed: list[str] = field(default_factory=list)
    """Illegal edits after which no check found a violation at the edit or later."""
    false_alarms: list[str] = field(default_factory=list)
    """Legal edits that changed a verdict."""


def _read(source: Source, edit: Edit, hand: Hand) -> Run:
    """Return the run with the edited stream, in reads of a size that is chosen by chance."""
    whole = edit.body.bytes()
    size = hand.choose(_READ_SIZES)
    if size == 1 and len(whole) > 4000:
        size = 7
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    return source.with_reads(pieces, edit.body.ending)


def _where(source: Source, name: str) -> str:
    return f"{name} in {source.run.name}, {source.exchange.name}"


def try_illegal(tally: Tally, source: Source, name: str, hand: Hand) -> bool:
    """Make an illegal edit, and note whether a check finds a violation at the edit or later. Return False if
    the edit is not possible in this stream.
    """
    edit = ILLEGAL[name](source, hand)
    if edit is None or unchanged(source, edit.body):
        return False
    tally.tried[name] += 1
    judged = judge([_read(source, edit, hand)])
    found = [(row, seen) for row, seen in violations(judged) if seen.place.exchange == source.exchange.name]
    red = [row for row, seen in found if seen.place.event is None or seen.place.event >= edit.event]
    crashed = [judgement for judgement in judged if judgement.verdict is Verdict.HARNESS_ERROR]
    if crashed or not red:
        early = ", ".join(sorted({row for row, _ in found})) or "nothing"
        words = (
            crashed[0].message.splitlines()[-1] if crashed else f"violations only before the edit: {early}"
        )
        tally.missed.append(f"{_where(source, name)}, event {edit.event}: {words}")
    tally.caught_by.update(set(red))
    return True


def try_legal(tally: Tally, source: Source, name: str, hand: Hand) -> bool:
    """Make a legal edit, and note each verdict that changes. Return False if the edit is not possible in this
    stream.
    """
    edit = LEGAL[name](source, hand)
    if edit is None:
        return False
    tally.tried[name] += 1
    judged = judge([_read(source, edit, hand)])
    after = verdicts_of(judged)
    for key in sorted((after.keys() | source.verdicts.keys()) - _OF_TIMES):
        was, now = source.verdicts.get(key), after.get(key)
        recut = len(edit.body.data) != len(source.data) and {was, now} <= {
            Verdict.PASS,
            Verdict.INCONCLUSIVE,
            Verdict.UNSUPPORTED,
            Verdict.NOT_TESTABLE,
            None,
        }
        if (
            was is not now and not recut
        ):  # the checks of a stream with other events have more or fewer values to compare
            first = next((seen.message for other, seen in violations(judged) if other == key), "")
            tally.false_alarms.append(f"{_where(source, name)}: {key} was {was} and is {now}: {first}")
    return True
