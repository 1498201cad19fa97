"""The commands `tokenwire watch` and `tokenwire inspect`."""
