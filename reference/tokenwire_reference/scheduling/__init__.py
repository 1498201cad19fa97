"""Who runs in the next step, what that step holds, and when a request is done."""
