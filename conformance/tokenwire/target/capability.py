"""Capabilities: the features that the server has, as its answers show.

There are three sources for a capability: a declaration by the user, an advertisement by the server, and its
effect in an answer. Only the effect proves it, because status 200 does not show that an option was used. An
advertisement counts only if the effect cannot be seen. A declaration proves nothing, but it makes the absence
a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.dialect import (
    family_of,
    names_of,
)
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.recognition import KnownModel
from tokenwire.record import Answer, Delivery
from tokenwire.target.advertised import LOGPROB_RULES, Advertised, promises
from tokenwire.target.cuts import CUT, cuts
from tokenwire.target.shown import BY_ANSWER, WITHOUT_A_RECORD, drops_its_constraint, least_inner_step, shows


@dataclass(frozen=True)
class Capability:
    """A capability of the server, with the evidence for or against it."""

    name: str
    present: bool
    established: str
    """The evidence, as a clause: `seen in generate/probe-1`, `no answer carries text`."""
    declared: bool = False
    """True if the user declares the capability."""
    advertised: str = ""
    """A description of the server's advertisement. Empty if there is none."""
    seen: bool = False
    """True if an answer shows the capability."""


class _Evidence:
    """Everything in a run that shows capabilities of the server. Each answer is tested only once."""

    def __init__(
        self,
        answers: Iterable[Answer],
        advertised: Advertised,
        declared: Collection[str],
        calls: Iterable[ControlCall],
        model: KnownModel | None,
    ) -> None:
        self.advertised, self.declared, self.calls, self.model = advertised, declared, tuple(calls), model
        self.shown: dict[str, Answer] = {}
        """The first answer that shows each capability."""
        self.names: set[str] = set()
        """The request ids that an abort may name."""
        self.stated = _advertised_words(advertised)
        """Capabilities that the server or its family promises, each with a description of the source."""
        self.modes: dict[tuple[Delivery, bool], Answer] = {}
        """The first stream of each delivery mode, with ids and without ids."""
        self.spaced: dict[tuple[int, int], Answer] = {}
        """The first stream of each interval that was requested and kept."""
        self._unseen = {name: shows(name) for name in BY_ANSWER}
        for answer in answers:
            self._add(answer)

    def _add(self, stream: Answer) -> None:
        record = stream.answered
        for name in [name for name in self._unseen if record or name in WITHOUT_A_RECORD]:
            if self._unseen[name](stream):
                self.shown[name] = stream
                del self._unseen[name]
        if record:
            self.names |= names_of(stream)
            self._promise(stream)
        if record and stream.asked.stream:
            self.modes.setdefault((stream.delivery, _shows_ids(stream)), stream)
            asked = stream.asked.stream_interval or 0
            if asked >= 2 and (step := least_inner_step(stream)) >= asked:
                self.spaced.setdefault((asked, step), stream)

    def _promise(self, stream: Answer) -> None:
        """Note that an answer breaks a promise of the server's family."""
        family = family_of(stream.dialect)
        if stream.asked.constraints and "constraints" in promises(family) and drops_its_constraint(stream):
            words = f"promised by the documentation of {family}, and answered in {stream.exchange.name}"
            self.stated.setdefault("constraints", words)

    @property
    def claimed_rules(self) -> dict[str, str]:
        """The rules of logprobs that the server or the user claims, each with a description of the source."""
        claims: dict[str, str] = {self.advertised.logprob_rule: "the server reports it"}
        claims |= dict.fromkeys(self.declared, "declared")
        return {name: claims[name] for name in LOGPROB_RULES if name in claims}


class _Found(NamedTuple):
    """The evidence for a capability. Empty `words` mean that the capability is absent."""

    words: str = ""
    seen: bool = True
    """True if the evidence is an observation, and not only a claim."""
    advertised: str = ""
    absent: str = ""
    """A description of the absence that replaces the one in the table."""


_Find = Callable[[_Evidence], _Found]


def _seen_in(*exchanges: Answer | ControlCall) -> _Found:
    return _Found(f"seen in {' and '.join(shown.exchange.name for shown in exchanges)}")


def _in_an_answer(name: str) -> _Find:
    return lambda run: _seen_in(run.shown[name]) if name in run.shown else _Found()


