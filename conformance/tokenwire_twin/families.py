"""Groups differences into families. A family is the differences with one cause, counted over many answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tokenwire.record import Answer
from tokenwire.target.alike import alike
from tokenwire.target.determinism import completed
from tokenwire_twin.answers import aspects
from tokenwire_twin.difference import Difference, Gravity
from tokenwire_twin.status_differences import NO_ANSWER

SURELY_SEEN_IN = 5
"""The number of requests with a difference from which chance is no longer accepted as the cause."""
_ORDER = {gravity: position for position, gravity in enumerate(Gravity)}


@dataclass(frozen=True)
class Family:
    """All differences of one kind."""

    gravity: Gravity
    kind: str
    subject: str
    says: str
    at: Mapping[str, int]
    """The number of exchanges with this difference, by dialect."""
    exchanges: tuple[str, ...]
    members: tuple[Difference, ...]
    by_chance: bool = False
    """True if chance explains the differences.

    In this case, the differences are few, and each side contradicts itself in these requests.
    """
    known: str = ""
    """The reason why the difference is known, with a link; empty if it is new."""
    asked: str = ""
    """The fields that all requests of the family have and no other request has, as text.

    Empty if there are no such fields.
    """
    leak: str = ""
    """The evidence that a concurrent request caused the differences. Empty if there is none."""

    @property
    def name(self) -> str:
        """The name of the family, on the terminal and in a file of known differences."""
        return f"{' '.join(filter(None, (self.kind, self.subject)))}: {self.says}"

    @property
    def example(self) -> Difference:
        return self.members[0]

    @property
    def count(self) -> int:
        return len(self.exchanges)

    @property
    def decides(self) -> bool:
        """True if the sides count as different because of this family."""
        return self.gravity is not Gravity.REMARKS and not self.by_chance and not self.known

    @property
    def harmless(self) -> bool:
        """True if clients usually ignore it: an additional field of B, or another message of an error."""
        if self.kind == "field":
            return self.says == "only in B"
        return self.kind == "value" and self.gravity is Gravity.ERRORS

    @property
    def rank(self) -> tuple[int, bool, bool, bool, int, str]:
        """The order of families: by subject, then those that harm most, then the most frequent."""
        return _ORDER[self.gravity], self.by_chance, not self.leak, self.harmless, -self.count, self.name


@dataclass
class Contradictions:
    """Finds requests to which one side gave different answers."""

    answers: Sequence[Answer]
    _found: dict[tuple[str, Gravity], bool] = field(default_factory=dict)

    @cached_property
    def _by_key(self) -> Mapping[str, list[Answer]]:
        grouped: dict[str, list[Answer]] = defaultdict(list)
        for answer in self.answers:
            if answer.asked.key and completed(answer):
                grouped[answer.asked.key].append(answer)
        return grouped

    @cached_property
    def _by_scenario(self) -> Mapping[str, frozenset[str]]:
        keys: dict[str, set[str]] = defaultdict(set)
        for answer in self.answers:
            if answer.asked.key:
                keys[answer.exchange.scenario].add(answer.asked.key)
        return {scenario: frozenset(found) for scenario, found in keys.items()}

    def answers_elsewhere(self, key: str) -> bool:
        """True if a request with this key was answered in any exchange."""
        return bool(self._by_key.get(key))

    def within(self, key: str, gravity: Gravity) -> bool:
        """True if answers to equal requests differ in a subject, with or without streaming."""
        if (key, gravity) not in self._found:
            groups = _alike(self._by_key.get(key, ()), _asked_for)
            self._found[key, gravity] = any(_differ(group, gravity) for group in groups)
        return self._found[key, gravity]

    def repeated(self, scenario: str, gravity: Gravity) -> bool:
        """True if a request of a scenario got different answers although it was sent in the same way
        (streaming, interval).
        """
        keys = self._by_scenario.get(scenario, ())
        return any(
            _differ(group, gravity)
            for key in keys
            for group in _alike(self._by_key.get(key, ()), lambda answer: (_asked_for(answer), _form(answer)))
        )


def _asked_for(answer: Answer) -> Any:
    """Return a key that is equal for requests that enable the same outputs."""
    asked = answer.asked
    logprobs = asked.logprobs, asked.logprob_start, asked.top_logprobs, asked.chosen_ids, asked.uniform
    return answer.dialect, logprobs, asked.return_prompt_token_ids, asked.return_meta_info


def _form(answer: Answer) -> Any:
    return answer.asked.stream, answer.asked.stream_interval


def _alike(answers: Iterable[Answer], known_by: Callable[[Answer], Any]) -> Iterable[list[Answer]]:
    groups: dict[Any, list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[known_by(answer)].append(answer)
    return [group for group in groups.values() if len(group) > 1]


def _differ(group: Sequence[Answer], gravity: Gravity) -> bool:
    first, *others = (aspects(answer.load(), gravity) for answer in group)
    return any(
        not alike(first[name], other[name]) for other in others for name in first.keys() & other.keys()
    )


def families(
    found: Iterable[Difference], sides: tuple[Contradictions, Contradictions], scenarios: Mapping[str, str]
) -> list[Family]:
    """Group differences into families, the most serious first. `scenarios`: the scenario of each exchange."""
    groups: dict[tuple[Any, ...], list[Difference]] = defaultdict(list)
    for difference in found:
        groups[difference.gravity, *difference.family].append(difference)
    made = []
    for group in groups.values():
        first = group[0]
        at = Counter({difference.exchange: difference.dialect for difference in group}.values())
        family = Family(
            first.gravity,
            *first.family,
            dict(at.most_common()),
            tuple(dict.fromkeys(difference.exchange for difference in group)),
            tuple(group),
        )
        made.append(replace(family, by_chance=_by_chance(group, sides, scenarios)))
    return sorted(made, key=lambda family: family.rank)


def _by_chance(
    group: Sequence[Difference],
    sides: tuple[Contradictions, Contradictions],
    scenarios: Mapping[str, str],
) -> bool:
    """True if chance explains all differences of a family, which must be few.

    For each request, both sides must have given different answers to the same request. It is sufficient if
    one side did so in this scenario for a request that was sent in the same way. A connection that ended
    without an answer is chance if the same request was answered elsewhere.
    """
    if group[0].kind == "status" and NO_ANSWER in group[0].says:
        return all(side.answers_elsewhere(difference.key) for difference in group for side in sides)
    if group[0].gravity in {
        Gravity.SERVED,
        Gravity.REFUSED_A,
        Gravity.REFUSED_B,
        Gravity.REMARKS,
        Gravity.ERRORS,
        Gravity.PROMPT,
    }:
        return False
    if len({difference.key for difference in group}) >= SURELY_SEEN_IN:
        return False
    return all(
        all(side.within(difference.key, difference.gravity) for side in sides)
        or any(side.repeated(scenarios[difference.exchange], difference.gravity) for side in sides)
        for difference in group
    )
