"""What a chat model says, taken apart: reasoning, content, tool calls."""
