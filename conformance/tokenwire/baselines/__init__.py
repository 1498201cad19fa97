"""Known failures, and their effect on a run."""
