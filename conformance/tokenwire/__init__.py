"""Tokenwire: checks what an LLM inference server puts on the wire for every token."""

__version__ = "0.1.0"

pytest_plugins = ("tokenwire.pytest_plugin",)
"""So that `pytest -p tokenwire` finds the plugin; nothing is imported for it otherwise."""
