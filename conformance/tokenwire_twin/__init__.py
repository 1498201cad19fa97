"""Compares two servers, recordings or reports.

Their verdicts are compared, and their answers field by field.
"""
