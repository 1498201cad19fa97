"""The console for all output. Text from servers is escaped, so that it cannot control the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tokenwire.wire.inert import inert

_PIPE_WIDTH = 140


class _InertConsole(Console):
    """A console that escapes all control characters except those that this program itself writes, for example
    for colours.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(inert(segment.text), segment.style)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that escapes control characters in text.

    Lines are as wide as the terminal or, if COLUMNS is set, as this variable says. Output to a pipe is not
    wrapped.
    """
    console = _InertConsole(stderr=stderr, highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = _PIPE_WIDTH
    return console
