"""The reference engine: an executable definition of a server's behaviour on the wire."""

__version__ = "0.1.0"
