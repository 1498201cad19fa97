"""What is known of a target, from what it says and from what it answers."""
