"""The HTTP endpoints of the server, one folder for each server family."""
