"""Reasons why a requirement was not judged.

Each reason counts the answers to which the requirement applies, as a funnel. The funnel counts the exchanges
that requested the requirement's subject. Then it counts how many of them were answered, undisturbed and
comparable. The reason names the stage at which no answer is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from tokenwire.checks.check import CHECKS
from tokenwire.checks.evidence import Observation, expect
from tokenwire.judging.asked_by import asked_by
from tokenwire.judging.observing import may_observe, pairs_for
from tokenwire.judging.run import Run, has_record
from tokenwire.judging.tally import LeftOut, Tally, TallyBuilder
from tokenwire.judging.verdict import VIOLATED, Verdict
from tokenwire.record import Answer, Place
from tokenwire.requirement import Requirement
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.target.capability import Capability
from tokenwire.target.cuts import CUT
from tokenwire.target.tokenizer import HOW_TO_ENABLE, WAY_OUT

WHOLE_RUN = "the whole run"
"""The exchange name of a violation that is not in a single exchange."""

_MIRROR = (
    "start the server with a sampler that mirrors each sampled id into customized_info, "
    "for example `tokenwire-reference serve --sampling-backend mirror`"
)
_INSTRUMENTS = {
    CUT: "put the proxy `tokenwire cut` between the gateway and its worker, and name it with --worker URL",
    "retractions": "let the server preempt requests, by a small KV cache or a test hook, "
    "for example `tokenwire-reference serve --test-retract-interval 3`",
    "media": "serve a model that takes images, "
    "for example `tokenwire-reference serve --model builtin:tiny-mm`",
}
"""Instructions to show a capability that needs no mirror sampler, such as flags of the server."""
SILENT_WORKER = "the worker that --worker names gave no answer to compare with; check that it runs"
NO_WORKER = "no worker was named to compare with; name the server behind this one with --worker URL"

_ACROSS_TARGETS = "across-targets"
_OF_BAD_REQUESTS = ("refusal", "side-effect")
"""Oracles of requirements about bad requests and their effects."""
_OF_RESULTS = "results"
"""The chapter about endpoints with results, such as embeddings."""
_MOST_NAMED = 3


@cache
def scenarios_for() -> Mapping[str, tuple[str, ...]]:
    """Return the scenarios that show each requirement, by its id. Empty if most scenarios show it."""
    table: dict[str, list[str]] = read_yaml(spec_root() / "scenarios.yaml")
    return {name: tuple(scenarios) for name, scenarios in table.items()}


def unasked(capability: str, run: Run) -> str:
    """Explain why a run cannot show a capability. Empty if it can.

    The reason is that no request enabled the capability, although an endpoint that answers supports it.
    """
    row = asked_by().get(capability)
    if row is None or capability in run.capabilities_asked:
        return ""
    generating = (
        dialect for dialect in run.dialects_answered.values() if dialect and not dialect.gives_results
    )
    able = any(map(row.can_be_asked, generating))
    return f"no request asked for {capability}: add --scenario {row.scenario}" if able else ""


def generates_nothing(requirement: Requirement, run: Run) -> str:
    """Explain why a requirement on generated text does not apply to a server that generates no text. Empty if
    it applies.
    """
    answered = run.dialects_answered
    asked = requirement.chapter == _OF_RESULTS or bool(
        set(scenarios_for().get(requirement.id, ())) & set(run.scenarios)
    )
    gives_text = not all(dialect is not None and dialect.gives_results for dialect in answered.values())
    if asked or not answered or gives_text:
        return ""
    return f"the target generates no text: its endpoints give results ({_named(sorted(answered))})"


class _Stage(NamedTuple):
    """A stage of the funnel: its description, the number of answers left, and their unit."""

    words: str
    size: int
    unit: str = "answers"


class _Funnel(NamedTuple):
    """The number of a run's answers that are left at each stage, for one requirement."""

    stages: tuple[_Stage, ...]
    """The stages, beginning with the exchanges that requested the subject.

    One answer may be in several pairs, so numbers decrease only between stages with the same unit.
    """
    left_out: tuple[LeftOut, ...] = ()
    """Answers that passed all stages but were not judged, with reasons."""
    witnesses: int = 0
    """The number of witnesses, which is too low."""

    def words(self, condition: str | None) -> str:
        """Describe the funnel up to the stage at which no answer is left."""
        counts = [stage.size for stage in self.stages]
        end = counts.index(0) + 1 if 0 in counts else len(counts)
        alike = groupby(self.stages[:end], key=itemgetter(1, 2))
        passed = ", ".join(
            f"{count} {' and '.join(stage.words for stage in stages)}" for (count, _), stages in alike
        )
        if self.left_out:
            reasons = (
                f"{some.times} skipped: {some.reason} (first in {some.exchange})" for some in self.left_out
            )
            return f"{passed}; {_named(reasons)}"
        if 0 in counts:
            return passed
        if condition:
            return (
                f"{passed}; in them it did not happen {'more often ' * bool(self.witnesses)}that {condition}"
            )
        return f"{passed}; {'too few are' if self.witnesses else 'none is'} relevant to the requirement"


