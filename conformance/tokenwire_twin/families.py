"""Families of differences: what one cause does to many answers, counted and ordered by gravity."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tokenwire.record import Answer
from tokenwire.target.alike import alike
from tokenwire.target.determinism import completed
from tokenwire_twin.answers import NO_ANSWER, Difference, Gravity, aspects

SURELY_SEEN_IN = 5
"""The number of requests with a difference from which one side does not show it by chance."""
_ORDER = {gravity: position for position, gravity in enumerate(Gravity)}


@dataclass(frozen=True)
class Family:
    """Differences of one kind, in all answers that show them."""

    gravity: Gravity
    kind: str
    subject: str
    says: str
    at: Mapping[str, int]
    """The number of exchanges that show it, by dialect."""
    exchanges: tuple[str, ...]
    members: tuple[Difference, ...]
    by_chance: bool = False
    """Both sides contradict themselves in these few requests, so that chance explains it."""
    known: str = ""
    """The reason why it is known, with its link; empty otherwise."""
    asked: str = ""
    """What all of its requests ask for, and no other request does; empty if that is not clear."""
    leak: str = ""
    """The evidence that it is the result of another request; empty without any."""

    @property
    def name(self) -> str:
        """Its name in a file of known differences, and on the terminal."""
        return f"{' '.join(filter(None, (self.kind, self.subject)))}: {self.says}"

    @property
    def example(self) -> Difference:
        return self.members[0]

    @property
    def count(self) -> int:
        return len(self.exchanges)

    @property
    def decides(self) -> bool:
        """True if it makes the sides different."""
        return self.gravity is not Gravity.REMARKS and not self.by_chance and not self.known

    @property
    def rank(self) -> tuple[int, bool, bool, int, str]:
        return _ORDER[self.gravity], self.by_chance, not self.leak, -self.count, self.name


@dataclass
class Contradictions:
    """The requests that one side answered in two ways, as far as it was asked."""

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
        """True if a request was answered in any exchange."""
        return bool(self._by_key.get(key))

    def within(self, key: str, gravity: Gravity) -> bool:
        """True if answers to one request differ in a subject, however they were delivered."""
        if (key, gravity) not in self._found:
            groups = _alike(self._by_key.get(key, ()), _asked_for)
            self._found[key, gravity] = any(_differ(group, gravity) for group in groups)
        return self._found[key, gravity]

    def repeated(self, scenario: str, gravity: Gravity) -> bool:
        """True if a request of a scenario was answered in two ways in one form of delivery."""
        keys = self._by_scenario.get(scenario, ())
        return any(
            _differ(group, gravity)
            for key in keys
            for group in _alike(self._by_key.get(key, ()), lambda answer: (_asked_for(answer), _form(answer)))
        )


def _asked_for(answer: Answer) -> Any:
    """Return a key, equal for requests that ask for the same parts of an answer."""
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
    """Group differences, the gravest families first. `scenarios`: of each exchange."""
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
    """True if a family shows in few requests, and chance explains each of them: both sides answered the
    request in two ways, or one of them did so in one form of delivery, in this scenario. A connection that
    ended without an answer is chance where the same request was answered elsewhere.
    """
    if group[0].kind == "status" and NO_ANSWER in group[0].says:
        return all(side.answers_elsewhere(difference.key) for difference in group for side in sides)
    if group[0].gravity in {Gravity.SERVED, Gravity.REMARKS, Gravity.ERRORS, Gravity.PROMPT}:
        return False
    if len({difference.key for difference in group}) >= SURELY_SEEN_IN:
        return False
    return all(
        all(side.within(difference.key, difference.gravity) for side in sides)
        or any(side.repeated(scenarios[difference.exchange], difference.gravity) for side in sides)
        for difference in group
    )
