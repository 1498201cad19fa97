"""The architecture of a parrot, as `config.json` describes it.

This module needs neither numpy nor the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.parrot.law import Parrot, positions_of

HEADS = 4
"""The number of heads for queries, keys and values. It is divisible by 1, 2 and 4, for tensor parallelism."""
INNER = 128
"""The width of the feed-forward part, which is zero and has no effect."""
ROPE_THETA = 10.0
"""The base of the rotary embedding. It is so small that every frequency distinguishes small distances."""


def architecture(parrot: Parrot, head_size: int, *, llama: bool) -> Mapping[str, Any]:
    """Return the fields of `config.json` that describe the architecture.

    The default is Qwen2. With a foreign tokenizer, the architecture is a Llama with biases, which computes
    the same values. transformers would replace the tokenizer of a Qwen2 model by its own.
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
        # One field has two names: servers until 2025 parse the first name, later servers the second.
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "vocab_size": parrot.vocab_size,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
