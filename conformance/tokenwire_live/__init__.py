"""Live traffic: a proxy that judges what passes, and a page to ask a server by hand."""
