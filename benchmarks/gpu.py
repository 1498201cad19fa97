"""The engine on a device: is it right there, and how fast beside `generate` of transformers?

    python benchmarks/gpu.py                      on a machine with a CUDA device
    python benchmarks/gpu.py --device cpu         the same questions, where there is none

Runs the engine's own tests there, prints a table of checks and tables of speeds; all sides of a comparison
run in this one process. Ends with status 1 where a check fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if "--device" in sys.argv and sys.argv[sys.argv.index("--device") + 1] == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from rich.console import Console
from rich.table import Table

from tokenwire_reference.engine.engine import Engine
from tokenwire_reference.models.loaded_model import LoadedModel
from tokenwire_reference.models.loading import load_model
from tokenwire_reference.request import Request, SamplingParams

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "fixtures" / "models"
TESTS = (
    *("attention", "batch_invariance", "decode_graphs", "engine", "engine_control", "model", "prefix_tiers"),
    *("sampling", "speculative_decoding"),
)
"""Those of `tests/reference` that run on every device there is."""
PROMPT_TOKENS = 24


@dataclass(frozen=True)
class Outcome:
    check: str
    holds: bool
    detail: str


def prompts(count: int) -> list[tuple[int, ...]]:
    return [tuple(10 + (13 * row + 29 * i) % 240 for i in range(PROMPT_TOKENS)) for row in range(count)]


def requests(count: int, new_tokens: int, *, temperature: float = 0.0) -> list[Request]:
    sampling = SamplingParams(
        temperature=temperature, sampling_seed=7, max_new_tokens=new_tokens, ignore_eos=True
    )
    return [
        Request(f"r{i}", prompt, sampling, return_logprob=True, top_logprobs_num=2)
        for i, prompt in enumerate(prompts(count))
    ]


def run(engine: Engine, wanted: list[Request]) -> list[Request]:
    for request in wanted:
        engine.add(request)
    while not engine.idle:
        engine.step()
    engine.check_integrity()
    return wanted


def bits(request: Request) -> tuple[Any, ...]:
    """Everything that must not depend on the batch."""
    return request.output_ids, request.series


def check_tests() -> Outcome:
    """The engine's own tests, in a process of their own, as Triton is set up when it is imported."""
    files = [f"tests/reference/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        print(ran.stdout, ran.stderr, sep="\n")
    last = (ran.stdout.strip().splitlines() or [ran.stderr])[-1]
    return Outcome("the engine's own tests", ran.returncode == 0, last.strip(" ="))


def check_graphs(name: str, device: str, dtype: str) -> Outcome:
    """Decoding by graphs beside decoding launch by launch."""
    model = load_model(name, device=device, dtype=dtype)
    graphs = run(Engine(model), requests(17, 32, temperature=0.8))
    plain = run(Engine(model, disable_cuda_graph=True), requests(17, 32, temperature=0.8))
    same = sum(bits(one) == bits(other) for one, other in zip(graphs, plain, strict=True))
    return Outcome(f"same bits by graphs, {Path(name).name}, {dtype}", same == 17, f"{same} of 17 requests")


def check_kernel(device: str) -> Outcome:
    """The kernel beside the formula in float64, over a ragged batch of pages in no order."""
    from tokenwire_reference.models.paged_attention_kernel import attend_to_pages

    torch.manual_seed(0)
    page, heads, kv_heads, dim, lengths = 16, 4, 2, 64, [1, 15, 16, 17, 40, 63]
    table = torch.zeros(len(lengths), 4, dtype=torch.int64)
    order = iter(torch.randperm(4 * len(lengths)).tolist())
    for row, length in enumerate(lengths):
        for column in range(-(-length // page)):
            table[row, column] = 1 + next(order)
    keys, values = (torch.randn((4 * len(lengths) + 1) * page, kv_heads, dim) for _ in range(2))
    query = torch.randn(len(lengths), heads, dim)
    worst = 0.0
    output = attend_to_pages(
        query.to(device),
        keys.to(device),
        values.to(device),
        sequence_of=torch.arange(len(lengths), device=device),
        positions=torch.tensor([length - 1 for length in lengths], device=device),
        page_table=table.to(device),
        page_size=page,
        scaling=dim**-0.5,
        window=None,
    ).cpu()
    for row, length in enumerate(lengths):
        at = torch.tensor([int(table[row, i // page]) * page + i % page for i in range(length)])
        k, v = (pool[at].double().repeat_interleave(heads // kv_heads, 1) for pool in (keys, values))
        weights = torch.einsum("hd,nhd->hn", query[row].double(), k).mul(dim**-0.5).softmax(-1)
        worst = max(worst, float((torch.einsum("hn,nhd->hd", weights, v) - output[row].double()).abs().max()))
    return Outcome("kernel against the formula in float64", worst < 1e-2, f"largest difference {worst:.2e}")


def check_same_ids_as_cpu(name: str, device: str) -> Outcome:
    here = run(Engine(load_model(name, device=device)), requests(8, 48))
    there = run(Engine(load_model(name, device="cpu")), requests(8, 48))
    same = sum(mine.output_ids == other.output_ids for mine, other in zip(here, there, strict=True))
    return Outcome(
        f"greedy ids as on the CPU, {Path(name).name}", same == len(here), f"{same} of {len(here)} requests"
    )


def check_batch_invariance(name: str, device: str, dtype: str) -> Outcome:
    model = load_model(name, device=device, dtype=dtype)
    crowd = run(Engine(model), requests(17, 32, temperature=0.8))
    alone = [run(Engine(model), [request])[0] for request in requests(17, 32, temperature=0.8)]
    same = sum(bits(one) == bits(other) for one, other in zip(crowd, alone, strict=True))
    return Outcome(
        f"same bits alone and in a crowd, {Path(name).name}, {dtype}", same == 17, f"{same} of 17 requests"
    )


def seconds(action: Callable[[], object], device: str) -> float:
    """The best of three runs after one to warm up."""
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        action()
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


def decode(model: LoadedModel, count: int, new_tokens: int, *, graphs: bool) -> Callable[[], object]:
    """Greedy tokens by our engine, without logprobs, and without a cache that would spare it the prompts."""
    engine = Engine(model, max_running_requests=count, prefix_caching=False, disable_cuda_graph=not graphs)
    plain = SamplingParams(temperature=0.0, max_new_tokens=new_tokens, ignore_eos=True)
    return lambda: run(engine, [Request(f"r{i}", p, plain) for i, p in enumerate(prompts(count))])


def generate(model: LoadedModel, name: str, count: int, new_tokens: int) -> Callable[[], object]:
    """The same greedy tokens by transformers, as one batch of prompts of equal length."""
    import transformers

    module = (
        transformers.AutoModelForCausalLM.from_pretrained(name, dtype=model.dtype).to(model.device).eval()
    )
    ids = torch.tensor(prompts(count), device=model.device)
    return lambda: module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        eos_token_id=None,
    )


def measure(name: str, device: str, dtype: str, sizes: list[int], new_tokens: int) -> Table:
    table = Table(
        title=f"{Path(name).name}, {dtype}, {device}: greedy tokens per second", title_justify="left"
    )
    for column in ("requests", "tokenwire", "without graphs", "generate", "tokenwire / generate"):
        table.add_column(column, justify="right")
    model = load_model(name, device=device, dtype=dtype)
    for size in sizes:
        ours = seconds(decode(model, size, new_tokens, graphs=True), device)
        launched = seconds(decode(model, size, new_tokens, graphs=False), device)
        theirs = seconds(generate(model, name, size, new_tokens), device)
        tokens = size * new_tokens
        speeds = (f"{tokens / taken:,.0f}" for taken in (ours, launched, theirs))
        table.add_row(str(size), *speeds, f"{theirs / ours:.2f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--model", default=str(MODELS / "tiny-qwen2"), help="a directory that transformers can load"
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--skip-tests", action="store_true", help="leave the engine's own tests out")
    asked = parser.parse_args()
    if asked.device != "cpu" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; use --device cpu")
    torch.set_num_threads(1)
    console = Console(width=100)
    outcomes = [] if asked.skip_tests else [check_tests()]
    outcomes.append(check_kernel(asked.device))
    outcomes += [check_same_ids_as_cpu(name, asked.device) for name in ("builtin:tiny", asked.model)]
    outcomes += [
        check_batch_invariance(asked.model, asked.device, dtype) for dtype in ("float32", "bfloat16")
    ]
    outcomes += [check_graphs(asked.model, asked.device, dtype) for dtype in ("float32", "bfloat16")]
    table = Table(title=f"checks on {asked.device}", title_justify="left")
    for column in ("check", "holds", "detail"):
        table.add_column(column)
    for outcome in outcomes:
        table.add_row(outcome.check, "yes" if outcome.holds else "[bold red]no", outcome.detail)
    console.print(table)
    for dtype in ("float32", "bfloat16"):
        console.print(measure(asked.model, asked.device, dtype, asked.requests, asked.new_tokens))
    return 0 if all(outcome.holds for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
