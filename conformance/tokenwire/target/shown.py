"""Capabilities that a single answer can show: a table with one test for each capability.

Only the effect counts, because status 200 does not show that an option was used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from tokenwire.constraint import UntoldError
from tokenwire.dialects.dialect import (
    arrays_of,
    dialect_of,
    gives_results,
    is_chat,
    is_ranked,
    policy_of,
)
from tokenwire.dialects.logprobs import has_ranks
from tokenwire.record import Answer, Choice, Delivery, Emission, Stream, fact, integer
from tokenwire.wire.exchange import Ending

LOGPROBS_LENGTH = "output_token_logprobs_length"
MIRRORED_ID = "mirror_token_id"
_OK = 200


def _any(test: Callable[[Emission], object]) -> Callable[[Stream], bool]:
    def shown(stream: Stream) -> bool:
        # A generator would take twice as long as these loops, which most tests run to the end of the stream.
        for choice in stream.choices:
            for emission in choice.emissions:
                if test(emission):
                    return True
        return False

    return shown


def _choice(test: Callable[[Choice], object]) -> Callable[[Stream], bool]:
    return lambda stream: any(map(test, stream.choices))


def _holds(name: str) -> Callable[[Stream], bool]:
    """Return a test that is True if a choice has a value other than null under a name."""
    return _choice(lambda choice: name in choice.held)


def _held(name: str, test: Callable[[Emission], object]) -> Callable[[Stream], bool]:
    """Return a test like `_any` that first checks if a choice has the field at all, because few choices have
    it.
    """
    return _choice(lambda choice: name in choice.held and any(map(test, choice.emissions)))


def _filled(name: str) -> Callable[[Stream], bool]:
    """Return a test that is True if a detail of a choice is not empty and not zero in any emission."""
    return _held(name, lambda emission: emission.details.get(name))


def _above_zero(name: str) -> Callable[[Stream], bool]:
    """Return a test that is True if a counter of a choice is above 0 in any emission."""
    return _held(name, lambda emission: (emission.counter(name) or 0) > 0)


def _server_series(emission: Emission) -> list[str]:
    """Return the names of the series that come from the server itself, not from a custom sampler."""
    return [name for name, value in emission.series.items() if value and name not in emission.customized]


def _ended_by_stop_string(stream: Stream) -> bool:
    """True if a stop string may have ended a choice. Not every server reports which stop it was."""
    finishes = (choice.finish for choice in stream.choices if stream.asked.stop)
    return any(
        f is not None and f.type == "stop" and f.matched in (None, *stream.asked.stop) for f in finishes
    )


def _says_what_is_forced(stream: Stream) -> bool:
    """True if the text of a choice is the only text that its grammar allows."""
    dialect = dialect_of(stream)
    forced = (
        dialect.request.says.text(stream.exchange.request.body)
        if dialect is not None and dialect.request.says
        else None
    )
    return bool(forced) and any(choice.text == forced for choice in stream.choices)


def _keeps_its_constraint(stream: Stream) -> bool | None:
    """True if a choice satisfies the single constraint of its request. None if this cannot be decided."""
    asked, finished = stream.asked, (choice for choice in stream.choices if choice.finish is not None)
    texts = [choice.text for choice in finished if choice.text is not None]
    try:
        known = len(asked.constraints) == 1 and bool(texts)
        return any(map(asked.constraints[0].admits, texts)) if known else None
    except UntoldError:
        return None


@fact(Stream)
def drops_its_constraint(stream: Stream) -> bool:
    """True if no choice satisfies the single constraint of its request."""
    return _keeps_its_constraint(stream) is False


def _counts_tokens(stream: Stream) -> bool:
    """True if the answer reports its number of tokens by ids, a counter or the usage."""
    counted = _has_ids(stream) or _holds("completion_tokens")(stream)
    return counted or "completion_tokens" in (stream.usage or {})


@fact(Stream)
def cached_tokens(stream: Stream) -> int | None:
    """Return the number of cached prompt tokens by the choices and the usage. None if neither reports it."""
    details = (stream.usage or {}).get("prompt_tokens_details")
    found: list[Any] = [emission.counters.get("cached_tokens") for emission in stream.emissions()]
    found.append(details.get("cached_tokens") if isinstance(details, Mapping) else None)
    return max((count for count in map(integer, found) if count is not None), default=None)


def _is_stream(stream: Stream) -> bool:
    """True if a request for a stream was answered with a stream, even if it was cut off."""
    exchange = stream.exchange
    media_type = (exchange.header("content-type") or "").partition(";")[0].strip().lower()
    is_one = exchange.status == _OK and media_type == "text/event-stream"
    cut = exchange.ending is Ending.TRUNCATED
    is_one = is_one and bool(stream.events or stream.unterminated or cut)
    return stream.asked.stream and (stream.answered or (is_one and not stream.refused))


@fact(Stream)
def least_inner_step(stream: Stream) -> int:
    """Return the minimum number of ids in an event between the first and the last event of a choice.

    0 if there are fewer than two such events, because a single event may have many ids by chance.
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
    """Return the entries of a series. Empty if the series is not a list."""
    entries = emission.series.get(series)
    return entries if isinstance(entries, list) else []


