"""A transparent proxy that judges what passes: bytes go through as they come, copies of them are judged."""
