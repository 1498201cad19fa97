"""Capabilities: what the target can do, as far as its answers show it.

A capability is established by its effect: a 200 to a request that asks for something is not support. What a
server advertises counts only where the effect cannot be told from its absence by looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tokenwire.advertised import Advertised
from tokenwire.record import Delivery, Emission, Stream
from tokenwire.stop_string import stop_string_of

LOGPROBS_LENGTH = "output_token_logprobs_length"
MIRRORED_ID = "mirror_token_id"


@dataclass(frozen=True)
class Capability:
    """Whether the target has something, and how that is known."""

    name: str
    present: bool
    established: str
    """In words, as a clause: `seen in generate/probe-1`, `no answer carries text`."""


def _any(test: Callable[[Emission], object]) -> Callable[[Stream], bool]:
    return lambda stream: any(test(emission) for emission in stream.emissions())


def _own_series(emission: Emission) -> list[str]:
    """The series that the server itself defines, not the sampler."""
    return [name for name, value in emission.series.items() if name not in emission.customized and value]


def is_chat(stream: Stream) -> bool:
    """Whether the stream belongs to a chat endpoint; the dialects of a family are named by their endpoint."""
    return stream.dialect.endswith("-chat")


def _ended_by_stop_string(stream: Stream) -> bool:
    return any(stop_string_of(stream.asked, choice) is not None for choice in stream.choices)


def _counts_tokens(stream: Stream) -> bool:
    """Whether the answer tells how many tokens it has: in ids, a counter of the choice, or its usage."""
    counted = _any(lambda e: e.output_ids is not None or "completion_tokens" in e.counters)
    return "completion_tokens" in (stream.usage or {}) or counted(stream)


def _keeps_interval(stream: Stream) -> bool:
    """Whether the events between first and last are spaced as the request asked, more than one id each."""
    asked = stream.asked.stream_interval or 0
    if not stream.asked.stream or asked < 2:
        return False
    for choice in stream.choices:
        ids = [len(e.output_ids) for e in choice.emissions if e.output_ids]
        sizes = (
            ids
            if choice.delivery is Delivery.INCREMENTAL
            else [b - a for a, b in zip([0, *ids], ids, strict=False)]
        )
        inner = [size for size in sizes[1:-1] if size > 0]
        if inner and min(inner) >= asked:
            return True
    return False


def _tito_chat(stream: Stream) -> bool:
    return is_chat(stream) and _any(
        lambda e: (
            e.prompt_token_ids is not None
            or e.details.get("meta_info") is not None
            or e.output_ids is not None
        )
    )(stream)


_SHOWN: Mapping[str, tuple[Callable[[Stream], bool], str]] = {
    "stream": (lambda s: s.asked.stream, "no request for a stream was answered by one"),
    "output-ids": (_any(lambda e: e.output_ids is not None), "no answer carries output ids"),
    "text": (_any(lambda e: e.text), "no answer carries text"),
    "completion-tokens": (
        _any(lambda e: "completion_tokens" in e.counters),
        "no answer counts completion_tokens",
    ),
    "token-count": (_counts_tokens, "no answer tells how many tokens it has"),
    "series": (_any(lambda e: any(e.series.values())), "no answer carries a per-token series"),
    "customized-info": (_any(lambda e: e.customized), "no answer carries customized_info"),
    "mirror-sampler": (
        _any(lambda e: MIRRORED_ID in e.series),
        "no sampler mirrors the sampled ids into customized_info",
    ),
    "logprobs": (_any(_own_series), "no answer carries output logprobs"),
    "logprobs-length": (
        _any(lambda e: LOGPROBS_LENGTH in e.counters or LOGPROBS_LENGTH in e.details),
        f"no answer carries {LOGPROBS_LENGTH}",
    ),
    "top-logprobs": (
        lambda s: (
            s.asked.top_logprobs > 0 and _any(lambda e: any("top" in name for name in _own_series(e)))(s)
        ),
        "no answer carries the top logprobs that were asked for",
    ),
    "chosen-logprobs": (
        lambda s: (
            bool(s.asked.chosen_ids) and _any(lambda e: any("token_ids" in n for n in _own_series(e)))(s)
        ),
        "no answer carries the logprobs of chosen ids that were asked for",
    ),
    "prompt-logprobs": (_any(lambda e: any(e.prompt_series.values())), "no answer carries prompt logprobs"),
    "input-ids": (lambda s: s.asked.input_ids is not None, "no request with input_ids was answered"),
    "prompt-token-ids": (
        _any(lambda e: e.prompt_token_ids is not None),
        "no answer carries prompt_token_ids",
    ),
    "cached-tokens": (_any(lambda e: "cached_tokens" in e.counters), "no answer counts cached_tokens"),
    "cached-tokens-details": (
        _any(lambda e: e.details.get("cached_tokens_details") is not None),
        "no answer carries cached_tokens_details that are not null",
    ),
    "request-id": (_any(lambda e: e.details.get("request_id") is not None), "no answer carries a request id"),
    "usage": (lambda s: s.usage is not None, "no answer carries a usage object"),
    "stop-strings": (_ended_by_stop_string, "no answer names the stop string that ended it"),
    "chat": (is_chat, "no chat request was answered"),
    "tito-chat": (_tito_chat, "no chat answer carries prompt_token_ids, output ids or meta_info"),
    "response-token-ids": (
        lambda s: is_chat(s) and _any(lambda e: e.output_ids is not None)(s),
        "no chat answer carries output ids",
    ),
}


def _modes(answered: list[Stream]) -> Iterable[Capability]:
    """Cumulative and incremental, by the streams that carry ids where any do: chat streams carry text."""
    streams = [stream for stream in answered if stream.asked.stream]
    with_ids = [stream for stream in streams if _any(lambda e: e.output_ids is not None)(stream)]
    for mode in (Delivery.CUMULATIVE, Delivery.INCREMENTAL):
        seen = next((stream for stream in with_ids or streams if stream.delivery is mode), None)
        words = f"seen in {seen.exchange.name}" if seen else f"no stream is {mode}"
        yield Capability(str(mode), seen is not None, words)


def _interval(answered: list[Stream], advertised: Advertised) -> Capability:
    seen = next((stream for stream in answered if _keeps_interval(stream)), None)
    if seen is not None:
        return Capability("stream-interval", True, f"seen in {seen.exchange.name}")
    if advertised.stream_interval is not None:
        return Capability(
            "stream-interval", True, f"the server advertises stream_interval {advertised.stream_interval}"
        )
    return Capability(
        "stream-interval", False, "neither advertised, nor did any stream keep the interval it was asked for"
    )


def capabilities(streams: Iterable[Stream], advertised: Advertised) -> dict[str, Capability]:
    """All capabilities that requirements speak of, by name."""
    answered = [stream for stream in streams if stream.answered]
    found: dict[str, Capability] = {}
    for name, (shows, absent) in _SHOWN.items():
        seen = next((stream for stream in answered if shows(stream)), None)
        words = f"seen in {seen.exchange.name}" if seen else absent
        found[name] = Capability(name, seen is not None, words)
    if advertised.mirrors:
        for name in ("mirror-sampler", "customized-info"):
            if not found[name].present:
                found[name] = Capability(
                    name, True, f"advertised by sampling_backend {advertised.sampling_backend!r}"
                )
    mode = advertised.delivery
    found["advertised-mode"] = Capability(
        "advertised-mode",
        mode is not None,
        f"the server advertises {mode} streams" if mode else "the server advertises no delivery mode",
    )
    found["stream-interval"] = _interval(answered, advertised)
    found |= {capability.name: capability for capability in _modes(answered)}
    return found
