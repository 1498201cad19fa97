"""Capabilities: what the target can do, as its answers show.

A capability has three sources: a user's declaration, a server's advertisement, and the effect in an answer.
Only the effect establishes it, because a 200 to a request does not show that an option was used. An
advertisement counts only if the effect cannot be seen. A declaration establishes nothing, but makes the
absence a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tokenwire.constraint import UntoldError
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.dialect import (
    arrays_of,
    dialect_of,
    family_of,
    gives_results,
    is_chat,
    is_ranked,
    names_of,
    policy_of,
)
from tokenwire.dialects.logprobs import has_ranks
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.recognition import KnownModel
from tokenwire.record import Answer, Choice, Delivery, Emission, Stream, fact
from tokenwire.target.advertised import LOGPROB_RULES, Advertised, promises
from tokenwire.wire.exchange import Ending

LOGPROBS_LENGTH = "output_token_logprobs_length"
MIRRORED_ID = "mirror_token_id"
_OK = 200


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


def _any(test: Callable[[Emission], object]) -> Callable[[Stream], bool]:
    def shown(stream: Stream) -> bool:
        for choice in stream.choices:  # most find nothing in all of a stream: a generator takes twice as long
            for emission in choice.emissions:
                if test(emission):
                    return True
        return False

    return shown


def _choice(test: Callable[[Choice], object]) -> Callable[[Stream], bool]:
    return lambda stream: any(map(test, stream.choices))


def _holds(name: str) -> Callable[[Stream], bool]:
    """Return a test that is true if a choice has a series, counter or detail other than null."""
    return _choice(lambda choice: name in choice.held)


def _held(name: str, test: Callable[[Emission], object]) -> Callable[[Stream], bool]:
    """Return a test like `_any` of a field that few choices have; emissions are tested only for these."""
    return _choice(lambda choice: name in choice.held and any(map(test, choice.emissions)))


def _filled(name: str) -> Callable[[Stream], bool]:
    """Return a test that is true if a detail of a choice is ever neither empty nor zero."""
    return _held(name, lambda emission: emission.details.get(name))


def _above_zero(name: str) -> Callable[[Stream], bool]:
    """Return a test that is true if a counter of a choice is ever above 0."""
    return _held(name, lambda emission: (emission.counter(name) or 0) > 0)


def _server_series(emission: Emission) -> list[str]:
    """Return the series that the server itself defines, not a custom sampler."""
    return [name for name, value in emission.series.items() if value and name not in emission.customized]


def _ended_by_stop_string(stream: Stream) -> bool:
    """True if a stop string may have ended a choice. Not every server reports the stop."""
    finishes = (choice.finish for choice in stream.choices if stream.asked.stop)
    return any(
        f is not None and f.type == "stop" and f.matched in (None, *stream.asked.stop) for f in finishes
    )


def _says_what_is_forced(stream: Stream) -> bool:
    """True if the text of a choice is the only one that its grammar permits."""
    dialect = dialect_of(stream)
    forced = (
        dialect.request.says.text(stream.exchange.request.body)
        if dialect is not None and dialect.request.says
        else None
    )
    return bool(forced) and any(choice.text == forced for choice in stream.choices)


def _keeps_its_constraint(stream: Stream) -> bool | None:
    """True if a choice satisfies the one constraint of its request; None if that is not decidable."""
    asked, finished = stream.asked, (choice for choice in stream.choices if choice.finish is not None)
    texts = [choice.text for choice in finished if choice.text is not None]
    try:
        known = len(asked.constraints) == 1 and bool(texts)
        return any(map(asked.constraints[0].admits, texts)) if known else None
    except UntoldError:
        return None


@fact(Stream)
def drops_its_constraint(stream: Stream) -> bool:
    """True if no choice satisfies the one constraint of its request."""
    return _keeps_its_constraint(stream) is False


def _counts_tokens(stream: Stream) -> bool:
    """True if the answer reports its number of tokens in ids, a counter or the usage."""
    counted = _has_ids(stream) or _holds("completion_tokens")(stream)
    return counted or "completion_tokens" in (stream.usage or {})


def _counts_cached_tokens(stream: Stream) -> bool:
    """True if a choice or the usage counts cached tokens."""
    details = (stream.usage or {}).get("prompt_tokens_details")
    in_usage = isinstance(details, Mapping) and details.get("cached_tokens") is not None
    return in_usage or _holds("cached_tokens")(stream)


def _is_stream(stream: Stream) -> bool:
    """True if a request for a stream was answered by one, complete or cut by the server, whatever its events
    contain.
    """
    exchange = stream.exchange
    media_type = (exchange.header("content-type") or "").partition(";")[0].strip().lower()
    is_one = exchange.status == _OK and media_type == "text/event-stream"
    cut = exchange.ending is Ending.TRUNCATED
    is_one = is_one and bool(stream.events or stream.unterminated or cut)
    return stream.asked.stream and (stream.answered or (is_one and not stream.refused))


@fact(Stream)
def least_inner_step(stream: Stream) -> int:
    """Return the fewest ids of any event between the first and the last of a choice; 0 if there are too few
    events.

    A single event may contain that many ids by chance.
    """
    inner: list[int] = []
    for choice in stream.choices:
        ids = [len(emission.output_ids) for emission in choice.emissions if emission.output_ids]
        if choice.delivery is Delivery.CUMULATIVE:
            ids = [after - before for before, after in pairwise((0, *ids))]
        inner += [size for size in ids[1:-1] if size > 0]
    return min(inner) if len(inner) > 1 else 0


def _has_top_logprobs(emission: Emission) -> bool:
    entries = _listed(emission, "logprobs_content")
    inside = any(isinstance(entry, dict) and entry.get("top_logprobs") for entry in entries)
    return inside or any("top" in name for name in _server_series(emission))


def _listed(emission: Emission, series: str) -> list[Any]:
    """Return all entries of a series; empty if it is not a list."""
    entries = emission.series.get(series)
    return entries if isinstance(entries, list) else []


def _tells_all_bytes(stream: Stream) -> bool:
    emissions = (emission for choice in stream.choices for emission in choice.emissions)
    entries = [entry for emission in emissions for entry in _listed(emission, "logprobs_content")]
    return bool(entries) and all(isinstance(entry, dict) and entry.get("bytes") for entry in entries)


def _has_text_offsets(emission: Emission) -> bool:
    return any(type(offset) is int and offset >= 0 for offset in _listed(emission, "text_offset"))


def _items_of(stream: Stream) -> str:
    """Return the name of the endpoint's grammar of items; empty for an endpoint without items."""
    dialect = dialect_of(stream)
    return dialect.grammar_name if dialect is not None else ""


