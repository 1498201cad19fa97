"""The engine on one core beside transformers: mixed requests, one model of random weights, in one run.

    python benchmarks/engine.py                        ends with two tables
    python benchmarks/engine.py --write DIRECTORY      keeps the numbers there, for the documentation

Ours keeps batch invariance: ids and logprobs do not depend on what else runs. Beside it run transformers'
continuous batching, and its `generate` over one batch of prompts of one length and outputs of one length, the
best case of a batch that never changes. All sides take turns; what counts is processor time, with one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AttentionInterface, GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.attention import ATTENTION_NAME, paged_attention
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel, probe_shapes
from tokenwire_reference.core.request import Request, SamplingParams

REQUESTS = 32
Asked = Sequence[tuple[tuple[int, ...], int]]
"""Prompts, and how many tokens are wanted."""


@dataclass(frozen=True)
class Compared:
    """Costs of both sides for the same requests."""

    name: str
    tokens: int
    """The number of generated tokens."""
    seconds: dict[str, float]
    """Seconds of processor time."""


def config(attention: str) -> Qwen2Config:
    """46 million parameters."""
    return Qwen2Config(
        vocab_size=16000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attn_implementation=attention,
        eos_token_id=None,
        pad_token_id=0,
    )


def module_with(attention: str) -> Any:
    """The same weights for every side."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config(attention)).eval().requires_grad_(requires_grad=False)


def ours() -> LoadedModel:
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    module = module_with(ATTENTION_NAME)
    return LoadedModel(
        name="random",
        module=module,
        tokenizer=None,
        vocab_size=module.config.vocab_size,
        eos_token_ids=frozenset(),
        context_length=module.config.max_position_embeddings,
        shapes=probe_shapes(module),
    )


def mixed(most: int) -> Asked:
    """Prompts and outputs of lengths from an eighth of the most on."""
    drawn = random.Random(0)
    return [
        (tuple(drawn.randrange(16000) for _ in range(drawn.randrange(most // 8, most))), length)
        for length in (drawn.randrange(most // 8, most) for _ in range(REQUESTS))
    ]


def equal(most: int) -> Asked:
    drawn = random.Random(1)
    return [(tuple(drawn.randrange(16000) for _ in range(most // 2)), most // 2) for _ in range(REQUESTS)]


def run_ours(engine: Engine, asked: Asked) -> tuple[list[list[int]], list[float], list[float]]:
    """Return the outputs; seconds of the processor to each request's first token, and between its tokens."""
    begun = time.process_time()
    requests = [
        Request(f"r{number}", prompt, SamplingParams(temperature=0.0, max_new_tokens=length, ignore_eos=True))
        for number, (prompt, length) in enumerate(asked)
    ]
    for request in requests:
        engine.add(request)
    last: dict[str, float] = {}
    first, between = [], []
    while not engine.idle:
        touched, now = engine.step(), time.process_time()
        for request in touched:
            if request.rid in last:
                between.append(now - last[request.rid])
            else:
                first.append(now - begun)
            last[request.rid] = now
    return [request.output_ids for request in requests], first, between


def run_continuous(module: Any, asked: Asked) -> list[list[int]]:
    """Continuous batching by transformers, each request with its own budget."""
    longest = max(length for _, length in asked)
    wanted = GenerationConfig(max_new_tokens=longest, do_sample=False, eos_token_id=-1)
    answers: dict[str, list[int]] = {}
    room = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=544)
    with module.continuous_batching_context_manager(
        generation_config=wanted, continuous_batching_config=room, warmup=False
    ) as manager:
        names = [manager.add_request(list(prompt), max_new_tokens=length) for prompt, length in asked]
        while len(answers) < len(names):
            answer = manager.get_result(timeout=60)
            if answer is None:
                raise RuntimeError("transformers' continuous batching gave nothing for a minute")
            if answer.is_finished():
                answers[answer.request_id] = list(answer.generated_tokens)
    return [answers[name] for name in names]


def run_generate(module: Any, asked: Asked) -> list[list[int]]:
    prompts, length = torch.tensor([prompt for prompt, _ in asked]), asked[0][1]
    output = module.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        min_new_tokens=length,
        max_new_tokens=length,
        eos_token_id=None,
    )
    return [row[prompts.shape[1] :].tolist() for row in output]


def timed(run: Callable[[], list[list[int]]], asked: Asked) -> float:
    """Seconds of the processor for a run, which must give as many tokens as were asked for."""
    begun = time.process_time()
    outputs = run()
    seconds = time.process_time() - begun
    if [len(output) for output in outputs] != [length for _, length in asked]:
        raise RuntimeError(f"asked for {[length for _, length in asked]}, got {list(map(len, outputs))}")
    return seconds


def compare(name: str, asked: Asked, sides: dict[str, Callable[[], list[list[int]]]], turns: int) -> Compared:
    taken = [[timed(run, asked) for run in sides.values()] for _ in range(turns)]
    seconds = [statistics.median(side) for side in zip(*taken, strict=True)]
    return Compared(name, sum(length for _, length in asked), dict(zip(sides, seconds, strict=True)))


def percentiles(seconds: Sequence[float]) -> list[float]:
    """Return the 50th, 90th and 99th, in milliseconds."""
    cut = statistics.quantiles(seconds, n=100)
    return [1e3 * cut[percent - 1] for percent in (50, 90, 99)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=2, help="how often the sides take turns")
    parser.add_argument("--most", type=int, default=128, help="tokens of a prompt, and of an output")
    parser.add_argument("--write", type=Path, help="a directory for engine.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    engine = make_engine(ours(), EngineArgs(max_running_requests=REQUESTS, prefix_caching=False))
    static, continuous = module_with("sdpa"), module_with("sdpa")
    mix, even = mixed(asked.most), equal(asked.most)
    with torch.inference_mode():
        compared = [
            compare(
                "mixed lengths",
                mix,
                {
                    "tokenwire": lambda: run_ours(engine, mix)[0],
                    "continuous batching": lambda: run_continuous(continuous, mix),
                },
                asked.turns,
            ),
            compare(
                "equal lengths",
                even,
                {
                    "tokenwire": lambda: run_ours(engine, even)[0],
                    "generate": lambda: run_generate(static, even),
                },
                asked.turns,
            ),
        ]
    _, first, between = run_ours(engine, mix)
    figures = {
        "compared": [asdict(item) for item in compared],
        "first": percentiles(first),
        "between": percentiles(between),
    }
    console = Console()
    table = Table(title=f"{REQUESTS} requests, 46 million parameters, one thread", title_justify="left")
    for column in ("requests", "side", "tokens/s", "tokenwire is faster by"):
        table.add_column(column, justify="right")
    for item in compared:
        for side, seconds in item.seconds.items():
            ratio = seconds / item.seconds["tokenwire"]
            table.add_row(item.name, side, f"{item.tokens / seconds:.0f}", f"{ratio:.2f}")
    console.print(table)
    table = Table(title="tokenwire, mixed lengths: processor time", title_justify="left")
    for column in ("", "p50", "p90", "p99"):
        table.add_column(column, justify="right")
    table.add_row("to the first token", *(f"{item:.0f} ms" for item in figures["first"]))
    table.add_row("between two tokens", *(f"{item:.0f} ms" for item in figures["between"]))
    console.print(table)
    if asked.write:
        (asked.write / "engine.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
