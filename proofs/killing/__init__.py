"""The kill matrix: the suite and the reference's faults, each held against the other."""