_has_ids = _choice(lambda choice: choice.output_ids is not None)
_has_prompt_ids = _any(lambda emission: emission.prompt_token_ids is not None)
_holds_meta_info = _holds("meta_info")


def _tito_chat(stream: Stream) -> bool:
    return is_chat(stream) and (_has_prompt_ids(stream) or _holds_meta_info(stream) or _has_ids(stream))


_SHOWN: Mapping[str, tuple[Callable[[Stream], bool], str]] = {
    "stream": (_is_stream, "no request for a stream was answered by one"),
    "output-ids": (_has_ids, "no answer carries output ids"),
    "results": (gives_results, "no answer is the result of an input, such as its vector"),
    "ranked-results": (is_ranked, "no answer ranks its results"),
    "text": (_any(lambda e: e.text), "no answer carries text"),
    "completion-tokens": (_holds("completion_tokens"), "no choice counts its completion_tokens"),
    "token-count": (_counts_tokens, "no answer tells how many tokens it has"),
    "series": (_any(lambda e: any(e.series.values())), "no answer carries a per-token series"),
    "customized-info": (_choice(lambda c: c.customized), "no answer carries customized_info"),
    "incremental-customized-info": (
        lambda s: (
            s.asked.stream and s.delivery is Delivery.INCREMENTAL and any(c.customized for c in s.choices)
        ),
        "no incremental stream carries customized_info",
    ),
    "mirror-sampler": (_holds(MIRRORED_ID), "no sampler mirrors the sampled ids into customized_info"),
    "logprobs": (_any(_server_series), "no answer carries output logprobs"),
    "logprobs-length": (_holds(LOGPROBS_LENGTH), f"no answer carries {LOGPROBS_LENGTH}"),
    "top-logprobs": (
        lambda s: s.asked.top_logprobs > 0 and _any(_has_top_logprobs)(s),
        "no answer carries the top logprobs that were asked for",
    ),
    "chosen-logprobs": (
        lambda s: (
            (bool(s.asked.chosen_ids) and _any(lambda e: any("token_ids" in n for n in _server_series(e)))(s))
            or (bool(s.asked.chosen_in_top) and _any(_has_top_logprobs)(s))
        ),
        "no answer carries the logprobs of chosen ids that were asked for",
    ),
    "prompt-logprobs": (_any(lambda e: any(e.prompt_series.values())), "no answer carries prompt logprobs"),
    "chat-logprobs": (lambda s: is_chat(s) and _filled("logprobs")(s), "no chat answer carries logprobs"),
    "chat-token-bytes": (
        lambda s: is_chat(s) and _tells_all_bytes(s),
        "no chat answer has logprobs that tell the bytes of every token",
    ),
    "completion-logprobs": (
        lambda s: not is_chat(s) and _holds("token_logprobs")(s),
        "no answer carries the logprobs of completions",
    ),
    "text-offsets": (
        _held("text_offset", _has_text_offsets),
        "no answer tells where its tokens begin in the text",
    ),
    "echo": (lambda s: s.asked.echo, "no request for an echo was answered"),
    "input-ids": (lambda s: s.asked.input_ids is not None, "no request with input_ids was answered"),
    "prompt-token-ids": (_has_prompt_ids, "no answer carries prompt_token_ids"),
    "media": (
        lambda s: s.asked.media and _has_prompt_ids(s),
        "no answer to a prompt with media carries prompt_token_ids",
    ),
    "text-prompt-ids": (
        lambda s: s.asked.input_ids is None and _has_prompt_ids(s),
        "no answer to a text or messages carries prompt_token_ids",
    ),
    "cached-tokens": (_counts_cached_tokens, "no answer counts cached_tokens"),
    "cached-tokens-details": (
        _holds("cached_tokens_details"),
        "no answer carries cached_tokens_details that are not null",
    ),
    "request-id": (_holds("request_id"), "no answer carries a request id"),
    "prefix-cache": (_above_zero("cached_tokens"), "no answer counts cached tokens"),
    "retractions": (_above_zero("num_retractions"), "no answer tells that it was preempted"),
    "dp-rank": (
        _held("dp_rank", lambda e: e.details.get("dp_rank") is not None),
        "no answer tells the data-parallel rank that ran it",
    ),
    "batch": (lambda s: s.asked.prompts > 1, "no request with several prompts was answered"),
    "stream-errors": (
        lambda s: s.asked.stream and s.exchange.status == _OK and s.error is not None,
        "no stream carried an error event",
    ),
    "usage": (lambda s: s.usage is not None, "no answer carries a usage object"),
    "stop-patterns": (lambda s: bool(s.asked.stop_regex), "no request with stop patterns was answered"),
    "stop-strings": (_ended_by_stop_string, "no answer was ended as by a stop string"),
    "chat": (is_chat, "no chat request was answered"),
    "tito-chat": (_tito_chat, "no chat answer carries prompt_token_ids, output ids or meta_info"),
    "chat-meta-info": (lambda s: is_chat(s) and _holds_meta_info(s), "no chat answer carries meta_info"),
    "chat-streams-without-ids": (
        lambda s: is_chat(s) and policy_of(s).tito_stream_refused,
        "no chat dialect that was asked refuses token-in-token-out fields in streams",
    ),
    "forced-text": (_says_what_is_forced, "no grammar was seen to make the model say a text"),
    "constraints": (
        lambda s: _keeps_its_constraint(s) is True,
        "no answer is a word of the constraint of its request",
    ),
    "tool-calls": (
        _any(lambda e: e.calls or (e.finish is not None and e.finish.type == "tool_calls")),
        "no answer carries a tool call",
    ),
    "reasoning": (_any(lambda e: e.reasoning), "no answer carries reasoning beside its content"),
    "channels": (_choice(lambda c: c.parsed), "no answer carries reasoning or tool calls"),
    "logprob-ranks": (_any(has_ranks), "no answer ranks the tokens of its logprobs"),
    "sampling-mask": (
        _held("output_token_sampling_mask", lambda e: e.series.get("output_token_sampling_mask")),
        "no answer carries the sampling masks that were asked for",
    ),
    "weight-versions": (_filled("weight_versions"), "no answer tells which weights made which tokens"),
    "token-arrays": (
        lambda s: any(_filled(rule.name)(s) for rule in arrays_of(s)),
        "no answer carries an array of rows for tokens, such as routed experts",
    ),
    "routed-experts": (_filled("routed_experts"), "no answer carries routed experts"),
    "hidden-states": (_filled("hidden_states"), "no answer carries hidden states"),
    "draft-counts": (_filled("draft_rounds"), "no answer counts drafts"),
    "items": (lambda s: _items_of(s) != "", "no answer is a list of typed items"),
    "item-streams": (lambda s: _items_of(s) != "" and _is_stream(s), "no stream of typed items was answered"),
    "responses": (lambda s: _items_of(s) == "responses", "no request to /v1/responses was answered"),
    "messages": (lambda s: _items_of(s) == "messages", "no request to /v1/messages was answered"),
    "response-token-ids": (lambda s: is_chat(s) and _has_ids(s), "no chat answer carries output ids"),
}


