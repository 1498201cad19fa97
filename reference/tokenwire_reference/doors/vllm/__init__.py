"""vLLM's endpoints on the same engine: chat and completions in its shapes, `/inference/v1/generate`, batches
of conversations, and the split pipeline of chat.
"""

from tokenwire_reference.doors.vllm import batch, chat, completions, control, decisions, generate, split

__all__ = ["batch", "chat", "completions", "control", "decisions", "generate", "split"]
