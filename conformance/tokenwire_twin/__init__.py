"""Two servers, recordings or reports side by side: their differences, verdict by verdict and field by
field.
"""
