"""A run: all answers of one server with one configuration, and the facts that they show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from tokenwire.checks.about import Traits, finished_choices, traits_of
from tokenwire.checks.check import Answers, Target
from tokenwire.checks.evidence import Observation
from tokenwire.checks.harm import controls
from tokenwire.checks.invariance import in_crowds
from tokenwire.checks.reading.channels import seen_markup
from tokenwire.checks.reading.deeds import Deeds, disturbed
from tokenwire.checks.reading.refusals import suspicion
from tokenwire.checks.reading.right_channels import right_marked_text
from tokenwire.dialects.control import ControlCall
from tokenwire.dialects.dialect import Dialect, dialect_of, vocabulary_told
from tokenwire.dialects.markup import Markup
from tokenwire.judging.asked_by import asked_among
from tokenwire.judging.chance import Determinism, Doubt, determinism, doubt
from tokenwire.parrot.recognition import KnownModel, recognised
from tokenwire.record import Answer, Stream, fact
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import BATCH_INVARIANCE, Capability, capabilities
from tokenwire.target.cuts import severed
from tokenwire.target.death import Death, clouded, deaths
from tokenwire.target.determinism import AnswerPair, Comparison, comparisons
from tokenwire.target.honesty import Honesty, honesty
from tokenwire.target.sampler_lists import unknown_lists, without_lists
from tokenwire.target.shown import shows
from tokenwire.target.tokenizer import LocalTokenizer, RemoteTokenizer, Tokenizer, detokenizer_of

_OK = 200


@dataclass(frozen=True)
class Run:
    """All answers of one server with one configuration."""

    streams: tuple[Answer, ...]
    advertised: Advertised = field(default_factory=Advertised)
    name: str = ""
    """The capture's file name if several captures are judged together. Empty for a live run."""
    tokenizer: Tokenizer | None = None
    """The tokenizer with which texts are compared."""
    declared: frozenset[str] = frozenset()
    """Capabilities that the user declares with --declare."""
    calls: tuple[ControlCall, ...] = ()
    """Control requests such as aborts and flushes, which are not among the streams."""
    beside: tuple[AnswerPair, ...] = ()
    """Pairs of the worker's and the gateway's answers, if the server is a gateway with a known worker."""
    worker_asked: bool = False
    """True if the user named a worker, even if it did not answer."""
    exhibits: tuple[Answer, ...] = ()
    """The worker's answers to the requests with which the gateway failed, under the names of the gateway's
    exchanges.
    """
    tool_calls: str = ""
    """The name of the model's tool call format, if it is known in advance."""

    @cached_property
    def is_gateway(self) -> bool:
        """True if the server is a gateway that is compared with its worker."""
        return bool(self.beside)

    @cached_property
    def deaths(self) -> tuple[Death, ...]:
        """The deaths of the server, each with its most likely cause."""
        through_the_gateway = (pair.other for pair in self.beside)
        return deaths((*self.streams, *through_the_gateway), self._suspicion, self.calls)

    @cached_property
    def clouded(self) -> frozenset[str]:
        """Names of bad requests that failed in the same way as the valid request after them.

        Such a failure shows neither a refusal nor a missing refusal.
        """
        return clouded(self.answers, self._suspicion)

    def _suspicion(self, stream: Answer) -> int:
        # `self.target` would cause a loop: it needs the deaths, which need this function.
        return suspicion(stream, Target(advertised=self.advertised))

    @cached_property
    def died(self) -> Death | None:
        """The death of the server that ended the run. None if the server survived."""
        return next((death for death in self.deaths if death.final), None)

    @cached_property
    def _cut(self) -> frozenset[str]:
        """The names of the exchanges that a death of the server cut off."""
        return frozenset().union(*(death.cut for death in self.deaths))

    @cached_property
    def severed(self) -> tuple[Answer, ...]:
        """The streams of a gateway whose worker was cut. Only requirements on such streams judge them."""
        return severed(self.streams, self.calls)

    @cached_property
    def _both(self) -> tuple[Answer, ...]:
        """The answers of worker and gateway to the same requests."""
        return tuple(stream for pair in self.beside for stream in (pair.baseline, pair.other))

    @cached_property
    def answers(self) -> Answers:
        """The answers to judge: all except those that a death of the server or of the worker cut off."""
        cut = self._cut.union(stream.exchange.name for stream in self.severed)
        left = (stream for stream in self.streams if stream.exchange.name not in cut)
        # An evicted answer loses its unknown lists later, when `load` reads its content.
        return Answers(self.load(stream) if isinstance(stream, Stream) else stream for stream in left)

    @cached_property
    def size(self) -> int:
        """The total size of the bodies of all judged answers, in bytes."""
        return sum(answer.exchange.size for answer in self.answers)

    @cached_property
    def unknown_lists(self) -> frozenset[str]:
        """Names of lists in `meta_info` that the dialect does not know and that come from no
        custom sampler.
        """
        # A user who declares customized-info confirms that unknown lists come from a custom sampler.
        return frozenset() if "customized-info" in self.declared else unknown_lists(self.streams)

    def without(self, exchange: str) -> Run:
        """Return the run without an exchange."""
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
        """Return an answer with its content, without the unknown lists."""
        return without_lists(answer.load(), self.unknown_lists)

    def load_pair(self, pair: AnswerPair) -> Comparison:
        loaded = pair.load()
        if not self.unknown_lists:
            return loaded
        return replace(loaded, baseline=self.load(loaded.baseline), other=self.load(loaded.other))

    @cached_property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios of the judged answers, in their order."""
        return tuple(dict.fromkeys(stream.exchange.scenario for stream in self.answers))

    @cached_property
    def capabilities_asked(self) -> frozenset[str]:
        """The capabilities that at least one request enables."""
        return asked_among(self.streams)

    @cached_property
    def dialects_answered(self) -> dict[str, Dialect | None]:
        """The dialects in which the server answered, by name. The value is None for an unknown dialect."""
        return {stream.dialect: dialect_of(stream) for stream in self.streams if stream.answered}

    @cached_property
    def pairs_beside(self) -> tuple[AnswerPair, ...]:
        """The pairs of worker and gateway that can be compared, because both servers were alive."""
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
        """The model that the server runs, if its right answers are known."""
        other = self.tokenizer.known if isinstance(self.tokenizer, LocalTokenizer) else None
        return recognised(self.answers, other)

    @cached_property
    def capabilities_beside(self) -> dict[str, Capability]:
        """The capabilities that the gateway or its worker shows in answers to the same requests."""
        return capabilities(self._both, self.advertised, self.declared)

    @cached_property
    def texts_not_asked(self) -> tuple[int, int]:
        """The number of texts that the server was not asked to decode, and the number of all texts."""
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
        """The markup that the server's parsers remove from text."""
        model = self.model
        right = None if model is None else partial(right_marked_text, model)
        return seen_markup(self.answers, detokenizer_of(model, self.tokenizer), self.tool_calls, right)

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
        """Return the circumstances of each exchange that must not change its answer.

        They are an earlier bad request and, if the server claims batch invariance, concurrent load.
        """
        bare = Target(advertised=self.advertised, calls=self.calls)
        behind = {control.exchange.name: "behind a refusal" for _, control in controls(self.answers, bare)}
        declared = self.capabilities[BATCH_INVARIANCE].present
        return (dict.fromkeys(in_crowds(self.answers), "among others") if declared else {}) | behind

    @cached_property
    def seen(self) -> tuple[Determinism, ...]:
        """The repeated answers of the server, of the worker, and of its gateway."""
        return (
            self.determinism,
            determinism(pair.baseline for pair in self.beside),
            determinism(pair.other for pair in self.beside),
        )

    def doubt(self, difference: Observation) -> Doubt | None:
        """Return the reason why a difference is not a violation by itself. None if it is a violation."""
        return doubt(difference, self.by_exchange, self.seen)

    @cached_property
    def comparisons(self) -> list[AnswerPair]:
        return comparisons(self.answers, self.determinism.trusts, self._deeds.weights)

    @cached_property
    def empty_answers(self) -> frozenset[str]:
        """The names of the exchanges with status 200 but no content: no id, text, finish reason or error."""
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
        """All answers by the names of their exchanges."""
        return {stream.exchange.name: stream for stream in (*self.streams, *self._both)}

    @cached_property
    def flags(self) -> frozenset[str]:
        """The flags with which the server was started, as far as known."""
        return frozenset(flag for stream in self.streams for flag in stream.exchange.server.flags)

    @cached_property
    def tells_prompt_ids(self) -> bool:
        """True if at least one answer has prompt_token_ids."""
        return any(map(shows("prompt-token-ids"), self.streams))

    @cached_property
    def target(self) -> Target:
        """The facts about the server that checks need."""
        # SGLang and vLLM name the vocabulary size when they refuse an id beyond it.
        vocabulary = self.advertised.vocab_size or vocabulary_told(self.streams)
        return Target(
            capabilities=frozenset(name for name, known in self.capabilities.items() if known.present),
            stream_interval=self.advertised.stream_interval,
            advertised_delivery=self.advertised.delivery,
            deaths=self.deaths,
            severed=self.severed,
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
    """True if an answer has any content: an id, a character, or a finish reason."""
    choices = stream.choices if stream.answered else ()
    return any(
        emission.output_ids or emission.text or (emission.finish and emission.finish.type)
        for choice in choices
        for emission in choice.emissions
    )
