"""Tokenwire: check the data that an LLM inference server sends for every token."""

__version__ = "0.1.0"

pytest_plugins = ("tokenwire.pytest_plugin",)
"""Lets `pytest -p tokenwire` find the plugin. pytest imports the plugin only if this option is given."""
