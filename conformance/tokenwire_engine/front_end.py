"""The front ends above the engine."""

from __future__ import annotations


class UnknownVersionError(ValueError):
    """A front end of a release whose protocol is not known. The message says what differs, and what to do."""
