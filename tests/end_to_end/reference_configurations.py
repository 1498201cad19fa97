"""The ways to start the reference engine that together show every sentence of the specification."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from forked_program import run_forked

from tokenwire.judging.verdict import ExitStatus, Verdict

Report = dict[str, Any]
_MIRROR = ("--sampling-backend", "mirror")
_ADAPTERS = ("--lora-paths", "first=builtin:1", "--lora-paths", "second=builtin:2")


@dataclass(frozen=True)
class Configuration:
    """How the reference is started, and how it is asked."""

    flags: tuple[str, ...]
    words: tuple[str, ...] = ("--budget", "quick", "--dialect", "sglang-generate")
    """Of `tokenwire check`. What the engine does, one door shows as well as all."""
    own_worker: bool = False
    """Ask it as a gateway that is its own worker."""

    @property
    def dialects(self) -> list[str]:
        return [after for word, after in pairwise(self.words) if word == "--dialect"]


_STANDARD = ("--budget", "standard")
_OWN_DOORS = {
    family: tuple(word for dialect in dialects for word in ("--dialect", dialect))
    for family, dialects in {
        "SGLang's": (
            *("sglang-generate", "sglang-completions", "sglang-chat"),
            *("openai-embeddings", "sglang-encode", "sglang-classify", "vllm-rerank", "vllm-score"),
        ),
        "vLLM's": ("vllm-generate", "vllm-completions", "vllm-chat", "vllm-classify"),
    }.items()
}
"""In both of its shapes, the reference opens the other's own door as well; each is asked in its own."""
_SCRIPTS = tuple(
    word
    for scenario in ("characters", "tails", "stops", "prompts", "logprobs")
    for word in ("--scenario", f"script-{scenario}")
)
_SCRIPT_DIALECTS = tuple(
    word
    for dialect in ("sglang-generate", "vllm-completions", "openai-chat")
    for word in ("--dialect", dialect)
)
"""Prompts of ids, in batches; a completion's logprobs; messages through the template."""

_WITH_PARSERS = (
    *("channels", "tool-choice", "chat-budget", "chat-messages", "item-turns"),
    *("conversations", "custom-tools", "reasoning-controls", "plain-path", "response-life", "usual-shapes"),
    *("split-pipeline", "split-completions", "conversations-at-once", "counted-prompts"),
)
CONFIGURATIONS = {
    "cumulative": Configuration(
        (
            *(*_MIRROR, "--enable-metrics", "--enable-cache-report", "--enable-prefill-weight-versions"),
            *_ADAPTERS,
        ),
        (*_STANDARD, *_OWN_DOORS["SGLang's"]),
    ),
    "vLLM's shapes": Configuration(
        ("--api-dialect", "vllm", *_ADAPTERS), (*_STANDARD, *_OWN_DOORS["vLLM's"])
    ),
    # Messages have images; their prompt_token_ids are sent back to /generate.
    "images": Configuration(
        ("--model", "builtin:tiny-mm"),
        ("--budget", "quick", "--dialect", "sglang-chat", "--dialect", "sglang-generate"),
    ),
    "incremental": Configuration((*_MIRROR, "--incremental-streaming-output")),
    "every fourth token": Configuration(
        (*_MIRROR, "--incremental-streaming-output", "--stream-interval", "4")
    ),
    "experts": Configuration(
        ("--model", "builtin:tiny-moe"), ("--budget", "quick", "--scenario", "token-arrays")
    ),
    # What the parrot says repeats itself, so that whole drafts are accepted.
    "n-gram speculation": Configuration(
        (
            *(*_MIRROR, "--model", "builtin:parrot", "--speculative-algorithm", "NGRAM"),
            *("--test-retract-interval", "7", "--chunked-prefill-size", "128"),
        )
    ),
    "parsers": Configuration(
        (
            *("--model", "builtin:parrot", "--api-dialect", "vllm"),
            *("--tool-call-parser", "qwen3_xml", "--reasoning-parser", "qwen3"),
        ),
        tuple(word for scenario in _WITH_PARSERS for word in ("--scenario", scenario)),
    ),
    "calls in the form of Hermes": Configuration(
        ("--model", "builtin:parrot", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
        (
            *("--scenario", "constraints", "--scenario", "bad-constraints", "--scenario", "tool-choice"),
            *("--dialect", "sglang-chat"),
        ),
    ),
    "scripts": Configuration(
        ("--model", "builtin:parrot", "--api-dialect", "vllm", "--incremental-streaming-output"),
        (*("--budget", "quick"), *_SCRIPT_DIALECTS, *_SCRIPTS),
    ),
    "time-outs": Configuration(
        ("--max-running-requests", "2", "--request-waiting-timeout", "0.2"),
        (
            *("--declare", "waiting-timeout", "--scenario", "waiting-timeout"),
            *("--dialect", "sglang-generate"),
        ),
    ),
    "retractions": Configuration((*_MIRROR, "--test-retract-interval", "5")),
    "no tokenizer": Configuration((*_MIRROR, "--skip-tokenizer-init")),
    "storage tiers": Configuration(
        (
            *_MIRROR,
            *("--enable-hierarchical-cache", "--hicache-size-pages", "8"),
            *("--hicache-storage-backend", "file", "--max-total-tokens", "8192"),
        )
    ),
    "streams that fail": Configuration(
        (*_MIRROR, "--enable-faults"),
        ("--header", "x-tokenwire-fault: stream-fails", "--scenario", "greedy-stream"),
    ),
    "its own worker": Configuration(
        (*_MIRROR, "--incremental-streaming-output"), ("--scenario", "gateway"), own_worker=True
    ),
}

Start = Callable[..., str]
"""Start the reference with flags; its URL."""


def tokenwire(folder: Path, *words: str) -> Report:
    """Run the command line, which must find no violation; return its JSON report.

    Where `--requirement` narrows the run, it may also end with nothing evaluated.
    """
    ran = run_forked("tokenwire", *words, "--json", str(folder / "report.json"), folder=folder)
    accepted = {ExitStatus.CONFORMS} | ({ExitStatus.NOTHING_EVALUATED} if "--requirement" in words else set())
    assert ran.returncode in accepted, ran.stdout + ran.stderr
    report: Report = json.loads((folder / "report.json").read_text("utf-8"))
    return report


def check(name: str, start: Start, folder: Path, *words: str) -> Report:
    """Check the reference in one configuration, as a user does."""
    configuration = CONFIGURATIONS[name]
    flags = configuration.flags
    if "--hicache-storage-backend" in flags:
        flags = (*flags, "--hicache-storage-dir", str(folder / "pages"))
    url = start(*flags)
    worker = ("--worker", url) if configuration.own_worker else ()
    return tokenwire(folder, "check", "--target", url, *configuration.words, *worker, *words)


def verdicts(report: Report) -> dict[str, set[Verdict]]:
    """The verdicts on each requirement, over all scenarios."""
    found: dict[str, set[Verdict]] = {}
    for row in report["verdicts"]:
        found.setdefault(row["requirement"], set()).add(Verdict(row["verdict"]))
    return found
