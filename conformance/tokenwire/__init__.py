"""Tokenwire: checks what an LLM inference server puts on the wire for every token."""

__version__ = "0.1.0"

pytest_plugins = ("tokenwire.pytest_plugin",)
"""Lets `pytest -p tokenwire` find the plugin, which is imported only then."""
