"""vLLM's endpoints on the same engine: chat and completions in its shapes, and `/inference/v1/generate`."""

from tokenwire_reference.doors.vllm import chat, completions, control, generate

__all__ = ["chat", "completions", "control", "generate"]
