"""Where the files in `vectors/` come from: answers that are known, and all that is done to them."""
