"""What the engine runs without: each hooks into the core, and can be taken away."""
