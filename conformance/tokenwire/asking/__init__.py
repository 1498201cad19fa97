"""Requests to a target, and how they are sent. Only the recorder touches the network."""
