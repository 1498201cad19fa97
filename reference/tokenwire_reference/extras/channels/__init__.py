"""Channels of a chat model's output: reasoning, content, tool calls."""
