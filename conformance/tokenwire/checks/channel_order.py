"""Check that the channels of a choice come in the order of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from tokenwire.checks.about import about, streamed, undisturbed_choices
from tokenwire.checks.check import Target, check
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.channels import CALLED, CHANNEL_WORDS, Channels, MarkedText
from tokenwire.checks.reading.right_channels import known_marked_text
from tokenwire.dialects.dialect import has_items
from tokenwire.record import Choice, Emission, Stream

_KINDS = ("reasoning", "text", CALLED)
"""The channels, by the names of their fields in an emission."""
_Come = tuple[str, Emission]


@check("channels-keep-their-order", about(chat=True, answered=True, ended=True))
def _channels_keep_their_order(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the channels have the order of the tokens, in streams and in lists of items."""
    for choice in undisturbed_choices(stream) if streamed(stream) or has_items(stream) else ():
        stated, channels = known_marked_text(stream, choice, target), Channels.of(stream, choice)
        settled = stated is not None and (stated.settled if streamed(stream) else not stated.disputed)
        if stated is None or not settled or not _is_parted_so(stated, channels):
            continue
        come = _come(choice) if streamed(stream) else _listed(choice)
        order, due = [kind for kind, _ in come or ()], _due(stated)
        if len(set(order)) < 2:
            continue
        late = _first_out_of_order(order, due)
        expected, actual = (", ".join(CHANNEL_WORDS[kind] for kind in kinds) for kinds in (due, order))
        place = (
            come[-1 if late is None else late][1].at(order[-1 if late is None else late]) if come else None
        )
        if place is not None:
            message = f"the order of the channels is {actual}; in the tokens it is {expected}"
            yield expect(place, expected, actual, message, holds=late is None)


def _is_parted_so(stated: MarkedText, channels: Channels) -> bool:
    """True if the channels have the same parts as the text. Other requirements judge the content of the
    parts.
    """
    reading = stated.reading
    same = bool(reading.reasoning.strip()) == bool(channels.reasoning.strip())
    same = same and any(map(str.strip, reading.contents)) == bool(channels.content.strip())
    return same and reading.cut is None and len(reading.calls) == len(channels.calls)


def _due(stated: MarkedText) -> list[str]:
    """Return the channels in the order of the text, with one entry for each call."""
    reading = stated.reading
    order = ["reasoning"] if reading.reasoning.strip() else []
    for number, content in enumerate(reading.contents):
        order += [CALLED] if 0 < number <= len(reading.calls) else []
        order += ["text"] if content.strip() else []
    return order


def _come(choice: Choice) -> list[_Come] | None:
    """Return the channels in the order of the emissions, without repetition. None if one emission brings
    several channels.
    """
    brought: list[_Come] = []
    for emission in choice.emissions if choice.text_is_incremental else ():
        texts = {"reasoning": emission.reasoning, "text": emission.text}
        kinds = [kind for kind, text in texts.items() if isinstance(text, str) and text.strip()]
        kinds += [CALLED] if emission.calls else []
        if len(kinds) > 1:
            return None
        brought += [(kind, emission) for kind in kinds]
    return [next(run) for _, run in groupby(brought, key=lambda come: come[0])]


def _listed(choice: Choice) -> list[_Come]:
    """Return the channels of a whole answer, ordered by the position of the first item of each channel and of
    each call.
    """
    emission = choice.emissions[-1]
    places = [(emission.at(kind).pointer, kind) for kind in _KINDS[:2] if getattr(emission, kind, None)]
    places += [(piece.pointer, CALLED) for piece in emission.calls]
    ordered = sorted(places, key=lambda place: _position(place[0]))
    return [(kind, emission) for _, kind in ordered]


def _position(pointer: str) -> int:
    """Return the first list index in a JSON pointer, or 0 if it has none."""
    return next((int(part) for part in pointer.split("/") if part.isdecimal()), 0)


def _first_out_of_order(order: Iterable[str], due: Iterable[str]) -> int | None:
    """Return the index of the first channel that is out of order. None if all are in order.

    Adjacent parts of one channel may be joined, and text after a call may be left out.
    """
    rest = iter(due)
    return next((place for place, kind in enumerate(order) if kind not in rest), None)
