"""The parrot: a checkpoint that says what its prompt tells it to, so that the right answer is known."""
