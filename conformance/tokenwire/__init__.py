"""Tokenwire: checks what an LLM inference server puts on the wire for every token."""

__version__ = "0.1.0"
