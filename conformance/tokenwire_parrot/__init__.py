"""Writes the parrot: a checkpoint whose right answers `tokenwire.parrot` computes."""
