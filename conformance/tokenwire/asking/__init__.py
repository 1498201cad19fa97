"""What is asked of a target and how; only the recorder touches the network."""
