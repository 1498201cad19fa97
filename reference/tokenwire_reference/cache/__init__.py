"""The paged KV cache: who holds its pages, which prefixes they store, and where evicted ones go."""
