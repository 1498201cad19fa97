"""Runs engines outside of the event loop: engine threads, data-parallel ranks, the handover of rows, and
processes with limits.
"""
