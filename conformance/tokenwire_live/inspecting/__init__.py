"""The inspector: a page on this machine for sending requests by hand and seeing every token."""
