"""Small random models from seeds, and changes of a model or of its other files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_TOKENIZER = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-qwen2"
_VOCABULARY = 2000


@dataclass(frozen=True)
class Change:
    """A change of a model: of its configuration, its weights, or its other files."""

    of_config: Mapping[str, Any] | None = None
    of_weights: Callable[[Any], None] | None = None
    of_files: Callable[[Path], None] | None = None


def _rounded(model: Any, *, values: int) -> None:
    """Round the rows of all matrices except the embeddings to a number of values on each side of 0."""
    for name, weights in model.named_parameters():
        if weights.dim() == 2 and "embed" not in name:
            scale = weights.abs().amax(1, keepdim=True) / values
            weights.data = (weights / scale).round() * scale


def _one_matrix_scaled(model: Any) -> None:
    model.model.layers[1].mlp.down_proj.weight.data *= 1.01


def _one_layer_scaled(model: Any) -> None:
    for weights in model.model.layers[1].parameters():
        if weights.dim() == 2:
            weights.data *= 1.01


def _another_template(folder: Path) -> None:
    """Add a space between the header of a message and its content."""
    template = folder / "chat_template.jinja"
    written = template.read_text("utf-8")
    changed = written.replace("{{ m['content'] }}", " {{ m['content'] }}")
    assert changed != written, written
    template.write_text(changed, "utf-8")


def _other_ends(folder: Path) -> None:
    """Set another id as the end of a text."""
    for name in ("config.json", "generation_config.json"):
        file = folder / name
        if file.exists():
            file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"eos_token_id": 9}), "utf-8")


def _another_tokenizer(folder: Path) -> None:
    """Exchange twenty pairs of tokens."""
    file = folder / "tokenizer.json"
    table = json.loads(file.read_text("utf-8"))
    vocabulary = table["model"]["vocab"]
    names = {number: name for name, number in vocabulary.items()}
    for number in range(300, 340, 2):
        first, other = names[number], names[number + 1]
        vocabulary[first], vocabulary[other] = number + 1, number
    file.write_text(json.dumps(table, ensure_ascii=False), "utf-8")


CHANGES = {
    "as it is": Change(),
    "int8": Change(of_weights=partial(_rounded, values=127)),
    "int4": Change(of_weights=partial(_rounded, values=7)),
    "layer": Change(of_weights=_one_matrix_scaled),
    "whole layer": Change(of_weights=_one_layer_scaled),
    "rope": Change(of_config={"rope_parameters": {"rope_theta": 10500.0, "rope_type": "default"}}),
    "template": Change(of_files=_another_template),
    "ends": Change(of_files=_other_ends),
    "tokenizer": Change(of_files=_another_tokenizer),
}


LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    # With this size, only the last layers of blocks have more inputs than outputs.
    "head_dim": 48,
    "initializer_range": 0.1,
}
QWEN2: Mapping[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "initializer_range": 0.2,
}


def write_model(
    folder: Path, seed: int, change: Change = CHANGES["as it is"], shape: Mapping[str, Any] = LLAMA
) -> Path:
    """Write a random model of a shape from a seed, and change it. Return its folder."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        **shape,
        vocab_size=_VOCABULARY,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=3,
        **(change.of_config or {}),
    )
    model = AutoModelForCausalLM.from_config(config)
    if change.of_weights is not None:
        change.of_weights(model)
    model.eval().save_pretrained(folder)
    for file in (*_TOKENIZER.glob("*token*"), *_TOKENIZER.glob("*.jinja")):
        shutil.copy(file, folder)
    if change.of_files is not None:
        change.of_files(folder)
    return folder
