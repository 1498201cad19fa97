"""Writes the checkpoint of a parrot, a test model.

`tokenwire.parrot` computes the right answers of this model.
"""