@fact(Stream)
def _shown(stream: Stream) -> frozenset[str]:
    """Return the capabilities that an answer shows."""
    return frozenset(name for name, (shows, _) in _SHOWN.items() if shows(stream))


def shows(name: str) -> Callable[[Answer], bool]:
    """Return a test that is true if an answer shows a capability. It uses the emissions, or the facts of an
    evicted answer.
    """
    shown, _ = _SHOWN[name]
    return lambda answer: shown(answer) if isinstance(answer, Stream) else name in _shown(answer)


class _Effects:
    """Effects that only several answers together show. Each answer is tested once."""

    def __init__(self) -> None:
        self.shown: dict[str, Answer] = {}
        """The first answer that shows each capability."""
        self.names: set[str] = set()
        """The request ids that an abort may refer to."""
        self.promised: dict[str, str] = {}
        """Promises of a server family that an answer broke, each with its source in words."""
        self._modes: dict[tuple[Delivery, bool], Answer] = {}
        self._spaced: dict[tuple[int, int], Answer] = {}
        self._unseen = {name: shows(name) for name in _SHOWN}

    def add(self, stream: Answer) -> None:
        record = stream.answered
        for name in [name for name in self._unseen if record or name in _WITHOUT_A_RECORD]:
            if self._unseen[name](stream):
                self.shown[name] = stream
                del self._unseen[name]
        if record:
            self.names |= names_of(stream)
            self._promise(stream)
        if record and stream.asked.stream:
            self._modes.setdefault((stream.delivery, _shows_ids(stream)), stream)
            asked = stream.asked.stream_interval or 0
            if asked >= 2 and (step := least_inner_step(stream)) >= asked:
                self._spaced.setdefault((asked, step), stream)

    def _promise(self, stream: Answer) -> None:
        family = family_of(stream.dialect)
        if stream.asked.constraints and "constraints" in promises(family) and drops_its_constraint(stream):
            words = f"promised by the documentation of {family}, and answered in {stream.exchange.name}"
            self.promised.setdefault("constraints", words)

    def modes(self) -> Iterable[Capability]:
        """Yield the cumulative and incremental modes, shown by streams with ids, or by text if there are
        none.
        """
        with_ids = {mode: stream for (mode, ids), stream in self._modes.items() if ids}
        seen = with_ids or {mode: stream for (mode, _), stream in self._modes.items()}
        for mode in (Delivery.CUMULATIVE, Delivery.INCREMENTAL):
            yield _seen(str(mode), seen.get(mode), f"no stream is {mode}")

    def interval(self, advertised: Advertised) -> Capability:
        """Return the capability `stream_interval`, shown by two streams that kept different intervals.

        The stream with the smaller interval must be spaced closer than the larger one allows. If the field
        never reached the engine, all streams are spaced alike.
        """
        kept = self._spaced.items()
        pairs = (
            (small, large)
            for (asked, step), small in kept
            for (more, _), large in kept
            if asked < more and step < more
        )
        seen = next(pairs, None)
        says = f"the server advertises stream_interval {advertised.stream_interval}"
        claim = says if advertised.stream_interval is not None else ""
        if seen is not None:
            words = f"seen in {seen[0].exchange.name} and {seen[1].exchange.name}"
            return Capability("stream-interval", True, words, advertised=claim, seen=True)
        words = claim or "no interval is advertised, or kept by two streams of different ones"
        return Capability("stream-interval", bool(claim), words, advertised=claim)


