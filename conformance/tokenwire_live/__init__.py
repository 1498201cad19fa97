"""Tools for live traffic: a proxy that judges the responses passing through it, and a page for sending
requests by hand.
"""
