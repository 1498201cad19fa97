"""The step from observations to verdicts. It does not use the network."""
