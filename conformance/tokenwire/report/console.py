"""The console that everything is printed on: what servers wrote cannot act on the terminal."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.segment import Segment

from tokenwire.report.wording import inert

_WIDTH_OF_A_PIPE = 140


@dataclass(frozen=True)
class _InertRenderable:
    """What is printed, without anything that the terminal would act on but the styles of this program."""

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else Segment(inert(segment.text), segment.style)


class _Inert(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_InertRenderable(renderable) for renderable in renderables]


def make_console(*, stderr: bool = False) -> Console:
    """A console for what servers wrote: all text on it is inert.

    Its lines are as wide as the terminal, or as COLUMNS says; where neither is there, they are not folded to
    80 columns.
    """
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console = Console(stderr=stderr, highlight=False, width=_WIDTH_OF_A_PIPE)
    console.push_render_hook(_Inert())
    return console
