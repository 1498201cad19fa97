"""The parrot: a test model that repeats the text of its prompt, so that the right answer to any prompt can be
computed.
"""
