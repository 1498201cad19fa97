"""The console that everything is printed on: what servers wrote cannot act on the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tokenwire.wire.inert import inert

_PIPE_WIDTH = 140


class _InertConsole(Console):
    """Escapes whatever the terminal would act on, but the styles and controls of this program."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(inert(segment.text), segment.style)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console for what servers wrote: all text on it is inert.

    Its lines are as wide as the terminal, or as COLUMNS says. A pipe has no width: there, rich would fold
    lines to 80 columns.
    """
    console = _InertConsole(stderr=stderr, highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = _PIPE_WIDTH
    return console
