"""Turns observations into verdicts, without using the network."""
