"""Pairs of deployments for the proof that `tokenwire twin` distinguishes different models."""