_shows_ids = shows("output-ids")


WEIGHT_UPDATES = "weight-updates"


def _controlled(ids: Set[str], calls: tuple[ControlCall, ...]) -> Iterable[Capability]:
    """Yield the capabilities that control endpoints show by their effect: an abort of a running request, a
    load that counted one.
    """
    aborts = (call for call in calls if call.action is Action.ABORT and call.done and call.ids & ids)
    loads = (call for call in calls if call.load is not None and call.load.live > 0)
    all_aborts = (call for call in calls if call.everything and call.done)
    pauses = (call for call in calls if call.effect in {"keeps", "retracts"} and call.done)
    updates = (call for call in calls if call.action is Action.UPDATE and call.flushes and call.done)
    for name, call, absent in (
        (WEIGHT_UPDATES, next(updates, None), "no endpoint took an update of the weights"),
        ("abort-all", next(all_aborts, None), "no endpoint took the abort of all requests"),
        ("pause", next(pauses, None), "no endpoint took a pause"),
        ("abort", next(aborts, None), "no endpoint took the abort of a request by its id"),
        ("load-report", next(loads, None), "no endpoint reported a request that was under way"),
    ):
        yield _seen(name, call, absent)


def _known_answers(model: KnownModel | None) -> Iterable[Capability]:
    """Yield the capabilities of known answers and known logprobs."""
    absent = (
        "no answer repeats its prompt as the model of `tokenwire parrot` does, in a vocabulary that is known"
    )
    seen = f"seen in {model.seen_in}" if model else absent
    yield Capability("parrot", model is not None, seen, seen=model is not None)
    numbers = model is not None and isinstance(model.law, Parrot)
    words = (
        seen if numbers or model is None else "it is a parrot of another make, whose logprobs are not known"
    )
    yield Capability("parrot-logprobs", numbers, words, seen=numbers)


