"""The parrot: a model that repeats the text of its prompt, so that the right answer is known."""
