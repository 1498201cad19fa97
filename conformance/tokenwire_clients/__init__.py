"""Tests clients: serves the vectors (streams with known content) to a client, and compares what the client
has parsed.
"""