def _by_call(test: Callable[[ControlCall, Set[str]], object]) -> _Find:
    """Return a search for a control request with an effect.

    `test` gets the control request, and the request ids that an abort may name.
    """

    def find(run: _Evidence) -> _Found:
        call = next((call for call in run.calls if test(call, run.names)), None)
        return _Found() if call is None else _seen_in(call)

    return find


def _advertises(words: Callable[[Advertised], str]) -> _Find:
    def find(run: _Evidence) -> _Found:
        stated = words(run.advertised)
        return _Found(f"the server advertises {stated}" if stated else "")

    return find


def _mode(mode: Delivery) -> _Find:
    """Return a search for a stream of one delivery mode.

    A stream with ids is preferred to streams without ids.
    """

    def find(run: _Evidence) -> _Found:
        with_ids = {mode: stream for (mode, ids), stream in run.modes.items() if ids}
        seen = (with_ids or {mode: stream for (mode, _), stream in run.modes.items()}).get(mode)
        return _Found() if seen is None else _seen_in(seen)

    return find


def _interval(run: _Evidence) -> _Found:
    """Find two streams that kept different intervals, or the advertisement of an interval.

    The stream with the smaller interval must have smaller events than the larger interval allows. If the
    server ignores the field, all streams have events of the same size.
    """
    interval, kept = run.advertised.stream_interval, run.spaced.items()
    claim = f"the server advertises stream_interval {interval}" if interval is not None else ""
    pairs = (
        (small, large)
        for (asked, step), small in kept
        for (more, _), large in kept
        if asked < more and step < more
    )
    pair = next(pairs, None)
    if pair is None:
        return _Found(claim, seen=False, advertised=claim)
    return _seen_in(*pair)._replace(advertised=claim)


def _known_model(run: _Evidence) -> _Found:
    return _Found(f"seen in {run.model.seen_in}" if run.model else "")


def _known_numbers(run: _Evidence) -> _Found:
    if run.model is not None and not isinstance(run.model.law, Parrot):
        return _Found(absent="the model is another parrot, whose logprobs are unknown")
    return _known_model(run)


def _batch_invariance(run: _Evidence) -> _Found:
    """Return a claim that an answer depends only on its request. Checks verify the claim."""
    says = "the server reports that it is deterministic" if run.advertised.deterministic else ""
    return _Found(
        says or ("declared" if BATCH_INVARIANCE in run.declared else ""), seen=False, advertised=says
    )


def _declared_only(name: str) -> _Find:
    """Return a search for the declaration of a capability that no answer needs to show."""
    return lambda run: _Found("declared" if name in run.declared else "", seen=False)


def _logprob_rule(name: str) -> _Find:
    """Return a search for a claim of a rule of output logprobs, if answers have logprobs. Checks verify the
    claim.
    """

    def find(run: _Evidence) -> _Found:
        words = run.claimed_rules.get(name, "")
        if words and "logprobs" not in run.shown:
            return _Found(absent=BY_ANSWER["logprobs"][1])
        return _Found(words, seen=False)

    return find


def _any_logprob_rule(run: _Evidence) -> _Found:
    words = "; ".join(f"{name}: {words}" for name, words in run.claimed_rules.items())
    return _Found(words if "logprobs" in run.shown else "", seen=False)


