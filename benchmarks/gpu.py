"""The engine on a device: is it right there, and how fast beside transformers and what the device can do?

    python benchmarks/gpu.py                              on a machine with a CUDA device, in some minutes
    python benchmarks/gpu.py --device cpu --small         the same questions, where there is none
    python benchmarks/gpu.py --write DIRECTORY            keeps the last table there, for the documentation

Runs the engine's own tests there, prints a table of checks and tables of speeds; all sides of a comparison
run in this one process. Ends with status 1 where a check fails.

The workload is that of nano-vllm's benchmark: 256 requests with prompts and outputs of 100 to 1024 tokens,
drawn from seed 0, to a model of random weights in the shapes of Qwen3-0.6B. The bound beside it is counted:
what a device takes to read weights and keys, and for the products, at the speeds that its maker names.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

if "--device" in sys.argv and sys.argv[sys.argv.index("--device") + 1] == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from rich.console import Console
from rich.table import Table

from tokenwire_reference.assembly import ExtraArgs, make_engine
from tokenwire_reference.core.attention import ATTENTION_NAME
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel, probe_shapes
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.loading import load_model

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "fixtures" / "models"
TESTS = (
    *("attention", "batch_invariance", "decode_graphs", "engine", "engine_control", "model", "prefix_tiers"),
    *("sampling", "speculative_decoding"),
)
"""Tests of `tests/reference` that run on every available device."""
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
    graphs = run(make_engine(model), requests(17, 32, temperature=0.8))
    plain = run(
        make_engine(model, extra=ExtraArgs(disable_cuda_graph=True)), requests(17, 32, temperature=0.8)
    )
    same = sum(bits(graph) == bits(other) for graph, other in zip(graphs, plain, strict=True))
    return Outcome(f"same bits by graphs, {Path(name).name}, {dtype}", same == 17, f"{same} of 17 requests")


def check_kernel(device: str) -> Outcome:
    """The kernel beside the formula in float64, over a ragged batch of pages in no order."""
    from tokenwire_reference.extras.paged_attention_kernel import attend_to_pages

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
        tiles=torch.tensor([[row, 1] for row in range(len(lengths))], device=device),
        sequence_of=torch.arange(len(lengths), device=device),
        positions=torch.tensor([length - 1 for length in lengths], device=device),
        page_table=table.to(device),
        page_size=page,
        scaling=dim**-0.5,
        window=None,
    ).cpu()
    for row, length in enumerate(lengths):
        slots = torch.tensor([int(table[row, i // page]) * page + i % page for i in range(length)])
        k, v = (pool[slots].double().repeat_interleave(heads // kv_heads, 1) for pool in (keys, values))
        weights = torch.einsum("hd,nhd->hn", query[row].double(), k).mul(dim**-0.5).softmax(-1)
        worst = max(worst, float((torch.einsum("hn,nhd->hd", weights, v) - output[row].double()).abs().max()))
    return Outcome("kernel against the formula in float64", worst < 1e-2, f"largest difference {worst:.2e}")


def check_same_ids_as_cpu(name: str, device: str) -> Outcome:
    here = run(make_engine(load_model(name, device=device)), requests(8, 48))
    there = run(make_engine(load_model(name, device="cpu")), requests(8, 48))
    same = sum(mine.output_ids == other.output_ids for mine, other in zip(here, there, strict=True))
    return Outcome(
        f"greedy ids as on the CPU, {Path(name).name}", same == len(here), f"{same} of {len(here)} requests"
    )


def check_batch_invariance(name: str, device: str, dtype: str) -> Outcome:
    model = load_model(name, device=device, dtype=dtype)
    crowd = run(make_engine(model), requests(17, 32, temperature=0.8))
    alone = [run(make_engine(model), [request])[0] for request in requests(17, 32, temperature=0.8)]
    same = sum(bits(item) == bits(other) for item, other in zip(crowd, alone, strict=True))
    return Outcome(
        f"same bits alone and in a crowd, {Path(name).name}, {dtype}", same == 17, f"{same} of 17 requests"
    )


def seconds(action: Callable[[], object], device: str) -> float:
    """Return the best of three runs after one to warm up."""
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
    engine = make_engine(
        model,
        EngineArgs(max_running_requests=count, prefix_caching=False),
        extra=ExtraArgs(disable_cuda_graph=not graphs),
    )
    plain = SamplingParams(temperature=0.0, max_new_tokens=new_tokens, ignore_eos=True)
    return lambda: run(engine, [Request(f"r{i}", p, plain) for i, p in enumerate(prompts(count))])


def generate(model: LoadedModel, name: str, count: int, new_tokens: int) -> Callable[[], object]:
    """Return the same greedy tokens by transformers, as one batch of prompts of equal length."""
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


BYTES_PER_SECOND, FLOPS = 4.8e12, 989e12
"""The limits of an H200, for products in bfloat16 without sparsity."""
BESIDE = 64
"""The number of requests for transformers, which takes longer."""


@dataclass(frozen=True)
class Workload:
    prompts: list[list[int]]
    lengths: list[int]

    @classmethod
    def of_nano_vllm(cls, count: int, most: int, vocabulary: int) -> Workload:
        """Drawn in the order of its `bench.py`: 256 requests of up to 1024 tokens want 133,966."""
        drawn = Random(0)
        prompts = [
            [drawn.randint(0, vocabulary) for _ in range(drawn.randint(most // 10, most))]
            for _ in range(count)
        ]
        return cls(prompts, [drawn.randint(most // 10, most) for _ in range(count)])

    def first(self, count: int) -> Workload:
        return Workload(self.prompts[:count], self.lengths[:count])

    @property
    def wanted(self) -> int:
        return sum(self.lengths)


def qwen3(attention: str, device: str, *, small: bool) -> Any:
    """Random weights in the shapes of Qwen3-0.6B; `small` ones to try all this without a GPU."""
    from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

    from tokenwire_reference.core.attention import paged_attention

    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    config = Qwen3Config(
        vocab_size=2000 if small else 151936,
        hidden_size=128 if small else 1024,
        intermediate_size=256 if small else 3072,
        num_hidden_layers=2 if small else 28,
        num_attention_heads=4 if small else 16,
        num_key_value_heads=2 if small else 8,
        head_dim=32 if small else 128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_theta=1e6,
        eos_token_id=None,
        attn_implementation=attention,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return Qwen3ForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(requires_grad=False)


def loaded(module: Any) -> LoadedModel:
    return LoadedModel(
        name="Qwen3-0.6B, random",
        module=module,
        tokenizer=None,
        vocab_size=module.config.vocab_size,
        eos_token_ids=frozenset(),
        context_length=module.config.max_position_embeddings,
        shapes=probe_shapes(module),
    )


def serve_ours(engine: Engine, work: Workload) -> int:
    """Run a workload; how many steps it took."""
    for number, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True)):
        sampling = SamplingParams(temperature=0.6, max_new_tokens=length, ignore_eos=True)
        engine.add(Request(f"r{number}", tuple(prompt), sampling))
    steps = 0
    while not engine.idle:
        engine.step()
        steps += 1
    return steps


def serve_continuous(module: Any, work: Workload) -> None:
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    wanted = GenerationConfig(
        max_new_tokens=max(work.lengths), do_sample=True, temperature=0.6, eos_token_id=-1
    )
    room = ContinuousBatchingConfig(num_blocks=1024, max_batch_tokens=4096)
    with module.continuous_batching_context_manager(
        generation_config=wanted, continuous_batching_config=room
    ) as manager:
        for prompt, length in zip(work.prompts, work.lengths, strict=True):
            manager.add_request(prompt, max_new_tokens=length)
        left = len(work.prompts)
        while left:
            answer = manager.get_result(timeout=120)
            if answer is None:
                raise RuntimeError("continuous batching gave nothing for two minutes")
            left -= answer.is_finished()


def serve_static(module: Any, work: Workload) -> None:
    """One batch of equal lengths, the best case of `generate`."""
    length, most = work.wanted // len(work.lengths), min(map(len, work.prompts))
    ids = torch.tensor([prompt[:most] for prompt in work.prompts], device=module.device)
    module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=0.6,
        min_new_tokens=length,
        max_new_tokens=length,
        eos_token_id=None,
    )


def bound(model: LoadedModel, work: Workload, steps: int) -> float:
    """Seconds that a device takes at least: weights once a step, every key once for each token behind it."""
    weights = sum(weight.numel() for weight in model.module.parameters())
    read = steps * weights * model.dtype.itemsize
    tokens = 0
    for prompt, length in zip(work.prompts, work.lengths, strict=True):
        read += model.bytes_per_token() * sum(range(len(prompt), len(prompt) + length))
        tokens += len(prompt) + length
    return max(read / BYTES_PER_SECOND, 2 * weights * tokens / FLOPS)


def timed_ours(work: Workload, device: str, *, small: bool, invariant: bool) -> tuple[float, float]:
    """Seconds that our engine takes for a workload, and those that the device takes at least."""
    rows, model = len(work.prompts), loaded(qwen3(ATTENTION_NAME, device, small=small))
    products = torch.backends.cuda.matmul
    if not invariant:  # every number of rows counts as one that keeps bits
        model.row_sizes = tuple(range(16, 4096 + rows + 1, 16))
    products.allow_bf16_reduced_precision_reduction = not invariant
    engine = make_engine(
        model, EngineArgs(max_running_requests=rows, chunked_prefill_size=2048, prefix_caching=False)
    )
    serve_ours(engine, Workload(work.prompts, [8] * rows))  # compiles and captures
    taken, steps = once(lambda: serve_ours(engine, work), device)
    products.allow_bf16_reduced_precision_reduction = False
    return taken, bound(model, work, steps)


@dataclass(frozen=True)
class Figures:
    """Figures that `--write` keeps, for the documentation."""

    requests: int
    wanted: int
    device: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def table(self) -> Table:
        title = f"{self.requests} requests, {self.wanted:,} tokens, {self.device}"
        table = Table(title=title, title_justify="left")
        for head in self.heads:
            table.add_column(head, justify="right")
        for row in self.rows:
            table.add_row(*row)
        return table


def measure_workload(device: str, *, small: bool) -> Figures:
    """Ours, with batch invariance and without; transformers' continuous batching and `generate` beside."""
    work = Workload.of_nano_vllm(16 if small else 256, 64 if small else 1024, 1000 if small else 10000)
    rows = []
    for name, invariant in (("tokenwire", True), ("tokenwire, no batch invariance", False)):
        taken, least = timed_ours(work, device, small=small, invariant=invariant)
        # What is counted is the bound of a GPU.
        speed, share = f"{work.wanted / taken:,.0f}", "" if device == "cpu" else f"{least / taken:.0%}"
        rows.append([name, f"{work.wanted:,}", f"{taken:.1f}", speed, share])
    few = work.first(BESIDE)
    for name, serve in (("continuous batching", serve_continuous), ("generate, equal lengths", serve_static)):
        module = qwen3("sdpa", device, small=small)
        try:
            taken, _ = once(lambda: serve(module, few), device)  # noqa: B023 - called here and now
        except Exception as error:  # another program: its failure is reported, and is not ours
            rows.append([name, "", f"{type(error).__name__}: {error}"[:60], "", ""])
        else:
            rows.append([name, f"{few.wanted:,}", f"{taken:.1f}", f"{few.wanted / taken:,.0f}", ""])
    where = device if device == "cpu" else torch.cuda.get_device_name(device)
    heads = ("side", "output tokens", "seconds", "tokens/s", "of the bound")
    return Figures(len(work.prompts), work.wanted, where, heads, rows)


def once(action: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds that an action took, and what it gave."""
    started = time.perf_counter()
    given = action()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started, given


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
    parser.add_argument("--small", action="store_true", help="a small workload, to try it without a GPU")
    parser.add_argument("--skip-tests", action="store_true", help="leave the engine's own tests out")
    parser.add_argument("--write", type=Path, help="a directory for gpu.json")
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
    figures = measure_workload(asked.device, small=asked.small)
    console.print(figures.table())
    if asked.write:
        (asked.write / "gpu.json").write_text(json.dumps(asdict(figures), indent=1) + "\n", "utf-8")
    return 0 if all(outcome.holds for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
