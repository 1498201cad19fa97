"""The eight verdicts, and the exit status of a run."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from tokenwire.requirement import Level


class Verdict(StrEnum):
    """The verdict on one requirement in one scenario. The worst verdict is last."""

    PASS = "PASS"
    """The requirement was observed often enough, and never violated."""
    INFO = "INFO"
    """A remark, or a use of a MAY. It never fails a run."""
    UNSUPPORTED = "UNSUPPORTED"
    """The server neither declares nor shows the subject of the requirement."""
    NOT_TESTABLE = "NOT_TESTABLE"
    """This run lacks something that the check needs. The message names it."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """Too little was observed, or the requirement's condition did not occur."""
    WARN = "WARN"
    """A SHOULD was violated."""
    FAIL = "FAIL"
    """A MUST was violated."""
    HARNESS_ERROR = "HARNESS_ERROR"
    """The suite itself crashed. This is not evidence about the server."""


VIOLATED = {Level.MUST: Verdict.FAIL, Level.SHOULD: Verdict.WARN, Level.MAY: Verdict.INFO}
"""The verdict on a violated requirement, by its level. The most severe level is first."""
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
    """Return the most severe of the verdicts. Raises ValueError if there are none."""
    return max(verdicts, key=SEVERITY.__getitem__)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Return one verdict on a requirement for all scenarios together. Verdicts with observations come before
    others.

    Raises ValueError if there are no verdicts.
    """
    seen = set(verdicts)
    return next((verdict for verdict in _TELLING if verdict in seen), worst(seen))


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """Return the exit status for a set of verdicts. If no verdict is a PASS, nothing was evaluated."""
    seen = set(verdicts)
    if Verdict.HARNESS_ERROR in seen:
        return ExitStatus.HARNESS_ERROR
    if Verdict.FAIL in seen:
        return ExitStatus.VIOLATION
    if Verdict.PASS not in seen:
        return ExitStatus.NOTHING_EVALUATED
    return ExitStatus.CONFORMS
