"""Exchanges as bytes on the wire, and the strict parsers that read them."""
