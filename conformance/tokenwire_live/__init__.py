"""Live traffic: a proxy that judges passing answers, and a page to ask a server by hand."""
