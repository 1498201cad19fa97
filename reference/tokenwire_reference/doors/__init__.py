"""HTTP: the ways in and out of the server, one folder for each family of servers."""
