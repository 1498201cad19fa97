"""Facts about a target, from its own information and from its answers."""
