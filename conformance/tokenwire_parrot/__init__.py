"""Writes the checkpoint of a parrot, a test model whose right answers `tokenwire.parrot` computes."""
