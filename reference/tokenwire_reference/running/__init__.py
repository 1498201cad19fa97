"""What runs engines beside an event loop: a thread, several ranks, and how the rows of a step come over."""
