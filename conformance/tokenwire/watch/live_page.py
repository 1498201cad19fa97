"""The live page: one document that loads itself anew, no script, safe against whatever a server wrote."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from tokenwire.requirement import load_requirements
from tokenwire.watch.tally import Tally

REFRESH_S = 5


def live_page(tally: Tally, *, target: str, listening: str, waiting: int, under_way: int) -> str:
    """The page as it is now."""
    environment = Environment(
        loader=PackageLoader("tokenwire.watch", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("live_page.html.jinja").render(
        tally=tally,
        target=target,
        listening=listening,
        waiting=waiting,
        under_way=under_way,
        refresh=REFRESH_S,
        requirements=load_requirements(),
        violations=tally.violations.most_common(),
        gaps=tally.gaps.most_common(),
    )
