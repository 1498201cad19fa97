"""Optional parts of the engine: each hooks into the core, and can be removed."""
