"""A run: everything that one server, started in one way, answered, and what that shows of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from tokenwire.checks.about import Traits, finished_choices, traits_of
from tokenwire.checks.check import Answers, Target
from tokenwire.checks.evidence import Observation
from tokenwire.checks.harm import controls
from tokenwire.checks.invariance import in_crowds
from tokenwire.checks.reading.chance import limits_of, part_no_earlier, texts_alone
from tokenwire.checks.reading.channels import seen_markup
from tokenwire.checks.reading.deeds import Deeds, disturbed
from tokenwire.checks.reading.refusals import suspicion
from tokenwire.dialects.control import ControlCall
from tokenwire.dialects.dialect import Dialect, dialect_of, vocabulary_told
from tokenwire.dialects.markup import Markup
from tokenwire.judging.asked_by import asked_among
from tokenwire.parrot.recognition import KnownModel, recognised
from tokenwire.record import Answer, Stream, fact
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import BATCH_INVARIANCE, Capability, capabilities, shows
from tokenwire.target.death import Death, clouded, deaths
from tokenwire.target.determinism import (
    AnswerPair,
    Comparison,
    Determinism,
    Doubt,
    comparisons,
    determinism,
    doubt,
)
from tokenwire.target.honesty import Honesty, honesty
from tokenwire.target.sampler_lists import unknown_lists, without_lists
from tokenwire.target.tokenizer import LocalTokenizer, RemoteTokenizer, Tokenizer, detokenizer_of

_OK = 200


@dataclass(frozen=True)
class Run:
    """Everything that one server, started in one way, wrote."""

    streams: tuple[Answer, ...]
    advertised: Advertised = field(default_factory=Advertised)
    name: str = ""
    """The capture's file, where several are judged together; empty for a live run."""
    tokenizer: Tokenizer | None = None
    """The tokenizer that text is compared with."""
    declared: frozenset[str] = frozenset()
    """Capabilities that the user says the target has."""
    calls: tuple[ControlCall, ...] = ()
    """Control calls beside the streams."""
    beside: tuple[AnswerPair, ...] = ()
    """Where the target is a gateway whose worker was asked too: the worker's answers, and the gateway's."""
    worker_asked: bool = False
    """A worker was named, whatever it answered."""
    tool_calls: str = ""
    """The form in which the model writes tool calls, where that is known beforehand."""

    @cached_property
    def deaths(self) -> tuple[Death, ...]:
        """The ends of the server, each with the request or call that it most likely died of."""
        through_the_gateway = (pair.other for pair in self.beside)
        return deaths((*self.streams, *through_the_gateway), self._suspicion, self.calls)

    @cached_property
    def clouded(self) -> frozenset[str]:
        """The bad requests that failed as the good ones after them did, which shows neither a refusal nor the
        lack of one.
        """
        return clouded(self.answers, self._suspicion)

    def _suspicion(self, stream: Answer) -> int:
        # Not `self.target`: that asks for the deaths, and these ask for the suspicion.
        return suspicion(stream, Target(advertised=self.advertised))

    @cached_property
    def died(self) -> Death | None:
        """The end of the server that ended the run, too."""
        return next((death for death in self.deaths if death.final), None)

    @cached_property
    def _cut(self) -> frozenset[str]:
        """The exchanges that a death of the server cut off."""
        return frozenset().union(*(death.cut for death in self.deaths))

    @cached_property
    def _both(self) -> tuple[Answer, ...]:
        """The answers of the worker and of its gateway, where both were asked the same."""
        return tuple(stream for pair in self.beside for stream in (pair.baseline, pair.other))

    @cached_property
    def answers(self) -> Answers:
        """The streams that are judged: all but those that a death of the server cut off."""
        left = (stream for stream in self.streams if stream.exchange.name not in self._cut)
        # The content of an evicted answer is read again, and loses such lists where checks get it (`load`).
        return Answers(self.load(stream) if isinstance(stream, Stream) else stream for stream in left)

    @cached_property
    def unknown_lists(self) -> frozenset[str]:
        """Lists in `meta_info` that are neither known to the dialect nor a sampler's."""
        # A user who declares customized_info says that lists which no dialect knows come from a sampler.
        return frozenset() if "customized-info" in self.declared else unknown_lists(self.streams)

    def without(self, exchange: str) -> Run:
        """The same run without an exchange."""
        return replace(
            self,
            streams=tuple(stream for stream in self.streams if stream.exchange.name != exchange),
            beside=tuple(
                pair
                for pair in self.beside
                if exchange not in (pair.baseline.exchange.name, pair.other.exchange.name)
            ),
        )

    def load(self, answer: Answer) -> Stream:
        """An answer with its content, as checks get it."""
        return without_lists(answer.load(), self.unknown_lists)

    def load_pair(self, pair: AnswerPair) -> Comparison:
        loaded = pair.load()
        if not self.unknown_lists:
            return loaded
        return replace(loaded, baseline=self.load(loaded.baseline), other=self.load(loaded.other))

    @cached_property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios of the streams that are judged, in their order."""
        return tuple(dict.fromkeys(stream.exchange.scenario for stream in self.answers))

    @cached_property
    def capabilities_asked(self) -> frozenset[str]:
        """The capabilities that any request asks for, as far as requests tell."""
        return asked_among(self.streams)

    @cached_property
    def dialects_answered(self) -> dict[str, Dialect | None]:
        """The dialects in which the target answered, by name; None for one that is not known here."""
        return {stream.dialect: dialect_of(stream) for stream in self.streams if stream.answered}

    @cached_property
    def pairs_beside(self) -> tuple[AnswerPair, ...]:
        """The answers of worker and gateway that are compared: neither server was dead."""
        return tuple(
            pair
            for pair in self.beside
            if pair.baseline.exchange.status is not None and pair.other.exchange.name not in self._cut
        )

    @cached_property
    def capabilities(self) -> dict[str, Capability]:
        return capabilities(self.answers, self.advertised, self.declared, self.calls, self.model)

    @cached_property
    def model(self) -> KnownModel | None:
        """The model behind the answers, where it is one whose right answers are known."""
        other = self.tokenizer.known if isinstance(self.tokenizer, LocalTokenizer) else None
        return recognised(self.answers, other)

    @cached_property
    def capabilities_beside(self) -> dict[str, Capability]:
        """The capabilities that a gateway or its worker shows, if both were asked the same."""
        return capabilities(self._both, self.advertised, self.declared)

    @cached_property
    def texts_not_asked(self) -> tuple[int, int]:
        """The texts that the server was not asked for when it was to say what ids mean, and all texts."""
        if not isinstance(self.tokenizer, RemoteTokenizer):
            return 0, 0
        known = [
            self.tokenizer.decode(choice.output_ids, skip_special_tokens=answer.asked.skip_special_tokens)
            for answer in self.answers
            for choice in finished_choices(answer)
            if choice.text is not None and choice.output_ids and {*map(type, choice.output_ids)} == {int}
        ]
        return sum(text is None for text in known), len(known)

    @cached_property
    def markup(self) -> Markup:
        """The markup that the parsers of the target take out of text."""
        return seen_markup(self.answers, detokenizer_of(self.model, self.tokenizer), self.tool_calls)

    @cached_property
    def honesty(self) -> Honesty:
        return honesty(self.answers)

    @cached_property
    def _deeds(self) -> Deeds:
        return Deeds(self.calls, self.deaths)

    @cached_property
    def determinism(self) -> Determinism:
        return determinism(
            self.answers, disturbed(self.answers, self._deeds), self._deeds.weights, self._conditions()
        )

    def _conditions(self) -> dict[str, str]:
        """Return what may change no answer: a bad request before it and, if the server says that results do
        not depend on the batch, a crowd beside it.
        """
        bare = Target(advertised=self.advertised, calls=self.calls)
        behind = {control.exchange.name: "behind a refusal" for _, control in controls(self.answers, bare)}
        declared = self.capabilities[BATCH_INVARIANCE].present
        return (dict.fromkeys(in_crowds(self.answers), "among others") if declared else {}) | behind

    @cached_property
    def seen(self) -> tuple[Determinism, ...]:
        """Repetitions that were seen: of the target, and of the worker and its gateway."""
        return (
            self.determinism,
            determinism(pair.baseline for pair in self.beside),
            determinism(pair.other for pair in self.beside),
        )

    def doubt(self, difference: Observation) -> Doubt | None:
        """Explain why a difference is not a violation in itself; None if it is one."""
        if not difference.by_chance and not self._parts_as_whole_answers_do(difference):
            return None
        places = (difference.place, *difference.related)
        names = {place.exchange: None for place in places if place.exchange in self.by_exchange}
        token = isinstance(difference.expected, (int, str))  # an id or a text, and no entry of a series
        return doubt(names, self.seen, token=token)

    def _parts_as_whole_answers_do(self, difference: Observation) -> bool:
        """True if two texts part no earlier than whole answers to their very request did, or if the target
        answers as at random.

        Without ids, one text that is a part of another looks like a loss. It shows none where whole answers
        contradict each other from there on.
        """
        texts = (difference.expected, difference.actual)
        if not difference.related or not all(isinstance(text, str) for text in texts):
            return False
        pair = [self.by_exchange.get(place.exchange) for place in (difference.related[0], difference.place)]
        if None in pair or pair[0] is pair[1]:
            return False
        first, second = (stream.load() for stream in pair if stream is not None)
        if limits_of(first) != limits_of(second):
            return False
        if self.determinism.random and texts_alone(first, second):
            return True
        contradicting = [self.determinism.unsteady.get(stream.exchange.name) for stream in (first, second)]
        both = next(filter(None, contradicting), None)
        if both is None:
            return False
        whole = [self.by_exchange[name].load() for name in both]
        return part_no_earlier((first, second), (whole[0], whole[1]))

    @cached_property
    def comparisons(self) -> list[AnswerPair]:
        return comparisons(self.answers, self.determinism, self._deeds.weights)

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
    def traits(self) -> dict[str, Traits]:
        """The traits of each judged answer, by the name of its exchange."""
        return {stream.exchange.name: traits_of(stream) for stream in self.answers}

    @cached_property
    def by_exchange(self) -> dict[str, Answer]:
        """The streams by the names of their exchanges."""
        return {stream.exchange.name: stream for stream in (*self.streams, *self._both)}

    @cached_property
    def flags(self) -> frozenset[str]:
        """The flags that the server is known to have been started with."""
        return frozenset(flag for stream in self.streams for flag in stream.exchange.server.flags)

    @cached_property
    def tells_prompt_ids(self) -> bool:
        """True if any answer carries prompt_token_ids."""
        return any(map(shows("prompt-token-ids"), self.streams))

    @cached_property
    def target(self) -> Target:
        """The facts about the target for checks."""
        # SGLang and vLLM name the size of the vocabulary when they refuse an id beyond it.
        vocabulary = self.advertised.vocab_size or vocabulary_told(self.streams)
        return Target(
            capabilities=frozenset(name for name, known in self.capabilities.items() if known.present),
            stream_interval=self.advertised.stream_interval,
            advertised_delivery=self.advertised.delivery,
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
    """True if an answer has any content: an id, a character, or the reason of a finish."""
    choices = stream.choices if stream.answered else ()
    return any(
        emission.output_ids or emission.text or (emission.finish and emission.finish.type)
        for choice in choices
        for emission in choice.emissions
    )
