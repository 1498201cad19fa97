"""The source of the files in `vectors/`: known answers, and the changes that are made to them."""
