"""Engines beside an event loop: a thread, several ranks, the handover of a step's rows, and work
within limits.
"""
