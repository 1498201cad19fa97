"""Ids to text and back."""
