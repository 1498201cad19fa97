"""The engine: turns a prompt into ranges of its record that may be sent."""
