"""The shapes of a parrot, as in `config.json`, without numpy and without the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.parrot.law import Parrot, positions_of

HEADS = 4
"""Heads of queries, keys and values, so that tensor parallelism of 1, 2 and 4 divides them."""
INNER = 128
"""The width of the feed-forward part, which has no effect."""
ROPE_THETA = 10.0
"""The base of the rotary embedding, small enough for every frequency to distinguish near distances."""


def architecture(parrot: Parrot, head_size: int, *, llama: bool) -> Mapping[str, Any]:
    """Return the fields of `config.json` about shapes.

    A Llama with biases computes the same, and keeps its tokenizer. Transformers gives every Qwen2 model the
    tokenizer of Qwen2, whatever its files contain.
    """
    family = {"attention_bias": True, "mlp_bias": False, "head_dim": head_size, "pretraining_tp": 1}
    qwen2 = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 1}
    return {
        "architectures": ["LlamaForCausalLM" if llama else "Qwen2ForCausalLM"],
        "model_type": "llama" if llama else "qwen2",
        **(family if llama else qwen2),
        "hidden_size": HEADS * head_size,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-12,
        "max_position_embeddings": positions_of(parrot.distance),
        # Both keys, because servers of before 2026 read the first, later ones the second.
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "vocab_size": parrot.vocab_size,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
