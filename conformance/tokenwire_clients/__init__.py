"""Tests clients: serves streams with known content (the vectors) to a client, and compares the content that
the client has parsed with the correct content.
"""
