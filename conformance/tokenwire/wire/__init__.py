"""What came over the wire, byte for byte, and the strict parsers that read it."""
