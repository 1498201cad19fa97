"""The core is a model by itself: it runs where no door and no extra can be imported."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        rooms = "doors", "extras", "assembly", "loading", "serve"
        if name.startswith(tuple(f"tokenwire_reference.{room}" for room in rooms)):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
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


def test_the_core_runs_without_doors_and_extras() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=300)
