"""Baselines: files of known failures that a run tolerates."""
