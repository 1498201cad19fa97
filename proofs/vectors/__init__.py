"""The source of the files in `vectors/`: answers that are known, and all that is done to them."""
