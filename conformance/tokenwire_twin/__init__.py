"""Compares two servers, recordings or reports: their verdicts, and their answers field by field."""
