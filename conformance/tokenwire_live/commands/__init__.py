"""The commands `tokenwire cut`, `tokenwire inspect` and `tokenwire watch`."""
