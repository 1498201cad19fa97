"""Sequences that wait for a seat. Each HTTP call has its own line, and the lines take turns."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenwire_reference.core.scheduler import Sequence


class WaitingLines:
    """Waiting lines, one for each group of requests.

    Within a group, the first request is served first; the groups take turns. Without turns, all 4,096
    sequences of one call could be served before any later call.
    """

    def __init__(self, seats: int) -> None:
        self._lines: OrderedDict[str, deque[Sequence]] = OrderedDict()
        """The lines by group. It is the turn of the first group."""
        self._most_seats = seats - seats // 16
        """The maximum number of seats of one group.

        The remaining seats are free for later groups, which need not wait until sequences of this group end.
        """
        self._seated: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def append(self, sequence: Sequence) -> None:
        """Put a sequence at the end of its group's line."""
        self._lines.setdefault(_group(sequence), deque()).append(sequence)

    def put_first(self, sequence: Sequence) -> None:
        """Put a sequence before all others."""
        group = _group(sequence)
        self._lines.setdefault(group, deque()).appendleft(sequence)
        self._lines.move_to_end(group, last=False)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence. Raises KeyError or ValueError if it is not waiting."""
        group = _group(sequence)
        self._lines[group].remove(sequence)
        if not self._lines[group]:
            del self._lines[group]

    def next(self) -> Sequence | None:
        """Return the sequence that gets the next seat; None without one."""
        for group, line in self._lines.items():
            if self._seated[group] < self._most_seats:
                return line[0]
        return None

    def seat(self, sequence: Sequence) -> None:
        """Give a sequence a seat. Every other group has a turn before this group has its next turn."""
        self._lines.move_to_end(_group(sequence))
        self.remove(sequence)
        self._seated[_group(sequence)] += 1

    def leave(self, sequence: Sequence) -> None:
        """Take back the seat of a sequence."""
        group = _group(sequence)
        self._seated[group] -= 1
        if not self._seated[group]:
            del self._seated[group]


def _group(sequence: Sequence) -> str:
    return sequence.request.group or sequence.request.rid
