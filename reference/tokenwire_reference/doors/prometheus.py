"""Meters in Prometheus' text exposition format, under the names that SGLang or vLLM gives them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from tokenwire_reference.core.load import EngineLoad
from tokenwire_reference.doors.meters import SECONDS, Histogram, Meters
from tokenwire_reference.server_args import ServerArgs

METRICS_TYPE = "text/plain; version=0.0.4"


def exposition(args: ServerArgs, meters: Meters, load: EngineLoad) -> str:
    """All metrics of a server, each with its help and type; the text ends in a newline."""
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
    """Buckets count everything up to their bound, as the format wants it."""
    upto = list(accumulate(histogram.counts))
    for bound, count in zip((*SECONDS, "+Inf"), upto, strict=True):
        yield f'{name}_bucket{{{label},le="{bound}"}} {count}'
    yield f"{name}_sum{{{label}}} {histogram.total}"
    yield f"{name}_count{{{label}}} {upto[-1]}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
