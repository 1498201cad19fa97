"""Two servers, recordings or reports side by side: what differs, verdict by verdict and field by field."""
