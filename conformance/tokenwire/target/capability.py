"""Capabilities: what the target can do, as its answers show.

A capability has three sources: a user's declaration, a server's advertisement, and the effect in an answer.
Only the effect establishes it, because a 200 to a request does not show that an option was used. An
advertisement counts only if the effect cannot be seen. A declaration establishes nothing, but makes the
absence a violation.
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
from tokenwire.target.shown import BY_ANSWER, WITHOUT_A_RECORD, drops_its_constraint, least_inner_step, shows


@dataclass(frozen=True)
class Capability:
    """A capability of the target, and the evidence for it."""

    name: str
    present: bool
    established: str
    """The evidence as a clause: `seen in generate/probe-1`, `no answer carries text`."""
    declared: bool = False
    """True if the user declares the capability."""
    advertised: str = ""
    """The words of the server's advertisement; empty without one."""
    seen: bool = False
    """True if an answer shows it."""


class _Evidence:
    """All that a run shows of the target. Each answer is tested once."""

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
        """The request ids that an abort may refer to."""
        self.stated = _advertised_words(advertised)
        """Capabilities that the server or its family promises, each with the source in words."""
        self.modes: dict[tuple[Delivery, bool], Answer] = {}
        """The first stream of each delivery mode, with ids and without."""
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
        """Note a promise of the server's family that an answer breaks."""
        family = family_of(stream.dialect)
        if stream.asked.constraints and "constraints" in promises(family) and drops_its_constraint(stream):
            words = f"promised by the documentation of {family}, and answered in {stream.exchange.name}"
            self.stated.setdefault("constraints", words)

    @property
    def claimed_rules(self) -> dict[str, str]:
        """Return the rules of logprobs that the server or the user claims, each with its source in words."""
        claims: dict[str, str] = {self.advertised.logprob_rule: "the server tells it"}
        claims |= dict.fromkeys(self.declared, "declared")
        return {name: claims[name] for name in LOGPROB_RULES if name in claims}


class _Found(NamedTuple):
    """Evidence for a capability; without words, the capability is absent."""

    words: str = ""
    seen: bool = True
    """True if it was observed, and not only stated."""
    advertised: str = ""
    absent: str = ""
    """The absence in words, if they are not those of the row."""


_Find = Callable[[_Evidence], _Found]


def _seen_in(*exchanges: Answer | ControlCall) -> _Found:
    return _Found(f"seen in {' and '.join(shown.exchange.name for shown in exchanges)}")


def _in_an_answer(name: str) -> _Find:
    return lambda run: _seen_in(run.shown[name]) if name in run.shown else _Found()


def _by_call(test: Callable[[ControlCall, Set[str]], object]) -> _Find:
    """Find a control call with an effect; the test gets the request ids that it may refer to."""

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
    """Find a stream of a mode: one with ids, or with text if no stream has ids."""

    def find(run: _Evidence) -> _Found:
        with_ids = {mode: stream for (mode, ids), stream in run.modes.items() if ids}
        seen = (with_ids or {mode: stream for (mode, _), stream in run.modes.items()}).get(mode)
        return _Found() if seen is None else _seen_in(seen)

    return find


def _interval(run: _Evidence) -> _Found:
    """Find two streams that kept different intervals, or the advertisement of one.

    The stream with the smaller interval must be spaced closer than the larger one allows. If the field never
    reached the engine, all streams are spaced alike.
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
        return _Found(absent="it is a parrot of another make, whose logprobs are not known")
    return _known_model(run)


def _batch_invariance(run: _Evidence) -> _Found:
    """Return a promise of results that depend only on the request. Checks verify it."""
    says = "the server says that it is deterministic" if run.advertised.deterministic else ""
    return _Found(
        says or ("declared" if BATCH_INVARIANCE in run.declared else ""), seen=False, advertised=says
    )


def _logprob_rule(name: str) -> _Find:
    """Return a claim of a rule of output logprobs, if there are logprobs. Checks verify it."""

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
WEIGHT_UPDATES = "weight-updates"
BATCH_INVARIANCE = "batch-invariance"
DECLARED_RULE = "declared-logprob-rule"
_NOT_TOLD = "no declaration or document of the server tells it"
_NOT_THE_PARROT = (
    "no answer repeats its prompt as the model of `tokenwire parrot` does, in a vocabulary that is known"
)
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
        "the server advertises no adapters",
    ),
    "dp-size": (
        _advertises(lambda told: f"{told.dp_size} data-parallel ranks" if told.dp_size else ""),
        "the server advertises no number of data-parallel ranks",
    ),
    "no-tokenizer": (
        lambda run: _Found(
            "the server says that it runs without a tokenizer" if run.advertised.tokenizer is False else ""
        ),
        "no endpoint says that the server has no tokenizer",
    ),
    "parrot": (_known_model, _NOT_THE_PARROT),
    "parrot-logprobs": (_known_numbers, _NOT_THE_PARROT),
    BATCH_INVARIANCE: (_batch_invariance, _NOT_TOLD),
    "stream-interval": (_interval, "no interval is advertised, or kept by two streams of different ones"),
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
        "no endpoint took an update of the weights",
    ),
    "abort-all": (
        _by_call(lambda call, _: call.everything and call.done),
        "no endpoint took the abort of all requests",
    ),
    "pause": (
        _by_call(lambda call, _: call.effect in {"keeps", "retracts"} and call.done),
        "no endpoint took a pause",
    ),
    "abort": (
        _by_call(lambda call, ids: call.action is Action.ABORT and call.done and call.ids & ids),
        "no endpoint took the abort of a request by its id",
    ),
    "load-report": (
        _by_call(lambda call, _: call.load is not None and call.load.live > 0),
        "no endpoint reported a request that was under way",
    ),
}
"""All capabilities: the search for evidence in a run, and the absence in words."""
_TRUSTED = ("mirror-sampler", "customized-info", "constraints")
"""Capabilities taken as advertised, because their absence from an answer may be the fault to find."""


def _advertised_words(advertised: Advertised) -> dict[str, str]:
    """Return the capabilities that a server advertises, each with the source in words."""
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

    `declared` holds the names that the user declares; unknown ones are ignored. `model` is the model behind
    the answers, if it is known.
    """
    run = _Evidence(streams, advertised, declared, calls, model)
    return {name: _judged(run, name, find(run), absent) for name, (find, absent) in _TABLE.items()}


def _judged(run: _Evidence, name: str, found: _Found, absent: str) -> Capability:
    """Decide if a capability is present, by its evidence, or by a statement if that is trusted."""
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
    """Return all capabilities that a user can declare, each with a description of its absence."""
    return {name: absent for name, (_, absent) in _TABLE.items()}
