"""The eight verdicts, and the exit status of a run."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from tokenwire.requirement import Level


class Verdict(StrEnum):
    """Verdicts on one requirement in one scenario, worst last."""

    PASS = "PASS"
    """Observed often enough, never violated."""
    INFO = "INFO"
    """A MAY that the target uses, or a remark. It never fails a run."""
    UNSUPPORTED = "UNSUPPORTED"
    """The target neither declares nor shows the requirement's subject."""
    NOT_TESTABLE = "NOT_TESTABLE"
    """The target may have it, but this run lacks something that the check needs, which the message names."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """Too little was observed, or the requirement's condition did not occur."""
    WARN = "WARN"
    """A SHOULD was violated."""
    FAIL = "FAIL"
    """A MUST was violated."""
    HARNESS_ERROR = "HARNESS_ERROR"
    """The suite itself crashed, which is not evidence about the target."""


VIOLATED = {Level.MUST: Verdict.FAIL, Level.SHOULD: Verdict.WARN, Level.MAY: Verdict.INFO}
"""The verdict on a violated requirement by its level, the gravest first."""
SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}


_TELLING = (Verdict.HARNESS_ERROR, Verdict.FAIL, Verdict.WARN, Verdict.PASS)
MOST_TELLING_FIRST = (*_TELLING, *(verdict for verdict in reversed(Verdict) if verdict not in _TELLING))


class ExitStatus:
    """Exit statuses of `tokenwire check` and `tokenwire replay`."""

    CONFORMS = 0
    VIOLATION = 1
    USAGE = 2
    HARNESS_ERROR = 3
    NOTHING_EVALUATED = 4


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most severe verdict. Raises ValueError without any."""
    return max(verdicts, key=SEVERITY.__getitem__)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Return one verdict on a requirement over all scenarios. Observations outweigh their absence.

    Raises ValueError without any.
    """
    seen = set(verdicts)
    return next((verdict for verdict in _TELLING if verdict in seen), worst(seen))


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """Return the exit status for a set of verdicts. Without a PASS, nothing was evaluated."""
    seen = set(verdicts)
    if Verdict.HARNESS_ERROR in seen:
        return ExitStatus.HARNESS_ERROR
    if Verdict.FAIL in seen:
        return ExitStatus.VIOLATION
    if Verdict.PASS not in seen:
        return ExitStatus.NOTHING_EVALUATED
    return ExitStatus.CONFORMS
