"""Exploration (`--explore`): hypothesis generates requests, each answer is judged at once, and failing
requests are shrunk.

The requests are recorded and count towards the limits of the run, like those of scenarios.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from tokenwire.ask import Ask
from tokenwire.asking.scenario import Conversation, Transcript
from tokenwire.dialects.dialect import Unsupported
from tokenwire.judging.judge import violated_by
from tokenwire.judging.run import Run
from tokenwire.record import Stream
from tokenwire.report.subject import EXPLORATION
from tokenwire.usage_error import UsageError

_SMALLER_AT_MOST = 300
"""The most extra requests that shrink failing requests."""


def demand_hypothesis() -> None:
    """Check that hypothesis is installed. Raises UsageError if it is not."""
    if find_spec("hypothesis") is None:
        raise UsageError("--explore needs a package: pip install hypothesis")


class _Violated(Exception):  # noqa: N818  # what hypothesis makes smaller
    """An answer violates a requirement.

    Each requirement gets its own subclass, so that hypothesis shrinks the failures of each requirement
    separately.
    """


@dataclass(frozen=True)
class _Found:
    """The smallest request so far that violates a requirement, with its answer."""

    talk: Conversation
    ask: Ask
    answer: Stream
    size: tuple[int, str]
    """Sort key: the length of the request as JSON, then the JSON itself."""


@dataclass
class Exploration:
    """One exploration: the requests sent so far, and the smallest failing request for each requirement."""

    talks: Sequence[Conversation]
    """A conversation for each dialect. Its transcript collects the answers."""
    run: Run
    """The answers of the run before the exploration.

    These answers show the target's capabilities, and provide stop strings.
    """
    requests: int
    seed: int
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    """Ids of the requirements that the answer violates, by the JSON of the request."""
    _found: dict[str, _Found] = field(default_factory=dict, init=False)
    _asked: int = field(default=0, init=False)
    _trouble: Exception | None = field(default=None, init=False)

    async def explore(self) -> tuple[str, ...]:
        """Generate requests, judge the answers, and shrink failing requests; return remarks for the report.

        The report contains only the smallest failing requests. Raises any exception of the sender.
        """
        try:
            await asyncio.to_thread(self._search, asyncio.get_running_loop())
            if self._trouble is not None:
                raise self._trouble
            searched = f"exploration: {self._asked} requests, {len(self._found)} requirements violated"
            return (searched, *[await self._asked_again(name, found) for name, found in self._found.items()])
        finally:
            smallest = {found.answer.exchange.name: found for found in self._found.values()}
            for found in smallest.values():
                found.talk.transcript.streams.append(found.answer)

    def _search(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run hypothesis. Hypothesis is synchronous, so this method runs in a thread of its own."""
        from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
        from hypothesis import strategies as st

        from tokenwire.asking.request_shapes import shapes

        kinds: dict[str, type[_Violated]] = {}
        drawn = [
            st.tuples(st.just(place), shapes(talk.dialect, self.run)) for place, talk in enumerate(self.talks)
        ]

        @seed(self.seed)
        @settings(
            max_examples=self.requests,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=True,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @given(st.one_of(drawn))
        def holds(shape: tuple[int, Ask]) -> None:
            violated = self._violated(self.talks[shape[0]], shape[1], loop)
            if violated:
                first = violated[0]
                raise kinds.setdefault(first, type(first, (_Violated,), {}))(first)

        try:
            holds()
        except* _Violated:
            pass  # the smallest failing requests are in `_found`

    def _violated(self, talk: Conversation, ask: Ask, loop: asyncio.AbstractEventLoop) -> tuple[str, ...]:
        """Send a request, unless it was sent before; return the ids of the requirements that its answer
        violates.
        """
        request = talk.dialect.render(ask, talk.model)
        if isinstance(request, Unsupported):
            return ()
        key = json.dumps([talk.dialect.name, request.body], sort_keys=True)
        if key not in self._known and self._trouble is None and self._asked < self._most:
            asking = self._ask(talk, ask, str(self._asked))
            try:
                answer = asyncio.run_coroutine_threadsafe(asking, loop).result()
                self._known[key] = () if answer is None else self._judged(talk, ask, answer, (len(key), key))
            # The exception is raised at the end. Here, hypothesis would treat the exception as a violation.
            except Exception as trouble:
                self._trouble = trouble
        return self._known.get(key, ())

    @property
    def _most(self) -> int:
        """Return the maximum number of requests.

        After a request has failed, further requests are allowed to shrink the failing request.
        """
        return self.requests + (_SMALLER_AT_MOST if self._found else 0)

    def _judged(self, talk: Conversation, ask: Ask, answer: Stream, size: tuple[int, str]) -> tuple[str, ...]:
        """Judge an answer; return the ids of the requirements that it violates.

        An answer without violations is added to the run.
        """
        violated = violated_by(answer, self.run)
        for name in violated:
            if name not in self._found or size < self._found[name].size:
                self._found[name] = _Found(talk, ask, answer, size)
        if not violated:
            talk.transcript.streams.append(answer)
        return violated

    async def _ask(self, talk: Conversation, ask: Ask, label: str) -> Stream | None:
        """Send a request and return its answer, without adding it to the run."""
        self._asked += 1
        kept = talk.transcript
        aside = Transcript(not_asked=kept.not_asked, on_answer=kept.on_answer)
        return await replace(talk, scenario=EXPLORATION, transcript=aside).ask(label, ask)

    async def _asked_again(self, name: str, found: _Found) -> str:
        """Send the smallest failing request again, and describe whether it still fails."""
        answer = await self._ask(found.talk, found.ask, f"again-{name}")
        words = f"exploration: {name}: the smallest request that violates it is {found.answer.exchange.name}"
        if answer is None:
            return words
        found.talk.transcript.streams.append(answer)
        again = name in violated_by(answer, self.run)
        return (
            f"{words}; asked again, it {'does so again' if again else 'does not: the target is not steady'}"
        )