_shows_ids = shows("output-ids")
WEIGHT_UPDATES, WEIGHT_VERSIONS = "weight-updates", "weight-versions"
BATCH_INVARIANCE = "batch-invariance"
WAITING_TIMEOUT = "waiting-timeout"
DECLARED_RULE = "declared-logprob-rule"
_NOT_TOLD = "no declaration or document of the server names it"
_NOT_THE_PARROT = "no answer repeats its prompt like the model of `tokenwire parrot`, with a known vocabulary"
_TABLE: Mapping[str, tuple[_Find, str]] = {
    **{name: (_in_an_answer(name), absent) for name, (_, absent) in BY_ANSWER.items()},
    "advertised-mode": (
        _advertises(lambda told: f"{told.delivery} streams" if told.delivery else ""),
        "the server advertises no delivery mode",
    ),
    "context-length": (
        _advertises(lambda told: f"a context of {told.context_length}" if told.context_length else ""),
        "the server advertises no context length",
    ),
    "adapters": (
        _advertises(lambda told: ", ".join(sorted(told.adapters))),
        "the server advertises no adapter",
    ),
    "dp-size": (
        _advertises(lambda told: f"{told.dp_size} data-parallel ranks" if told.dp_size else ""),
        "the server advertises no number of data-parallel ranks",
    ),
    "no-tokenizer": (
        lambda run: _Found(
            "the server reports that it runs without a tokenizer" if run.advertised.tokenizer is False else ""
        ),
        "no endpoint reports that the server has no tokenizer",
    ),
    "parrot": (_known_model, _NOT_THE_PARROT),
    "parrot-logprobs": (_known_numbers, _NOT_THE_PARROT),
    BATCH_INVARIANCE: (_batch_invariance, _NOT_TOLD),
    WAITING_TIMEOUT: (
        _declared_only(WAITING_TIMEOUT),
        "no declaration says that the server ends what waits too long",
    ),
    "stream-interval": (_interval, "no interval is advertised, and no two streams kept different intervals"),
    **{
        str(mode): (_mode(mode), f"no stream is {mode}")
        for mode in (Delivery.CUMULATIVE, Delivery.INCREMENTAL)
    },
    **{name: (_logprob_rule(name), _NOT_TOLD) for name in LOGPROB_RULES},
    DECLARED_RULE: (
        _any_logprob_rule,
        "the rule of the logprobs is not reported; if you know it, declare one of "
        f"{', '.join(LOGPROB_RULES)}",
    ),
    WEIGHT_UPDATES: (
        _by_call(lambda call, _: call.action is Action.UPDATE and call.flushes and call.done),
        "no endpoint accepted an update of the weights",
    ),
    "decisions": (
        _by_call(lambda call, _: call.action is Action.DECIDE and call.done),
        "no endpoint answered questions with probabilities",
    ),
    "abort-all": (
        _by_call(lambda call, _: call.everything and call.done),
        "no endpoint accepted an abort of all requests",
    ),
    "pause": (
        _by_call(lambda call, _: call.effect in {"keeps", "retracts"} and call.done),
        "no endpoint accepted a pause",
    ),
    "abort": (
        _by_call(lambda call, ids: call.action is Action.ABORT and call.done and call.ids & ids),
        "no endpoint accepted the abort of a request by its id",
    ),
    CUT: (
        lambda run: next((_seen_in(first) for first, _ in cuts(run.calls)), _Found()),
        "no stream of the worker behind a gateway was cut",
    ),
    "load-report": (
        _by_call(lambda call, _: call.load is not None and call.load.live > 0),
        "no endpoint reported a running request",
    ),
}
"""All capabilities: how to find evidence in a run, and a description of the absence."""
_TRUSTED = ("mirror-sampler", "customized-info", "constraints")
"""Capabilities that count as present if advertised. Their absence from an answer may be the error that a
check looks for.
"""


def _advertised_words(advertised: Advertised) -> dict[str, str]:
    """Return the capabilities that a server advertises, each with a description of the source."""
    stated: dict[str, str] = {}
    if advertised.mirrors:
        words = f"advertised by sampling_backend {advertised.sampling_backend!r}"
        stated |= {"mirror-sampler": words, "customized-info": words}
    if advertised.delivery is not None:
        stated[str(advertised.delivery)] = f"the server advertises {advertised.delivery} streams"
    return stated


def capabilities(
    streams: Iterable[Answer],
    advertised: Advertised,
    declared: Collection[str] = (),
    calls: Iterable[ControlCall] = (),
    model: KnownModel | None = None,
) -> dict[str, Capability]:
    """Return all capabilities of the specification by name.

    `declared` are the names that the user declares; unknown names are ignored. `model` is the model that the
    server runs, if it is known.
    """
    run = _Evidence(streams, advertised, declared, calls, model)
    return {name: _judged(run, name, find(run), absent) for name, (find, absent) in _TABLE.items()}


def _judged(run: _Evidence, name: str, found: _Found, absent: str) -> Capability:
    """Decide if a capability is present, from its evidence, or from a claim if claims count for it."""
    stated = run.stated.get(name, "")
    words = found.words or (stated if name in _TRUSTED else "")
    return Capability(
        name,
        present=words != "",
        established=words or found.absent or absent,
        declared=name in run.declared,
        advertised=found.advertised or stated,
        seen=found.words != "" and found.seen,
    )


def known_capabilities() -> dict[str, str]:
    """Return the names of all capabilities that a user can declare, each with a description of
    its absence.
    """
    return {name: absent for name, (_, absent) in _TABLE.items()}
