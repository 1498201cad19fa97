"""Engines outside of the event loop: threads, ranks, the handover of rows, and work within limits."""
