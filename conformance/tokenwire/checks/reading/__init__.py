"""Readers of answers for checks: fields, texts, channels, times, control actions, bad values, and chance.

This package contains neither checks nor observations.
"""