BATCH_INVARIANCE = "batch-invariance"


def _batch_invariance(advertised: Advertised, declared: Collection[str]) -> Capability:
    """Return the capability of results that depend only on the request, as declared. Checks verify it."""
    says = "the server says that it is deterministic" if advertised.deterministic else ""
    words = (
        "declared" if BATCH_INVARIANCE in declared else "no declaration or document of the server tells it"
    )
    present = advertised.deterministic or BATCH_INVARIANCE in declared
    return Capability(BATCH_INVARIANCE, present, says or words, advertised=says)


DECLARED_RULE = "declared-logprob-rule"


def _logprob_rules(
    shown: Answer | None, advertised: Advertised, declared: Collection[str]
) -> Iterable[Capability]:
    """Yield the declared rules of output logprobs. Checks verify them."""
    claims = {advertised.logprob_rule: "the server tells it"} | dict.fromkeys(declared, "declared")
    named = [name for name in LOGPROB_RULES if name in claims]
    for name in LOGPROB_RULES:
        words = claims.get(name, "no declaration or document of the server tells it")
        present = name in claims and shown is not None
        yield Capability(name, present, words if present or name not in claims else _SHOWN["logprobs"][1])
    words = "; ".join(f"{name}: {claims[name]}" for name in named) if named and shown else _NO_RULE
    yield Capability(DECLARED_RULE, bool(named) and shown is not None, words)


