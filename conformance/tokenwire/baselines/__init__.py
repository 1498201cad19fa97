"""Failures that are known, and what becomes of a run that holds them."""
