"""The reference engine: an executable answer to how a server should behave on the wire."""

__version__ = "0.1.0"
