"""The page about a requirement, to which violations link."""

from __future__ import annotations

from tokenwire.explanation import explain
from tokenwire.report.page import policy
from tokenwire.report.templates import template
from tokenwire_live.inspecting.server import HTML


async def requirement_page(name: str) -> tuple[str, str]:
    """Return the media type and the text of the page. Raises UsageError."""
    page = template("tokenwire_live.inspecting", "requirement.html.jinja")
    return HTML, page.render(explained=explain(name), policy=policy(""))
