"""Judges clients: serves the vectors to one, and holds what it accumulated against the right record."""
