"""Dialects: tables that map each server family's requests and responses to one common record, and the code
that uses them.
"""