_NO_RULE = (
    f"the rule of the logprobs is not reported; if you know it, declare one of {', '.join(LOGPROB_RULES)}"
)
_WITHOUT_A_RECORD = frozenset({"stream", "stream-errors", "item-streams"})
"""Capabilities that a stream shows even without a record."""


def _seen(name: str, shown: Answer | ControlCall | None, absent: str) -> Capability:
    words = f"seen in {shown.exchange.name}" if shown else absent
    return Capability(name, shown is not None, words, seen=shown is not None)


def _advertised_words(advertised: Advertised) -> dict[str, str]:
    """Return the capabilities that a server advertises, each with the source in words."""
    stated: dict[str, str] = {}
    if advertised.mirrors:
        words = f"advertised by sampling_backend {advertised.sampling_backend!r}"
        stated |= {"mirror-sampler": words, "customized-info": words}
    if advertised.delivery is not None:
        stated[str(advertised.delivery)] = f"the server advertises {advertised.delivery} streams"
    return stated


_TRUSTED = ("mirror-sampler", "customized-info", "constraints")
"""Capabilities taken as advertised, because their absence from an answer may be the fault to find."""


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
    seen = _Effects()
    for stream in streams:
        seen.add(stream)
    found = [_seen(name, seen.shown.get(name), absent) for name, (_, absent) in _SHOWN.items()]
    mode, length, ranks = advertised.delivery, advertised.context_length, advertised.dp_size
    without = "the server says that it runs without a tokenizer" if advertised.tokenizer is False else ""
    for name, words, absent in (
        ("advertised-mode", f"{mode} streams" if mode else "", "no delivery mode"),
        ("context-length", f"a context of {length}" if length else "", "no context length"),
        ("adapters", ", ".join(sorted(advertised.adapters)), "no adapters"),
        ("dp-size", f"{ranks} data-parallel ranks" if ranks else "", "no number of data-parallel ranks"),
    ):
        says = f"the server advertises {words or absent}"
        found.append(Capability(name, words != "", says, seen=words != ""))
    absent = "no endpoint says that the server has no tokenizer"
    found.append(Capability("no-tokenizer", without != "", without or absent, seen=without != ""))
    found += _known_answers(model)
    found.append(_batch_invariance(advertised, declared))
    found.append(seen.interval(advertised))
    found += seen.modes()
    found += _logprob_rules(seen.shown.get("logprobs"), advertised, declared)
    found += _controlled(seen.names, tuple(calls))
    stated = _advertised_words(advertised) | seen.promised
    return {
        capability.name: _with_sources(
            capability, stated.get(capability.name, ""), capability.name in declared
        )
        for capability in found
    }


def _with_sources(known: Capability, stated: str, declared: bool) -> Capability:
    if stated and not known.present and known.name in _TRUSTED:
        known = replace(known, present=True, established=stated)
    return replace(known, advertised=known.advertised or stated, declared=declared)


def known_capabilities() -> dict[str, str]:
    """Return all capabilities that a user can declare, each with a description of its absence."""
    return {name: absent.established for name, absent in capabilities((), Advertised()).items()}
