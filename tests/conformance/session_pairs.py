"""Pairs for sessions: turns that the server keeps."""

from __future__ import annotations

from dataclasses import replace

from control_calls import called, sent_at
from pair import Pair
from stream_builder import IDS, PROMPT, Reply, named, whole

from tokenwire.ask import Turn
from tokenwire.checks.check import Target
from tokenwire.dialects.control import Action
from tokenwire.record import Finish, Stream

NEW = (41, 42)


def turn(
    ids: tuple[int, ...] = IDS, *, prompt_tokens: int = len(PROMPT) + len(IDS) + len(NEW), offset: int = 0
) -> Stream:
    """A turn after the request `r-1`, or after so many ids of it."""
    reply = Reply(
        ids=ids, text=None, counters={"prompt_tokens": prompt_tokens}, details={"request_id": "r-2"}
    )
    stream = whole(reply, input_ids=None, turn=Turn("r-1", offset, NEW), max_new_tokens=6)
    return named(stream, "generate/turn")


def spelled(ids: tuple[int, ...] = IDS) -> Stream:
    """The same history, as a prompt."""
    reply = Reply(ids=ids, text=None, details={"request_id": "r-3"})
    return named(whole(reply, input_ids=((*PROMPT, *IDS, *NEW),), max_new_tokens=6), "generate/spelled")


FIRST = whole(input_ids=(PROMPT,), max_new_tokens=6)

APPENDING = Target(calls=(replace(called(Action.OPEN, 0, "s"), appends=True),))


def appended(second: float, before: int, *, finish: str = "length") -> Stream:
    """A turn that continues the latest turn of the session, and counts so many tokens before its own ids."""
    reply = Reply(
        ids=IDS,
        text=None,
        counters={"prompt_tokens": before + len(NEW)},
        finish=Finish(finish),
        details={"request_id": f"r-{second}"},
    )
    stream = whole(reply, input_ids=None, turn=Turn("", 0, (40 + int(second), 42), "s"), max_new_tokens=6)
    return sent_at(named(stream, f"generate/turn-{second}"), second, 0.5)


_STEP = len(NEW) + len(IDS)
INTERRUPTED = (appended(1, 0), appended(2, _STEP), appended(3, 2 * _STEP, finish="abort"))
"""Two turns that ended, and one that was aborted."""

SESSION_PAIRS = [
    Pair(
        "turns-carry-their-history",
        (appended(1, 0), appended(2, _STEP)),
        (appended(1, 0), appended(2, _STEP + 1)),
        pointer="/prompt_tokens",
        target=APPENDING,
        why="the latest turn",
    ),
    Pair(
        "aborted-turn-is-taken-back",
        (*INTERRUPTED, appended(4, 2 * _STEP)),
        (*INTERRUPTED, appended(4, 3 * _STEP)),
        pointer="/prompt_tokens",
        target=APPENDING,
    ),
    Pair(
        "turns-carry-their-history", (FIRST, turn()), (FIRST, turn(prompt_tokens=2)), pointer="/prompt_tokens"
    ),
    Pair(
        "turns-answer-as-their-history",
        (FIRST, turn(), spelled()),
        (FIRST, turn(IDS[::-1]), spelled()),
        pointer="/output_ids",
    ),
]
