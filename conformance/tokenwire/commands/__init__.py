"""The commands of `tokenwire`, one to a file; `tokenwire.cli` puts them together."""
