"""The templates of pages and summaries, compiled once."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


@cache
def template(package: str, name: str) -> Template:
    """A template beside the modules of a package. HTML escapes every value; an undefined name is an error."""
    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
