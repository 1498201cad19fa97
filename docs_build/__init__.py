"""The pages of the documentation that are made from code and data: `python -m mkdocs build` asks for them."""
