"""Readers of answers for checks: fields, texts and channels, times, deeds, bad values, what chance explains.

Nothing here is a check, or makes an observation.
"""
