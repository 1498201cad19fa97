"""Checks of the place where a stop ended a choice, id by id. All of them ask a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tokenwire.ask import Asked
from tokenwire.checks.about import about
from tokenwire.checks.check import Relation, Target, check, check_rows
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.legal_text import Decoded, decoded
from tokenwire.parrot.script import ANCHORED
from tokenwire.record import Emission, Stream


def _spellings(decoding: Decoded, count: int) -> list[str]:
    """What the first ids say, with special tokens and without them; empty if that is not known."""
    texts = [decoding.decode(decoding.ids[:count], skip_special_tokens=skip) for skip in (True, False)]
    return [text for text in texts if text is not None]


def _compiled(pattern: str) -> re.Pattern[str] | None:
    """A stop pattern as an expression; None for one that only the server can read."""
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _last(decoding: Decoded, name: str) -> Emission:
    emissions = decoding.choice.emissions
    return next((emission for emission in reversed(emissions) if name in emission.pointers), emissions[-1])


@dataclass(frozen=True)
class _NothingFollows(Relation):
    """The ids before the last one of a choice spell no stop of its request."""

    stops: Callable[[Asked], Iterable[tuple[str, re.Pattern[str] | None]]]
    """Each stop and what spells it; None if only the server can read it."""


def _observe_stops(row: _NothingFollows, stream: Stream, target: Target) -> Iterator[Observation]:
    for decoding in decoded(stream, target.tokenizer):
        # U+FFFD at their end may be a character that the last id makes whole.
        before = [text.rstrip("\ufffd") for text in _spellings(decoding, len(decoding.ids) - 1)]
        known = len(before) == 2 and not decoding.asked.min_new_tokens
        for stop, spells in row.stops(decoding.asked) if known else ():
            if spells is not None:
                message = f"the output ids of choice {decoding.choice.index} go on after {stop!r} is complete"
                expected = f"no id after the one that completes {stop!r}"
                place = _last(decoding, "output_ids").at("output_ids")
                late = all(spells.search(text) for text in before)
                yield expect(place, expected, before[0][-60:], message, holds=not late)


check_rows(
    _observe_stops,
    _NothingFollows(
        "nothing-follows-a-stop-string",
        about(finished=True, unasked=("echo",)),  # items of a batch have their own stops
        lambda asked: ((stop, re.compile(re.escape(stop))) for stop in asked.stop if stop),
    ),
    _NothingFollows(
        "nothing-follows-a-stop-pattern",
        about(finished=True, unasked=("echo",)),
        lambda asked: ((p, _compiled(p)) for p in asked.stop_regex if not ANCHORED.search(p)),
    ),
)


@check("named-stop-was-asked-and-spelled", about("input_ids", finished=True, unasked=("echo",)))
def _named_stop_was_asked_and_spelled(stream: Stream, target: Target) -> Iterator[Observation]:
    """The string that a server names as the stop is one of the request's, and the ids spell it.

    For texts and messages, a template may bring stops of its own.
    """
    for decoding in decoded(stream, target.tokenizer):
        if not isinstance(decoding.stop, str):
            continue
        asked = decoding.asked
        emission = _last(decoding, "finish")
        known = decoding.stop in (*asked.stop, *asked.stop_regex)
        texts = _spellings(decoding, len(decoding.ids))
        spells = _compiled(decoding.stop if decoding.stop in asked.stop_regex else re.escape(decoding.stop))
        if len(texts) < 2 or spells is None:
            continue
        spelled = any(spells.search(text) for text in texts)
        what = "is not spelled by the output ids" if known else "is no stop of the request"
        message = (
            f"choice {decoding.choice.index} was ended by {decoding.stop!r}, says the server; that {what}"
        )
        expected = f"one of {[*asked.stop, *asked.stop_regex]}, spelled by the output ids"
        yield expect(emission.at("finish"), expected, decoding.stop, message, holds=known and spelled)
