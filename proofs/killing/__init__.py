"""The kill matrix: it checks the suite with the faults of the reference, and the faults with the suite."""
