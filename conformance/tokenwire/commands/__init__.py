"""The commands of `tokenwire`, one in each file. `tokenwire.cli` assembles them."""
