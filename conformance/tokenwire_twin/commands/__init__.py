"""The commands `tokenwire compare` and `tokenwire twin`."""
