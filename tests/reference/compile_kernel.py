"""Compile the attention kernel for GPUs that need not be there, and print what each build needs, as JSON.

A program of its own: Triton is set up for its interpreter or for its compiler when it is first imported.
"""

from __future__ import annotations

import json

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile  # noqa: A004 - what Triton calls it

from tokenwire_reference.extras.paged_attention_kernel import _attend, sizes

POINTERS = ("query", "keys", "values", "output")
TABLES = ("tiles", "sequence_of", "positions", "page_table")


def build(capability: int, dtype: str, dim: int, page_size: int) -> dict[str, int | str]:
    constants = sizes(heads=8, kv_heads=2, dim=dim, page_size=page_size)
    signature = {
        **dict.fromkeys(POINTERS, f"*{dtype}"),
        **dict.fromkeys(TABLES, "*i64"),
        "table_width": "i32",
        "scaling": "fp32",
        "window": "i32",
        **dict.fromkeys(constants, "constexpr"),
    }
    built = compile(ASTSource(_attend, signature, constants), target=GPUTarget("cuda", capability, 32))
    return {
        "capability": capability,
        "dtype": dtype,
        "dim": dim,
        "page_size": page_size,
        "shared_bytes": built.metadata.shared,
        "machine_code_bytes": len(built.asm["cubin"]),
    }


if __name__ == "__main__":
    cases = [
        (80, "bf16", 64, 16),
        (90, "bf16", 128, 16),
        (90, "fp32", 80, 16),
        (90, "fp16", 256, 64),
        (100, "bf16", 16, 32),
    ]
    print(json.dumps([build(*case) for case in cases]))
