"""The core is a model by itself: it runs, and passes its tests, without doors and extras."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tokenwire_reference

HERE = Path(__file__).parent
CORE_TESTS = ("test_kv.py", "test_scheduler.py", "serving/test_output_streamer.py")

PROGRAM = """
import torch
from transformers import AttentionInterface, Qwen2Config, Qwen2ForCausalLM
from tokenwire_reference.core.attention import ATTENTION_NAME, paged_attention
from tokenwire_reference.core.engine import Engine
from tokenwire_reference.core.loaded_model import LoadedModel, probe_shapes
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import Request, SamplingParams

torch.set_num_threads(1)
torch.manual_seed(1)
AttentionInterface.register(ATTENTION_NAME, paged_attention)
config = Qwen2Config(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, attn_implementation=ATTENTION_NAME,
)
module = Qwen2ForCausalLM(config).eval().requires_grad_(False)
model = LoadedModel("made", module, None, 64, frozenset(), 128, probe_shapes(module))
engine, streamer = Engine(model), OutputStreamer(stream_interval=2)
request = Request("r", (1, 2, 3), SamplingParams(max_new_tokens=5), stream=True, return_logprob=True)
streamer.admit(request)
engine.add(request)
rows = []
while not engine.idle:
    rows += streamer.stream(engine.step())
engine.check_integrity()
assert [(row.start, row.end) for row in rows] == [(0, 1), (1, 3), (3, 5)], rows
assert [entry[1] for entry in request.series["output_token_logprobs"]] == request.output_ids
assert request.finish.length == 5
"""


@pytest.fixture
def run_alone(tmp_path):
    """Run Python on a package of which nothing is left but the core."""
    package = tmp_path / "tokenwire_reference"
    whole = Path(tokenwire_reference.__file__).parent
    shutil.copytree(whole / "core", package / "core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(whole / "__init__.py", package)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    def run(*arguments: str) -> None:
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, timeout=600, env={**os.environ, "PYTHONPATH": path})

    return run


def test_the_core_runs_without_doors_and_extras(run_alone) -> None:
    run_alone("-c", PROGRAM)


def test_the_core_passes_its_tests_without_doors_and_extras(run_alone) -> None:
    """So each extra can be deleted, and nothing in the core or in its tests has to change."""
    tests = [str(HERE / name) for name in CORE_TESTS]
    run_alone("-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", *tests)
