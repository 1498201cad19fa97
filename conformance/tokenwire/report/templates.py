"""Loads the templates of pages and summaries. Each template is compiled once."""

from __future__ import annotations

from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template

from tokenwire.report.markdown import blocks, inline


@cache
def template(package: str, name: str) -> Template:
    """Return a template from the folder of a package.

    The template can include templates of the suite by `room/file`. In HTML, every value is escaped. An
    undefined name is an error. The filters `inline` and `blocks` convert Markdown.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("tokenwire", ".")]),
        autoescape=".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"inline": inline, "blocks": blocks}
    return environment.get_template(name)
