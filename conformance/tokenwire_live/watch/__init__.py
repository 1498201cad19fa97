"""A transparent proxy that judges responses. It forwards bytes unchanged, and judges copies."""
