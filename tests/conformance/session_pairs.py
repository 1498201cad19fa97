"""Pairs for sessions: turns that the server keeps."""

from __future__ import annotations

from pair import Pair
from stream_builder import IDS, PROMPT, Reply, named, whole

from tokenwire.ask import Turn
from tokenwire.record import Stream

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

SESSION_PAIRS = [
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
