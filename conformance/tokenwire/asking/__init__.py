"""Requests to a target, and the code that sends them. Only the recorder uses the network."""
