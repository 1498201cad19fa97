"""A transparent proxy that judges passing answers: it forwards bytes unchanged, and judges copies."""
