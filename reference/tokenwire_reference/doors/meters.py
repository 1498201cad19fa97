"""Counts for `/metrics`, named as in SGLang or in vLLM."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from tokenwire_reference.core.load import EngineLoad
from tokenwire_reference.server_args import ServerArgs

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of every histogram."""


@dataclass
class Histogram:
    """Counts of times in buckets; the last bucket has no bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a time, or several equal ones at once."""
        self.counts[bisect_left(SECONDS, seconds)] += times
        self.total += seconds * times


@dataclass
class Meters:
    """All counts.

    Output tokens are counted when they are emitted, and prompt tokens when their request ends. Used on the
    event loop only.
    """

    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    first_token: Histogram = field(default_factory=Histogram)
    between_tokens: Histogram = field(default_factory=Histogram)
    end_to_end: Histogram = field(default_factory=Histogram)

    def emitted(self, tokens: int, before: int, since_start: float, since_last: float) -> None:
        """Count a row of `tokens` new tokens, before which `before` tokens were emitted.

        The times are in seconds.
        """
        if tokens == 0:
            return
        self.generation_tokens += tokens
        if before == 0:
            self.first_token.observe(since_start)
        else:
            self.between_tokens.observe(since_last / tokens, tokens)

    def ended(self, *, prompt_tokens: int, cached_tokens: int, seconds: float, aborted: bool) -> None:
        """Count a request that ended."""
        self.requests += 1
        self.aborted += aborted
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.end_to_end.observe(seconds)


METRICS_TYPE = "text/plain; version=0.0.4"


def exposition(args: ServerArgs, meters: Meters, load: EngineLoad) -> str:
    """Return all metrics of a server in Prometheus' text exposition format, each with its help and type."""
    prefix, label = args.api_dialect, f'model_name="{_escaped(args.model_name)}"'
    vllm = args.api_dialect == "vllm"
    counters = {
        "prompt_tokens_total": ("Prompt tokens of the requests that ended.", meters.prompt_tokens),
        "generation_tokens_total": ("Tokens emitted.", meters.generation_tokens),
        "cached_tokens_total": ("Prompt tokens that came from the cache.", meters.cached_tokens),
        "num_requests_total": ("Requests that ended.", meters.requests),
        "num_aborted_requests_total": ("Requests that were aborted.", meters.aborted),
        "cache_storage_failures_total": ("Pages that storage lost or damaged.", load.storage_failures),
    }
    gauges = {
        "num_requests_running" if vllm else "num_running_reqs": ("Requests that run.", load.running),
        "num_requests_waiting" if vllm else "num_queue_reqs": ("Requests that wait.", load.waiting),
        "kv_cache_usage_perc" if vllm else "token_usage": (
            "Share of the KV cache that live requests hold.",
            load.used_tokens / load.total_tokens,
        ),
    }
    histograms = {
        "time_to_first_token_seconds": ("From the request to its first token.", meters.first_token),
        "inter_token_latency_seconds": ("Between two tokens of a request.", meters.between_tokens),
        "e2e_request_latency_seconds": ("From the request to its end.", meters.end_to_end),
    }
    lines: list[str] = []
    for kind, numbers in (("counter", counters), ("gauge", gauges)):
        for name, (words, value) in numbers.items():
            lines += [*_about(f"{prefix}:{name}", words, kind), f"{prefix}:{name}{{{label}}} {value}"]
    for name, (words, histogram) in histograms.items():
        lines += [*_about(f"{prefix}:{name}", words, "histogram")]
        lines += _samples(f"{prefix}:{name}", label, histogram)
    return "\n".join(lines) + "\n"


def _about(name: str, words: str, kind: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


def _samples(name: str, label: str, histogram: Histogram) -> Iterator[str]:
    """Yield the samples of a histogram.

    Each bucket counts all values up to its bound, as the format requires.
    """
    upto = list(accumulate(histogram.counts))
    for bound, count in zip((*SECONDS, "+Inf"), upto, strict=True):
        yield f'{name}_bucket{{{label},le="{bound}"}} {count}'
    yield f"{name}_sum{{{label}}} {histogram.total}"
    yield f"{name}_count{{{label}}} {upto[-1]}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
