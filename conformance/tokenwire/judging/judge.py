"""The judge: from all streams of one run to verdicts. Pure; nothing here knows where the streams came from.

The unit of a verdict is a requirement in a scenario. A PASS needs the witnesses that the requirement asks for
over the whole run; an observation that a condition occurred is no witness.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

from tokenwire.checks.about import Traits, traits_of
from tokenwire.checks.check import CHECKS, Answers, RunCheck, StreamCheck, Target
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.deeds import Deeds, disturbed
from tokenwire.checks.reading.refusals import suspicion
from tokenwire.dialects.control import ControlCall
from tokenwire.dialects.dialect import family_of, is_chat, load_dialects, vocabulary_told
from tokenwire.dialects.markup import Markup
from tokenwire.judging.collector import few_collections
from tokenwire.judging.tally import NOTHING, Growing, Tally, tally
from tokenwire.judging.verdict import SEVERITY, Verdict
from tokenwire.parrot.recognition import KnownModel, recognised
from tokenwire.processes import shared_out, together
from tokenwire.record import Answer, Place, Stream, fact
from tokenwire.requirement import Level, Requirement, load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import Capability, capabilities, shows
from tokenwire.target.death import Death, clouded, deaths
from tokenwire.target.determinism import (
    AnswerPair,
    Determinism,
    Doubt,
    comparisons,
    determinism,
    doubt,
    rarer_than,
)
from tokenwire.target.honesty import Honesty, honesty
from tokenwire.target.tokenizer import HOW_TO_ENABLE, LocalTokenizer, Tokenizer

NO_SCENARIO = "-"
"""Stands for the scenario of a requirement that no exchange of the run says anything about."""
WHOLE_RUN = "the whole run"
"""Stands for the exchange of a violation that lies in no single one."""

INSTRUMENTED = (
    "start the server with a sampler that mirrors each sampled id into customized_info, "
    "for example `tokenwire-reference serve --sampling-backend mirror`"
)
_INSTRUMENTS = {
    "retractions": "let the server preempt requests, by a small KV cache or a test hook, "
    "for example `tokenwire-reference serve --test-retract-interval 3`",
    "media": "serve a model that takes images, "
    "for example `tokenwire-reference serve --model builtin:tiny-mm`",
}
"""How to start a server that shows a capability, where it is not the mirror sampler."""
SILENT_WORKER = "the worker that --worker names gave no answer to compare with; see that it runs"
NO_WORKER = "no worker was named to compare with; name the server behind this one with --worker URL"

_OK = 200
_ACROSS_TARGETS = "across-targets"
_TOKENIZER = "tokenizer"
_REFUSAL = "refusal"
_OF_BAD_REQUESTS = (_REFUSAL, "side-effect")
"""Oracles of requirements that look at requests which are to be refused, or at what these do."""
_MOST_NAMED = 3
_TOGETHER = 16
"""So many pairs of answers, or observations, are looked at before what was seen of them is put together."""
_LARGE = 4 << 20
"""So many bytes of answers are."""
_BY_CHANCE = "a run with --budget soak or a higher --max-concurrency asks for more"
_VIOLATED = {Level.MUST: Verdict.FAIL, Level.SHOULD: Verdict.WARN, Level.MAY: Verdict.INFO}
_GRAVEST_FIRST = list(_VIOLATED)
_NO_CHANCE = 0.01
"""Differences that chance brings about less often are violations of their row."""


@dataclass(frozen=True)
class Run:
    """Everything that one server, started in one way, wrote."""

    streams: tuple[Answer, ...]
    advertised: Advertised = field(default_factory=Advertised)
    name: str = ""
    """The capture's file, where several are judged together; empty for a live run."""
    tokenizer: Tokenizer | None = None
    """What text is held against its ids by."""
    declared: frozenset[str] = frozenset()
    """Capabilities that the user says the target has."""
    calls: tuple[ControlCall, ...] = ()
    """What was asked of control endpoints beside the streams."""
    beside: tuple[AnswerPair, ...] = ()
    """Where the target is a gateway whose worker was asked too: the worker's answers, and the gateway's."""
    worker_asked: bool = False
    """A worker was named, whatever it answered."""
    tool_calls: str = ""
    """The form in which the model writes tool calls, where that is known beforehand."""
    unasked: tuple[str, ...] = ()
    """The scenarios of a standard run that this one left out; none where that is not known."""

    @cached_property
    def deaths(self) -> tuple[Death, ...]:
        """The ends of the server, each with the request that it most likely died of."""
        through_the_gateway = (pair.other for pair in self.beside)
        return deaths((*self.streams, *through_the_gateway), self._suspicion)

    @cached_property
    def clouded(self) -> frozenset[str]:
        """The bad requests that failed as the good ones behind them did: that is no refusal, nor the lack of
        one.
        """
        return clouded(self.heard, self._suspicion)

    def _suspicion(self, stream: Answer) -> int:
        return suspicion(stream, Target(advertised=self.advertised))

    @cached_property
    def died(self) -> Death | None:
        """The end of the server that ended the run, too."""
        return next((death for death in self.deaths if death.final), None)

    @cached_property
    def heard(self) -> Answers:
        """The streams that are judged: all but those that a death of the server cut off."""
        cut = frozenset().union(*(death.cut for death in self.deaths))
        return Answers(stream for stream in self.streams if stream.exchange.name not in cut)

    @cached_property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios of the streams that are judged, in their order."""
        return tuple(dict.fromkeys(stream.exchange.scenario for stream in self.heard))

    @cached_property
    def pairs_beside(self) -> tuple[AnswerPair, ...]:
        """The answers of worker and gateway that are compared: neither server was dead."""
        cut = frozenset().union(*(death.cut for death in self.deaths))
        return tuple(
            pair
            for pair in self.beside
            if pair.baseline.exchange.status is not None and pair.other.exchange.name not in cut
        )

    @cached_property
    def capabilities(self) -> dict[str, Capability]:
        return capabilities(self.heard, self.advertised, self.declared, self.calls, self.model)

    @cached_property
    def model(self) -> KnownModel | None:
        """The model behind the answers, where it is one whose right answers are known."""
        other = self.tokenizer.known if isinstance(self.tokenizer, LocalTokenizer) else None
        return recognised(self.heard, other)

    @cached_property
    def capabilities_beside(self) -> dict[str, Capability]:
        """What either of a gateway and its worker shows, where both were asked the same."""
        both = [stream for pair in self.beside for stream in (pair.baseline, pair.other)]
        return capabilities(both, self.advertised, self.declared)

    @cached_property
    def markup(self) -> Markup:
        """What the parsers of the target take out of text."""
        from tokenwire.checks.reading.channels import seen_markup

        return seen_markup(self.heard, self.tokenizer, self.tool_calls)

    @cached_property
    def honesty(self) -> Honesty:
        return honesty(self.heard)

    @cached_property
    def determinism(self) -> Determinism:
        return determinism(self.heard, disturbed(self.heard, Deeds(self.calls, self.deaths)))

    @cached_property
    def seen(self) -> tuple[Determinism, ...]:
        """What was seen to be repeated: by the target, and by the worker and its gateway."""
        return (
            self.determinism,
            determinism(pair.baseline for pair in self.beside),
            determinism(pair.other for pair in self.beside),
        )

    def doubt(self, difference: Observation) -> Doubt | None:
        """Why a difference is no violation in itself; None where it is one."""
        if not difference.by_chance:
            return None
        places = (difference.place, *difference.related)
        names = {place.exchange: None for place in places if place.exchange in self.by_exchange}
        return doubt(names, self.seen)

    @cached_property
    def comparisons(self) -> list[AnswerPair]:
        return comparisons(self.heard, self.determinism)

    @cached_property
    def empty_answers(self) -> frozenset[str]:
        """The exchanges that were answered with 200 and say nothing: no id, no text, no finish, no error."""
        every = self.by_exchange.values()
        return frozenset(
            stream.exchange.name
            for stream in every
            if stream.exchange.status == _OK and stream.error is None and not has_record(stream)
        )

    @cached_property
    def by_exchange(self) -> dict[str, Answer]:
        """The streams by the names of their exchanges."""
        both = [stream for pair in self.beside for stream in (pair.baseline, pair.other)]
        return {stream.exchange.name: stream for stream in (*self.streams, *both)}

    @cached_property
    def flags(self) -> frozenset[str]:
        """The flags that the server is known to have been started with."""
        return frozenset(flag for stream in self.streams for flag in stream.exchange.server.flags)

    @cached_property
    def tells_prompt_ids(self) -> bool:
        """Whether any answer carries prompt_token_ids."""
        return any(map(shows("prompt-token-ids"), self.streams))

    @cached_property
    def target(self) -> Target:
        """What checks are told about the target."""
        vocabulary = self.advertised.vocab_size or vocabulary_told(self.streams)
        return Target(
            capabilities=frozenset(name for name, known in self.capabilities.items() if known.present),
            stream_interval=self.advertised.stream_interval,
            advertised_delivery=self.advertised.delivery,
            tito_stream_refused=_refuses_tito_streams(self.streams),
            deaths=self.deaths,
            tokenizer=self.tokenizer,
            model=self.model,
            calls=self.calls,
            advertised=replace(self.advertised, vocab_size=vocabulary),
            repeated=self.determinism.repeated,
            contradicted=self.determinism.contradicted,
            noise=self.determinism.noise,
            markup=self.markup,
        )


@fact(Stream)
def has_record(stream: Stream) -> bool:
    """Whether an answer says anything: an id, a character, or why a choice finished."""
    choices = stream.choices if stream.answered else ()
    return any(
        emission.output_ids or emission.text or (emission.finish and emission.finish.type)
        for choice in choices
        for emission in choice.emissions
    )


def _refuses_tito_streams(streams: Iterable[Answer]) -> bool:
    """Whether the chat dialects of a run refuse token-in-token-out fields in streams, by their own policy."""
    spoken = {stream.dialect for stream in streams if is_chat(stream)}
    return all(one.policy.tito_stream_refused for name, one in load_dialects().items() if name in spoken)


@dataclass(frozen=True)
class Judgement:
    """The verdict on one requirement in one scenario, with its evidence."""

    requirement: Requirement
    scenario: str
    verdict: Verdict
    witnesses: int = 0
    message: str = ""
    """Why, in one clause; empty for a PASS."""
    violations: tuple[Observation, ...] = ()
    """In wire order: the first is the one to show."""
    doubted: tuple[Observation, ...] = ()
    """Differences by chance, between answers that the target was not seen to repeat."""
    witness: Observation | None = None
    """The strongest witness of a PASS, furthest into a stream; None with any other verdict."""
    run: Run = field(default_factory=lambda: Run(()), repr=False, compare=False)
    known: str = ""
    """Why a baseline tolerates the violations; empty where none does."""

    @property
    def name(self) -> str:
        return f"{self.requirement.id}[{self.scenario}]"


class _Part(NamedTuple):
    """A part of what there is to look at in a run: some answers, some pairs of them, or for some
    requirements the run as a whole.
    """

    run: int
    looks: str
    start: int
    stop: int


def _parts(position: int, run: Run, wanted: Sequence[Requirement]) -> Iterator[_Part]:
    """All that the checks of some requirements look at in a run, what takes longest first."""
    paired = any(CHECKS[one.id].on_comparison for one in wanted)
    pairs = max(len(run.comparisons), len(run.pairs_beside)) if paired else 0
    for nth in range(len(wanted)):
        yield _Part(position, "run", nth, nth + 1)
    for start in range(0, pairs, _TOGETHER):
        yield _Part(position, "pairs", start, min(start + _TOGETHER, pairs))
    for some in together(range(len(run.heard)), lambda nth: run.heard[nth].exchange.size, _LARGE):
        yield _Part(position, "streams", some[0], some[-1] + 1)


def _may_see(requirement: Requirement, stream: Answer, run: Run) -> bool:
    """Whether the check of a requirement looks at an answer."""
    return requirement.oracle != _REFUSAL or stream.exchange.name not in run.clouded


def _pairs_for(requirement: Requirement, run: Run) -> Sequence[AnswerPair]:
    """The pairs that a check which compares two answers looks at."""
    return run.pairs_beside if requirement.oracle == _ACROSS_TARGETS else run.comparisons


Look = tuple[str, str, Tally]
"""A requirement, a scenario, and what its check saw there."""


def _look(part: _Part, run: Run, wanted: Sequence[Requirement]) -> Iterator[Look]:
    """Let all checks look at one answer after the other, at pairs of them, or at the run as a whole."""
    match part.looks:
        case "streams":
            heard = run.heard[part.start : part.stop]
            yield from _look_at_streams(heard, run, wanted, start=part.start)
        case "pairs":
            yield from _look_at_pairs(part, run, wanted)
        case _:
            for requirement in wanted[part.start : part.stop]:
                yield from _look_at_run(requirement, run)


def _look_at_streams(
    streams: Iterable[Answer], run: Run, wanted: Iterable[Requirement], *, start: int = 0
) -> Iterator[Look]:
    checks = [(one, CHECKS[one.id]) for one in wanted if CHECKS[one.id].observe is not None]
    by_traits: dict[Traits, list[tuple[Requirement, StreamCheck]]] = {}
    target, empty_answers, clouded = run.target, run.empty_answers, run.clouded
    for position, stream in enumerate(streams, start):
        scenario, whole = stream.exchange.scenario, stream.load()
        traits = traits_of(whole)
        if traits not in by_traits:
            by_traits[traits] = [
                (one, check.observe)
                for one, check in checks
                if check.observe is not None and check.about.admits(traits)
            ]
        is_clouded = stream.exchange.name in clouded
        for requirement, observe in by_traits[traits]:
            if is_clouded and not _may_see(requirement, stream, run):
                continue
            seen = tally(observe, whole, target, position=position, empty_answers=empty_answers)
            if seen is not NOTHING:
                yield requirement.id, scenario, seen


def _look_at_pairs(part: _Part, run: Run, wanted: Sequence[Requirement]) -> Iterator[Look]:
    for pairs in (run.comparisons, run.pairs_beside):
        comparing = [one for one in wanted if _pairs_for(one, run) is pairs]
        for position, pair in enumerate(pairs[part.start : part.stop] if comparing else (), part.start):
            scenario = pair.other.exchange.scenario
            whole = pair.load()
            for requirement in comparing:
                check = CHECKS[requirement.id].on_comparison
                if check is not None:
                    seen = tally(check, whole, run.target, position=position, empty_answers=run.empty_answers)
                    yield requirement.id, scenario, seen


def _look_at_run(requirement: Requirement, run: Run) -> Iterator[Look]:
    check = CHECKS[requirement.id].on_run
    if check is None:
        return
    heard = run.heard
    if run.clouded and requirement.oracle == _REFUSAL:
        heard = Answers(stream for stream in heard if _may_see(requirement, stream, run))
    gathered: dict[str, Growing] = defaultdict(Growing)
    crashed = tally(_gather, check, heard, run, gathered, position=0)
    yield requirement.id, NO_SCENARIO, crashed
    for scenario, seen in gathered.items():
        yield requirement.id, scenario, seen.whole


def _gather(
    check: RunCheck, heard: tuple[Answer, ...], run: Run, into: dict[str, Growing]
) -> Iterator[Observation]:
    """Count what a check sees in a whole run by scenario, a few observations at a time; nothing is left to be
    counted.
    """
    waiting: dict[str, list[Observation]] = defaultdict(list)

    def count(scenario: str, position: int) -> None:
        into[scenario].add(
            tally(iter, waiting.pop(scenario), position=position, empty_answers=run.empty_answers)
        )

    nth = 0
    try:
        for nth, seen in enumerate(check(heard, run.target)):
            source = run.by_exchange.get(seen.place.exchange)
            scenario = source.exchange.scenario if source else NO_SCENARIO
            waiting[scenario].append(seen)
            into[scenario]  # in the order in which they come
            if len(waiting[scenario]) >= _TOGETHER:
                count(scenario, nth)
    finally:
        for scenario in list(waiting):
            count(scenario, nth)
    yield from ()


Sight = dict[str, dict[str, Growing]]
"""What was seen of each requirement, by its id and by scenario."""


def _gathered(looks: Iterable[Look], into: Sight | None = None) -> Sight:
    """What looks saw, put together."""
    sight: Sight = {} if into is None else into
    for requirement, scenario, seen in looks:
        if seen is not NOTHING:
            sight.setdefault(requirement, {}).setdefault(scenario, Growing()).add(seen)
    return sight


def evidence(run: Run, wanted: Sequence[Requirement]) -> Iterator[Look]:
    """What the checks of some requirements see in a run, by requirement and scenario, before any verdict."""
    sight = _gathered(look for part in _parts(0, run, wanted) for look in _look(part, run, wanted))
    for requirement, scenarios in sight.items():
        for scenario, seen in scenarios.items():
            yield requirement, scenario, seen.whole


def _in_order(requirement: Requirement, run: Run, seen: Mapping[str, Growing]) -> dict[str, Tally]:
    """What was seen of a requirement, the scenarios in the order in which the run has them."""
    order: Iterable[str] = seen
    if len(seen) > 1 and CHECKS[requirement.id].on_stream is not None:
        order = run.scenarios
        if requirement.oracle == _REFUSAL:
            order = dict.fromkeys(
                one.exchange.scenario for one in run.heard if _may_see(requirement, one, run)
            )
    elif len(seen) > 1 and CHECKS[requirement.id].on_comparison is not None:
        order = dict.fromkeys(pair.other.exchange.scenario for pair in _pairs_for(requirement, run))
    return {scenario: seen[scenario].whole for scenario in order if scenario in seen}


def _cut_off(requirement: Requirement, run: Run) -> str:
    """Where the server died before a requirement's requests were asked, in words; empty where it did not.

    Once the ordinary scenarios are through, only requests that are to be refused are left.
    """
    died = run.died
    left = died is not None and (died.early or requirement.oracle in _OF_BAD_REQUESTS)
    return f"the server died of {died.name} before this was asked" if died is not None and left else ""


def _unseen(requirement: Requirement, run: Run) -> str:
    """Why nothing was observed, or too little, in words."""
    if cut_off := _cut_off(requirement, run):
        return cut_off
    if requirement.oracle == _ACROSS_TARGETS and not any(pair.repeats for pair in run.pairs_beside):
        return "the worker or the gateway was not seen to repeat itself: they cannot be compared"
    if requirement.condition:
        return f"it did not happen that {requirement.condition}; {_BY_CHANCE}"
    nothing = "no answer of the run holds what this is about"
    if not run.unasked:
        return nothing
    some = ", ".join(run.unasked[:_MOST_NAMED]) + (", …" if len(run.unasked) > _MOST_NAMED else "")
    return f"{nothing}; {len(run.unasked)} scenarios were not asked ({some})"


def _unexamined(requirement: Requirement, run: Run) -> Judgement | None:
    """The verdict on a requirement that does not apply to this target or run; None where it applies."""
    judged = partial(Judgement, requirement, NO_SCENARIO, run=run)
    if requirement.excluded:
        return judged(Verdict.NOT_TESTABLE, message=requirement.excluded)
    early = run.died is not None and run.died.early
    cut_off = judged(Verdict.INCONCLUSIVE, message=_cut_off(requirement, run)) if early else None
    if requirement.oracle == _ACROSS_TARGETS and not run.pairs_beside:
        if not run.worker_asked:
            return judged(Verdict.NOT_TESTABLE, message=NO_WORKER)
        return cut_off or judged(Verdict.NOT_TESTABLE, message=SILENT_WORKER)
    if requirement.oracle == _TOKENIZER and run.tokenizer is None:
        return cut_off or judged(Verdict.NOT_TESTABLE, message=HOW_TO_ENABLE)
    known = run.capabilities_beside if requirement.oracle == _ACROSS_TARGETS else run.capabilities
    missing = [known[name] for name in requirement.applies_when if not known[name].present]
    if not missing:
        return None
    if cut_off is not None and requirement.contract != "instrumented":
        return cut_off
    promised = next((capability for capability in missing if capability.declared), None)
    if promised is not None:
        broken = _broken_promise(promised)
        return judged(_VIOLATED[requirement.level], message=broken.message, violations=(broken,))
    words = "; ".join(f"{capability.name}: {capability.established}" for capability in missing)
    if requirement.contract == "instrumented":
        instrument = _INSTRUMENTS.get(missing[0].name, INSTRUMENTED)
        return judged(Verdict.NOT_TESTABLE, message=f"{words}; {instrument}")
    caveat = run.honesty.caveat
    return judged(Verdict.UNSUPPORTED, message=f"{words} ({caveat})" if caveat else words)


def _broken_promise(capability: Capability) -> Observation:
    """What was declared has to be shown: no requirement on it can be examined otherwise."""
    message = f"{capability.name} is declared, but {capability.established}"
    expected = f"{capability.name}, as declared"
    place = Place(WHOLE_RUN, pointer=f"/{capability.name}")  # what lacks the same has the same cause
    return expect(place, expected, capability.established, message, holds=False)


def _level(requirement: Requirement, answer: Answer | None, violation: Observation) -> Level:
    """How grave a violation is: as its requirement is for the family whose dialect the answer speaks, or less
    where the observation says so. `answer`: that in which it lies; None where it lies in no single one.
    """
    level = requirement.level if answer is None else requirement.level_for(family_of(answer.dialect))
    return max((level, violation.level or level), key=_GRAVEST_FIRST.index)


def _gravest(
    requirement: Requirement, run: Run, violations: Sequence[Observation]
) -> tuple[Observation, ...]:
    """The violations that are as grave as the gravest of them."""
    answers = (run.by_exchange.get(violation.place.exchange) for violation in violations)
    levels = [_level(requirement, *pair) for pair in zip(answers, violations, strict=True)]
    most = min(levels, key=_GRAVEST_FIRST.index, default=None)
    return tuple(one for one, level in zip(violations, levels, strict=True) if level is most)


def _counted(run: Run, tallies: Mapping[str, Tally]) -> Callable[[Observation, Doubt], Observation | Doubt]:
    """How differences are weighed whose whole answers were repeated: by how many answers of the run differ.

    If they are more than chance explains, each is what its row says. If whole answers never differed, it is
    a SHOULD at least: a race that happens once is none the less one.
    """
    every = [
        (one.observation, run.doubt(one.observation)) for seen in tallies.values() for one in seen.differing
    ]
    counted = [seen for seen, why in every if why is not None and why.counted]
    answers = len({seen.place.exchange for seen in counted})
    # An answer is observed several times, ids and text and numbers: their share is that of the answers.
    total = sum(seen.witnesses for seen in tallies.values())
    compared = max(answers, total * answers // max(1, sum(seen.witnesses for seen in counted)))
    repetitions = sum(known.repetitions for known in run.seen)
    contradictions = sum(known.contradictions for known in run.seen)
    rare = rarer_than(_NO_CHANCE, answers, compared, run.seen)
    words = (
        f"{answers} of {compared} answers differ from one that was repeated, and {contradictions} of "
        f"{repetitions} repetitions of whole answers"
    )

    def weigh(seen: Observation, why: Doubt) -> Observation | Doubt:
        if rare:
            return seen._replace(message=f"{seen.message}; {words}")
        if contradictions:
            return Doubt(f"{why.reason}; {words}")
        return seen._replace(level=Level.SHOULD, message=f"{seen.message}; {words}")

    return weigh


def _weigh(requirement: Requirement, run: Run, tallies: Mapping[str, Tally]) -> Iterator[Judgement]:
    """Turn what was seen into one verdict for each scenario."""
    total = sum(seen.witnesses for seen in tallies.values())
    answered = any(map(has_record, run.streams))
    by_count: Callable[[Observation, Doubt], Observation | Doubt] | None = None
    for scenario, seen in tallies.items():
        violations, doubted, doubts = [], [], []
        for difference in (one.observation for one in seen.differing):
            why = run.doubt(difference)
            weighed: Observation | Doubt = why or difference
            if why is not None and why.counted:
                by_count = by_count or _counted(run, tallies)
                weighed = by_count(difference, why)
            if isinstance(weighed, Doubt):
                doubted.append(difference)
                doubts.append(weighed.reason)
            else:
                violations.append(weighed)
        gravest = _gravest(requirement, run, violations)
        judged = partial(
            Judgement,
            requirement,
            scenario,
            witnesses=seen.witnesses,
            violations=gravest,
            doubted=tuple(doubted),
            run=run,
        )
        if seen.crash is not None:
            yield judged(Verdict.HARNESS_ERROR, message=seen.crash[1])
        elif gravest:
            answer = run.by_exchange.get(gravest[0].place.exchange)
            verdict = _VIOLATED[_level(requirement, answer, gravest[0])]
            yield judged(verdict, message=gravest[0].message)
        elif doubted:
            yield judged(Verdict.INCONCLUSIVE, message=doubts[0])
        elif not answered:
            yield judged(Verdict.INCONCLUSIVE, message="no request of the run was answered by a record")
        elif total < requirement.witnesses:
            few = f"{total} of the {requirement.witnesses} witnesses that a PASS needs"
            why_few = _cut_off(requirement, run) if total else _unseen(requirement, run)
            yield judged(Verdict.INCONCLUSIVE, message=f"{few}; {why_few}" if why_few else few)
        else:
            yield judged(Verdict.PASS, witness=seen.furthest.observation if seen.furthest else None)


def _judged_at_once(requirement: Requirement, run: Run) -> Judgement | None:
    """The verdict on a requirement whose check need not look; None where it has to."""
    if (unexamined := _unexamined(requirement, run)) is not None:
        return unexamined
    if requirement.id not in CHECKS:
        message = "no check is registered"
        return Judgement(requirement, NO_SCENARIO, Verdict.HARNESS_ERROR, message=message, run=run)
    return None


def _weighed(requirement: Requirement, run: Run, seen: Mapping[str, Growing]) -> list[Judgement]:
    """The verdicts on a requirement whose check has looked."""
    if not seen:
        message = _unseen(requirement, run)
        return [Judgement(requirement, NO_SCENARIO, Verdict.INCONCLUSIVE, message=message, run=run)]
    return list(_weigh(requirement, run, _in_order(requirement, run, seen)))


def judge_requirement(requirement: Requirement, run: Run) -> list[Judgement]:
    """The verdicts on one requirement; at least one, under `NO_SCENARIO` where nothing was seen."""
    (judged,) = _judge_runs([run], [requirement], 1, _unheeded)[0]
    return judged


def violated_by(answer: Stream, run: Run) -> tuple[str, ...]:
    """The ids of the MUSTs that one more answer of a run's target violates by itself.

    Those whose check raises on it are among them. Only checks that look at one answer can tell; what they are
    told of the target is what the run showed.
    """
    rows = [one for one in load_requirements().values() if one.level is Level.MUST and one.id in CHECKS]
    violated = []
    for requirement in rows:
        if CHECKS[requirement.id].on_stream is None or _unexamined(requirement, run) is not None:
            continue
        seen = [tallied for _, _, tallied in _look_at_streams([answer], run, [requirement])]
        broken = [one.observation for tallied in seen for one in tallied.differing]
        crashed = any(tallied.crash for tallied in seen)
        if crashed or any(_level(requirement, answer, one) is Level.MUST for one in broken):
            violated.append(requirement.id)
    return tuple(violated)


Done = Callable[[int, str], object]
"""Told how many answers and requirements more were looked at, and the name of the last one."""


def _unheeded(_count: int, _words: str) -> None:
    pass


def judge(
    runs: Sequence[Run],
    requirements: Iterable[Requirement] | None = None,
    *,
    jobs: int = 1,
    on_done: Done = _unheeded,
) -> list[Judgement]:
    """The verdicts on all requirements, or on some, in the order of the specification.

    Each run is judged by itself. A requirement of which a run says nothing is told only where all are silent.
    So many processes share the answers; the verdicts are the same. Where a system cannot fork, there is one.
    Raises BrokenProcessPool where one of them was killed.
    """
    wanted = list(load_requirements().values() if requirements is None else requirements)
    return put_together(judge_apart(runs, wanted, jobs=jobs, on_done=on_done))


Apart = Sequence[Sequence[Sequence[Judgement]]]
"""The verdicts of each run on each requirement."""


def judge_apart(
    runs: Sequence[Run], wanted: Sequence[Requirement], *, jobs: int = 1, on_done: Done = _unheeded
) -> Apart:
    """As `judge`, before the runs are put together."""
    with few_collections():
        return _judge_runs(runs, wanted, jobs, on_done)


def put_together(judged: Apart) -> list[Judgement]:
    """What all runs tell, requirement by requirement."""
    return [judgement for own in zip(*judged, strict=True) for judgement in _everywhere(own)]


def _judge_runs(
    runs: Sequence[Run], wanted: Sequence[Requirement], jobs: int, on_done: Done
) -> list[list[list[Judgement]]]:
    at_once = [[_judged_at_once(one, run) for one in wanted] for run in runs]
    left = [[one for one, known in zip(wanted, own, strict=True) if known is None] for own in at_once]
    work = _Work(tuple(runs), tuple(map(tuple, left)))
    sights: list[Sight] = [{} for _ in runs]
    on_done(sum(len(wanted) - len(own) for own in left), "")
    for run in runs if jobs > 1 else ():
        _prepare(run)
    parts = list(work.parts())
    for part, looks in zip(parts, shared_out(work.seen, parts, jobs), strict=True):
        _gathered(looks, sights[part.run])
        on_done(*work.progress(part))
    return [
        [
            _weighed(one, run, sight.get(one.id, {})) if known is None else [known]
            for one, known in zip(wanted, own, strict=True)
        ]
        for run, own, sight in zip(runs, at_once, sights, strict=True)
    ]


@dataclass(frozen=True)
class _Work:
    """Runs, and for each the requirements whose checks have to look at it."""

    runs: tuple[Run, ...]
    wanted: tuple[tuple[Requirement, ...], ...]

    def parts(self) -> Iterator[_Part]:
        for position, (run, wanted) in enumerate(zip(self.runs, self.wanted, strict=True)):
            yield from _parts(position, run, wanted)

    def seen(self, part: _Part) -> list[Look]:
        """What checks see in a part, put together."""
        sight = _gathered(_look(part, self.runs[part.run], self.wanted[part.run]))
        return [(name, scenario, seen.whole) for name, own in sight.items() for scenario, seen in own.items()]

    def progress(self, part: _Part) -> tuple[int, str]:
        """How many answers and requirements a part is, and the last one's name."""
        if part.looks == "run":
            return part.stop - part.start, self.wanted[part.run][part.stop - 1].id
        if part.looks == "pairs":
            return 0, "pairs of answers"
        return part.stop - part.start, self.runs[part.run].heard[part.stop - 1].exchange.name


def _prepare(run: Run) -> None:
    """Find out once what every process would find out for itself."""
    for known in ("target", "clouded", "empty_answers", "honesty", "comparisons", "capabilities_beside"):
        getattr(run, known)


def _everywhere(judged: Sequence[Sequence[Judgement]]) -> list[Judgement]:
    """What all runs tell of a requirement; one verdict, the most severe, where none tells anything."""
    every = [judgement for own in judged for judgement in own]
    telling = [
        judgement
        for judgement in every
        if judgement.scenario != NO_SCENARIO
        or judgement.witnesses
        or judgement.violations
        or judgement.verdict is Verdict.HARNESS_ERROR
    ]
    return telling or sorted(every, key=lambda each: SEVERITY[each.verdict])[-1:]
