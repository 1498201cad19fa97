"""The inspector: a server is asked by hand, and every token is seen, in a page on this machine."""
