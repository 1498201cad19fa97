"""The engine: from a prompt to the ranges of its record that may be sent."""
