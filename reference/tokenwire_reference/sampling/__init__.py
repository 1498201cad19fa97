"""From logits to token ids, and what is said of them."""
