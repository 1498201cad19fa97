"""The inspector: a page on this machine to ask a server by hand and see every token."""
