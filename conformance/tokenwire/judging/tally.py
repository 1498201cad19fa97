"""Tallies: counts of a check's observations for one requirement. Tallies of parts of a run can be added.

There are millions of observations, and nearly all of them are correct. Correct observations are only counted,
except the furthest one. Violations are kept, with their position in the run.
"""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from tokenwire.checks.evidence import Observation
from tokenwire.judging.clock import CLOCK, TooSlowError
from tokenwire.requirement import Level

Order = tuple[int, int]
"""The position of the answer in its run, and of the observation in its answer."""


class Seen(NamedTuple):
    """An observation with its position in the run."""

    order: Order
    observation: Observation


def how_far(observation: Observation | None) -> int:
    """Return the number of events up to an observation. A witness further into a stream is
    stronger evidence.
    """
    return 0 if observation is None else 1 + observation.event


class LeftOut(NamedTuple):
    """The reason why relevant answers were not judged."""

    first: Order
    """The position of the first such answer."""
    exchange: str
    """The name of the exchange of the first such answer."""
    reason: str
    times: int


class Tally(NamedTuple):
    """Counts of a check's observations in some answers. `NOTHING` is the empty tally.

    The sum of tallies does not depend on their grouping and order. Each answer has about a hundred of them,
    so it is a tuple, like `Place`.
    """

    saw: bool = False
    """True if anything was observed, even if only a condition."""
    witnesses: int = 0
    furthest: Seen | None = None
    """The witness furthest into a stream. If several are equally far, the first of them."""
    differing: tuple[Seen, ...] = ()
    """The violations, in the order of the run."""
    crash: tuple[Order, str] | None = None
    """The traceback of a check that crashed, or a message about a check that was too slow.

    Both are errors of the suite, not of the server.
    """
    left_out: tuple[LeftOut, ...] = ()
    """Answers that the check did not judge, by reason, in the order of the run."""


NOTHING = Tally()


class TallyBuilder:
    """Adds the tallies of parts, which arrive one by one in any order."""

    __slots__ = ("_crash", "_differing", "_furthest", "_left_out", "_saw", "_witnesses")

    def __init__(self) -> None:
        self._saw = False
        self._witnesses = 0
        self._furthest: Seen | None = None
        self._differing: list[Seen] = []
        self._crash: tuple[Order, str] | None = None
        self._left_out: dict[str, LeftOut] = {}

    def add(self, part: Tally) -> None:
        self._saw |= part.saw
        self._witnesses += part.witnesses
        self._differing += part.differing
        new, held = part.furthest, self._furthest
        if new is not None and (held is None or _furthest_first(new) < _furthest_first(held)):
            self._furthest = new
        if part.crash is not None and (self._crash is None or part.crash < self._crash):
            self._crash = part.crash
        for left in part.left_out:
            known = self._left_out.get(left.reason, left._replace(times=0))
            # The first such answer in the run represents all of them, whatever the order of the parts.
            self._left_out[left.reason] = min(known, left)._replace(times=known.times + left.times)

    @property
    def built(self) -> Tally:
        differing = tuple(sorted(self._differing, key=itemgetter(0)))
        left_out = tuple(sorted(self._left_out.values()))
        return Tally(self._saw, self._witnesses, self._furthest, differing, self._crash, left_out)


def _furthest_first(seen: Seen) -> tuple[int, Order]:
    return -how_far(seen.observation), seen.order


_MOST_OF_A_KIND = 100
"""The maximum number of violations of one level that are kept for an answer. A server may cause millions."""


def tally(
    check: Callable[..., Iterable[Observation]],
    *subject: Any,
    position: int,
    empty_answers: frozenset[str] = frozenset(),
) -> Tally:
    """Run a check and count its observations until it ends, crashes or exceeds the time limit.

    Only the first violations of each level are kept. The last of these represents all later ones.
    `empty_answers` names exchanges without content, which are not witnesses.
    """
    outer = CLOCK.work
    if outer is None:
        CLOCK.work = subject
    try:
        # Most checks observe nothing in an answer. This case takes 0.2 µs without a tally, and 2.3 µs with
        # one (benchmarks/NOTES.md).
        seen = iter(check(*subject))
        first = next(seen, None)
        if first is None:
            return NOTHING
        return _tally_of_observations(chain((first,), seen), position, empty_answers)
    except Exception:  # a crash of a check must not end the run, and is not a violation of the server
        return Tally(crash=((position, 0), traceback.format_exc()))
    except TooSlowError as error:
        return Tally(crash=((position, 0), str(error)))
    finally:
        CLOCK.work = outer


def _tally_of_observations(
    observations: Iterable[Observation], position: int, empty_answers: frozenset[str]
) -> Tally:
    witnesses = furthest_event = nth = 0
    furthest: Seen | None = None
    differing: list[Seen] = []
    kinds: defaultdict[tuple[Level | None, bool], list[int]] = defaultdict(list)
    left_out: list[Seen] = []
    crash = None
    try:
        for nth, seen in enumerate(observations, 1):  # the last number is known even after a crash
            place, _, _, holds, message, _, condition_only, level, by_chance, stands_for = seen
            if not holds:
                kind = kinds[level, by_chance]
                if len(kind) < _MOST_OF_A_KIND:
                    kind.append(len(differing))
                    differing.append(Seen((position, nth), seen))
                else:
                    order, last = differing[kind[-1]]
                    differing[kind[-1]] = Seen(order, last._replace(witnesses=last.witnesses + stands_for))
            if condition_only or (empty_answers and place.exchange in empty_answers):
                if condition_only and message:
                    left_out.append(Seen((position, nth), seen))
                continue
            witnesses += stands_for
            if holds and (place.event or 0) >= furthest_event:
                furthest, furthest_event = Seen((position, nth), seen), (place.event or 0) + 1
    except Exception:
        crash = (position, nth), traceback.format_exc()
    except TooSlowError as error:
        crash = (position, nth), str(error)
    # A skipped value is not an observation. It only gives a reason for a lack of observations.
    saw = nth > len(left_out)
    return Tally(saw, witnesses, furthest, tuple(differing), crash, _by_reason(left_out))


def _by_reason(left_out: Sequence[Seen]) -> tuple[LeftOut, ...]:
    if not left_out:  # nearly all tallies have no skipped values
        return ()
    counts = Counter(seen.observation.message for seen in left_out)
    firsts = {seen.observation.message: seen for seen in reversed(left_out)}
    return tuple(
        LeftOut(firsts[reason].order, firsts[reason].observation.place.exchange, reason, count)
        for reason, count in counts.items()
    )