def _tells_all_bytes(stream: Stream) -> bool:
    emissions = (emission for choice in stream.choices for emission in choice.emissions)
    entries = [entry for emission in emissions for entry in _listed(emission, "logprobs_content")]
    return bool(entries) and all(isinstance(entry, dict) and entry.get("bytes") for entry in entries)


def _has_text_offsets(emission: Emission) -> bool:
    return any(type(offset) is int and offset >= 0 for offset in _listed(emission, "text_offset"))


def _items_of(stream: Stream) -> str:
    """Return the name of the endpoint's event grammar. Empty if the endpoint has no typed items."""
    dialect = dialect_of(stream)
    return dialect.grammar_name if dialect is not None else ""


_has_ids = _choice(lambda choice: choice.output_ids is not None)
_has_prompt_ids = _any(lambda emission: emission.prompt_token_ids is not None)
_holds_meta_info = _holds("meta_info")


def _tito_chat(stream: Stream) -> bool:
    return is_chat(stream) and (_has_prompt_ids(stream) or _holds_meta_info(stream) or _has_ids(stream))


BY_ANSWER: Mapping[str, tuple[Callable[[Stream], bool], str]] = {
    "stream": (_is_stream, "no request for a stream was answered by one"),
    "output-ids": (_has_ids, "no answer carries output ids"),
    "results": (gives_results, "no answer is the result of an input, such as its vector"),
    "ranked-results": (is_ranked, "no answer ranks its results"),
    "text": (_any(lambda e: e.text), "no answer carries text"),
    "completion-tokens": (_holds("completion_tokens"), "no choice counts its completion_tokens"),
    "token-count": (_counts_tokens, "no answer reports its number of tokens"),
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
    "prompt-chosen-logprobs": (
        lambda s: (
            (bool(s.asked.prompt_chosen) and _filled("prompt_token_id_logprobs")(s))
            or (
                bool(s.asked.chosen_ids)
                and _any(lambda e: e.prompt_series.get("input_token_ids_logprobs"))(s)
            )
        ),
        "no answer carries the logprobs of chosen ids along its prompt",
    ),
    "prompt-logprobs": (_any(lambda e: any(e.prompt_series.values())), "no answer carries prompt logprobs"),
    "chat-logprobs": (lambda s: is_chat(s) and _filled("logprobs")(s), "no chat answer carries logprobs"),
    "chat-token-bytes": (
        lambda s: is_chat(s) and _tells_all_bytes(s),
        "no chat answer has logprobs with the bytes of every token",
    ),
    "completion-logprobs": (
        lambda s: not is_chat(s) and _holds("token_logprobs")(s),
        "no answer carries the logprobs of completions",
    ),
    "text-offsets": (
        _held("text_offset", _has_text_offsets),
        "no answer reports where its tokens begin in the text",
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
    "cached-tokens": (lambda s: cached_tokens(s) is not None, "no answer counts cached_tokens"),
    "cached-tokens-details": (
        _holds("cached_tokens_details"),
        "no answer carries cached_tokens_details that are not null",
    ),
    "request-id": (_holds("request_id"), "no answer carries a request id"),
    "prefix-cache": (lambda s: (cached_tokens(s) or 0) > 0, "no answer counts cached tokens"),
    "retractions": (_above_zero("num_retractions"), "no answer reports that it was preempted"),
    "dp-rank": (
        _held("dp_rank", lambda e: e.details.get("dp_rank") is not None),
        "no answer reports the data-parallel rank that ran it",
    ),
    "batch": (lambda s: s.asked.prompts > 1, "no request with several prompts was answered"),
    "stream-errors": (
        lambda s: s.asked.stream and s.exchange.status == _OK and s.error is not None,
        "no stream carried an error event",
    ),
    "usage": (lambda s: s.usage is not None, "no answer carries a usage object"),
    "stop-patterns": (lambda s: bool(s.asked.stop_regex), "no request with stop patterns was answered"),
    "stop-strings": (_ended_by_stop_string, "no answer ended at a stop string"),
    "chat": (is_chat, "no chat request was answered"),
    "tito-chat": (_tito_chat, "no chat answer carries prompt_token_ids, output ids or meta_info"),
    "chat-meta-info": (lambda s: is_chat(s) and _holds_meta_info(s), "no chat answer carries meta_info"),
    "chat-streams-without-ids": (
        lambda s: is_chat(s) and policy_of(s).tito_stream_refused,
        "no tested chat dialect refuses token-in-token-out fields in streams",
    ),
    "forced-text": (_says_what_is_forced, "no grammar forced the model to generate a text"),
    "constraints": (
        lambda s: _keeps_its_constraint(s) is True,
        "no answer satisfies the constraint of its request",
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
    "weight-versions": (_filled("weight_versions"), "no answer reports which weights generated which tokens"),
    "token-arrays": (
        lambda s: any(_filled(rule.name)(s) for rule in arrays_of(s)),
        "no answer carries an array of rows for tokens, such as routed experts",
    ),
    "routed-experts": (_filled("routed_experts"), "no answer carries routed experts"),
    "hidden-states": (_filled("hidden_states"), "no answer carries hidden states"),
    "draft-counts": (_filled("draft_rounds"), "no answer counts drafts"),
    "items": (lambda s: _items_of(s) != "", "no answer is a list of typed items"),
    "item-streams": (
        lambda s: _items_of(s) != "" and _is_stream(s),
        "no request for a stream of typed items was answered",
    ),
    "responses": (lambda s: _items_of(s) == "responses", "no request to /v1/responses was answered"),
    "messages": (lambda s: _items_of(s) == "messages", "no request to /v1/messages was answered"),
    "response-token-ids": (lambda s: is_chat(s) and _has_ids(s), "no chat answer carries output ids"),
}
"""Capabilities that a single answer can show: the test of an answer, and a description of the absence."""


@fact(Stream)
def _shown_by_answer(stream: Stream) -> frozenset[str]:
    """Return the names of all capabilities that an answer shows."""
    return frozenset(name for name, (shows, _) in BY_ANSWER.items() if shows(stream))


def shows(name: str) -> Callable[[Answer], bool]:
    """Return a test that is True if an answer shows a capability.

    It uses the emissions of an answer in memory, or the cached facts of an evicted answer.
    """
    shown, _ = BY_ANSWER[name]
    return lambda answer: shown(answer) if isinstance(answer, Stream) else name in _shown_by_answer(answer)


WITHOUT_A_RECORD = frozenset({"stream", "stream-errors", "item-streams"})
"""Capabilities that a stream can show even without any choice."""
