"""Everything that sends requests to a target server. Only `recorder` and `connection` use the network."""
