"""The parrot: a checkpoint that repeats the text of its prompt, so that the right answer is known."""
