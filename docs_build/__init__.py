"""The pages of the documentation that are generated from code and data when `python -m mkdocs build` runs."""
