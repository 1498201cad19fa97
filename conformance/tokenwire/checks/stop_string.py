"""Which stop string ended a choice."""

from __future__ import annotations

from tokenwire.record import Asked, Choice


def stop_string_of(asked: Asked, choice: Choice) -> str | None:
    """The asked stop string that ended a choice; None where none did, or where nothing tells.

    A server that stopped without naming a reason tells by showing the string: it must have stopped there at
    the latest, unless the request asked for a least number of tokens before any stop.
    """
    finish = choice.finish
    if finish is None or finish.type != "stop":
        return None
    if finish.matched is not None:
        return finish.matched if finish.matched in asked.stop else None
    text = None if asked.min_new_tokens else choice.text
    return next((stop for stop in asked.stop if stop and text and stop in text), None)
