"""Pairs of deployments for the proof that `tokenwire twin` tells them apart, or does not."""
