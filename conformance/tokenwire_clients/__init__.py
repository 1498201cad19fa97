"""Judges clients: serves the vectors to a client, and compares its final content with the right record."""