def _named(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return ", ".join(known[:_MOST_NAMED]) + more


def _funnel(requirement: Requirement, run: Run, tallies: Mapping[str, Tally]) -> _Funnel:
    """Count the answers of a run that are left at each stage, for one requirement."""
    scenarios = scenarios_for().get(requirement.id, ())
    every, asked = TallyBuilder(), TallyBuilder()
    for scenario, seen in tallies.items():
        every.add(seen)
        # Skipped answers of other scenarios do not explain a lack of witnesses in this requirement's
        # scenarios.
        if not scenarios or scenario in scenarios:
            asked.add(seen)
    return _Funnel(tuple(_stages(requirement, run)), asked.built.left_out, every.built.witnesses)


def _stages(requirement: Requirement, run: Run) -> Iterator[_Stage]:
    check, scenarios = CHECKS[requirement.id], scenarios_for().get(requirement.id, ())
    if requirement.oracle == _ACROSS_TARGETS:
        yield _Stage("pairs of a worker's answer and the gateway's", len(run.pairs_beside), "pairs")
        repeated = sum(pair.repeats for pair in run.pairs_beside)
        yield _Stage("where both servers repeat their answers", repeated, "pairs")
        return

    def asks(stream: Answer) -> bool:
        return not scenarios or stream.exchange.scenario in scenarios

    left = list(filter(asks, run.streams))
    yield _Stage("asked", len(left))
    left = [stream for stream in left if stream.exchange.status is not None]
    yield _Stage("answered", len(left))
    undisturbed = {stream.exchange.name for stream in run.answers if may_observe(requirement, stream, run)}
    left = [stream for stream in left if stream.exchange.name in undisturbed]
    yield _Stage("undisturbed", len(left))
    if check.on_comparison is not None:
        compared = sum(asks(pair.other) for pair in pairs_for(requirement, run))
        yield _Stage("pairs of them for one request", compared, "pairs")
    for words, passes in check.about.stages():
        left = [stream for stream in left if passes(run.traits[stream.exchange.name])]
        yield _Stage(words, len(left))


def not_asked(requirement: Requirement, run: Run) -> str:
    """Describe which scenarios of a requirement have no answer in the run. Empty if all have one.

    A death after the ordinary scenarios explains only missing requirements on bad requests.
    """
    # A gateway's answers that are compared with its worker's are not in `run.streams`, but in pairs.
    answered = {*run.scenarios, *(pair.other.exchange.scenario for pair in run.pairs_beside)}
    scenarios = scenarios_for().get(requirement.id, ())
    missing = [name for name in scenarios if name not in answered]
    died = run.died
    if (
        died is not None
        and (died.early or requirement.oracle in _OF_BAD_REQUESTS)
        and (missing or not scenarios)
    ):
        named = f" ({_named(missing)})" if missing else ""
        return f"the server died of {died.blamed} before this was asked{named}"
    return f"not asked: {_named(missing)}" if missing else ""


def too_little(requirement: Requirement, run: Run, tallies: Mapping[str, Tally]) -> str:
    """Explain why a requirement has too few observations. The tallies are by scenario."""
    counted = _funnel(requirement, run, tallies)
    missing = not_asked(requirement, run)
    if missing and not counted.stages[0][1]:
        return missing
    words = counted.words(requirement.condition)
    not_known, texts = run.texts_not_asked if requirement.oracle == "tokenizer" else (0, 0)
    if not_known:
        words += (
            f"; {not_known} of {texts} texts are unknown, as the server was not asked for them: {WAY_OUT}"
        )
    return f"{words}; {missing}" if missing else words


Reason = str | Callable[[], str]
"""The reason as a text, or as a function that computes it only if it is shown."""
Unjudged = tuple[Verdict, Reason, tuple[Observation, ...]]
"""A verdict without observations, its reason, and its violations."""


def unjudged(requirement: Requirement, run: Run) -> Unjudged | None:
    """Return the verdict on a requirement that does not apply to this server or run. None if it applies."""
    if requirement.excluded:
        return Verdict.NOT_TESTABLE, requirement.excluded, ()
    # A late death cuts off only bad requests, so it does not explain a missing capability.
    cut_off = not_asked(requirement, run) if run.died is not None and run.died.early else ""
    across = requirement.oracle == _ACROSS_TARGETS
    needed = ""
    if across and not run.pairs_beside:
        if not run.worker_asked:
            return Verdict.NOT_TESTABLE, NO_WORKER, ()
        needed = SILENT_WORKER
    elif requirement.oracle == "tokenizer" and run.tokenizer is None:
        needed = HOW_TO_ENABLE
    if needed:
        return (Verdict.INCONCLUSIVE, cut_off, ()) if cut_off else (Verdict.NOT_TESTABLE, needed, ())
    known = run.capabilities_beside if across else run.capabilities
    missing = [known[name] for name in requirement.applies_when if not known[name].present]
    if not missing:
        return None
    instrumented = requirement.contract == "instrumented"
    if cut_off and not instrumented:
        return Verdict.INCONCLUSIVE, cut_off, ()
    # A declared capability that no answer shows is a violation. Otherwise a server would pass by showing
    # nothing.
    promised = next((capability for capability in missing if capability.declared), None)
    if promised is not None:
        broken = _broken_promise(promised)
        return VIOLATED[requirement.level], broken.message, (broken,)
    if not (instrumented or across) and (
        why := next(filter(None, (unasked(name.name, run) for name in missing)), "")
    ):
        return Verdict.INCONCLUSIVE, why, ()
    words = "; ".join(f"{capability.name}: {capability.established}" for capability in missing)
    if instrumented:
        return Verdict.NOT_TESTABLE, f"{words}; {_INSTRUMENTS.get(missing[0].name, _MIRROR)}", ()
    # The reason is a function, so that answers are counted only if the reason is shown. The counting took an
    # eighth of the time of `watch` and `inspect`.
    return Verdict.UNSUPPORTED, lambda: f"{words} ({_searched(requirement, run)})", ()


def _searched(requirement: Requirement, run: Run) -> str:
    """Describe how many answers were searched without finding a requirement's subject."""
    counts = f"{sum(map(has_record, run.answers))} answers"
    return "; ".join(filter(None, (counts, not_asked(requirement, run), run.honesty.caveat)))


def _broken_promise(capability: Capability) -> Observation:
    """Return the violation of a capability that is declared but not shown.

    This is a violation, because the requirements on the capability cannot be judged.
    """
    message = f"{capability.name} is declared, but {capability.established}"
    expected = f"{capability.name}, as declared"
    # All violations about one missing capability have the same place, so that they have one cause.
    place = Place(WHOLE_RUN, pointer=f"/{capability.name}")
    return expect(place, expected, capability.established, message, holds=False)
