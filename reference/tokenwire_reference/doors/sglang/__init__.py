"""The endpoints of an SGLang server."""

from tokenwire_reference.doors.sglang import chat, completions, control, decisions, generate

__all__ = ["chat", "completions", "control", "decisions", "generate"]
