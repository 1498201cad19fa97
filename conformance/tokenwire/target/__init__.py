"""Facts about the server under test, which it reports or which its answers show."""
