"""Legal edits: they divide the same answer into other events, or write the same event in another way.

No legal edit may change a verdict, with one exception: if it joins or splits events, the checks see fewer or
more events, so PASS may become INCONCLUSIVE and vice versa. No verdict may become red.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from proofs.mutation.edit import Body, Edit, Hand, Make, body_of, carrying, following, place, written
from proofs.mutation.framing import FEATURES, pairs
from proofs.mutation.source import Source
from tokenwire.record import Emission
from tokenwire.wire.json_pointer import ABSENT, find, parse

LEGAL: dict[str, Make] = {}

_NATIVE = "sglang-generate"


def legal(make: Make) -> Make:
    """Register a legal edit under the name of its function."""
    LEGAL[make.__name__.replace("_", "-")] = make
    return make


def _some_events(body: Body, hand: Hand) -> list[int]:
    """Return some of the events that contain JSON, at least one."""
    holding = [n for n, data in enumerate(body.data) if data != "[DONE]"]
    step = hand.choose((1, 2, 3))
    return holding[hand.choose(range(min(step, len(holding)))) :: step]


def _rewrite(source: Source, hand: Hand, rewrite: Any) -> Edit:
    body = body_of(source)
    for index in _some_events(body, hand):
        body.data[index] = rewrite(json.loads(body.data[index]))
    return Edit(body)


# Other events


@legal
def neighbours_are_joined(source: Source, hand: Hand) -> Edit | None:
    if source.cumulative or source.stream.dialect != _NATIVE:
        return None
    options = [
        emission
        for emission in source.stream.emissions()
        if (after := following(source, emission)) and after.output_ids is not None
    ]
    if not options:
        return None
    earlier = hand.choose(options)
    after = following(source, earlier)
    assert after is not None
    body = body_of(source)
    body.data[after.event.index] = written(_joined(source, earlier, after))
    del body.data[earlier.event.index]
    return Edit(body)


def _joined(source: Source, earlier: Emission, after: Emission) -> Any:
    """Return the later of two incremental events with the content of both."""
    first, second = source.values[earlier.event.index], copy.deepcopy(source.values[after.event.index])
    assert isinstance(second, dict)
    for name in dict.fromkeys(("output_ids", "text", *earlier.series, *after.series)):
        pointer = after.pointers.get(name) or earlier.pointers.get(name)
        if pointer is None:
            continue
        keys = parse(pointer)
        early, late = find(first, keys), find(second, keys)
        if early is not ABSENT:
            place(second, pointer, early if late is ABSENT else early + late)
    return second


@legal
def a_whole_state_is_overtaken_by_the_next(source: Source, hand: Hand) -> Edit | None:
    if not source.cumulative:
        return None
    options = [emission for emission in source.stream.emissions() if following(source, emission) is not None]
    if not options:
        return None
    body = body_of(source)
    del body.data[hand.choose(options).event.index]
    return Edit(body)


@legal
def the_finish_comes_alone(source: Source, hand: Hand) -> Edit | None:
    """Move the finish reason into an event of its own, after the last event with output ids."""
    counted = {usage.place.event for usage in source.stream.usages}
    options = [
        emission
        for emission in carrying(source, "finish")
        if emission.output_ids and emission.event.index not in counted
    ]
    if not options:
        return None
    chosen = hand.choose(options)
    before, alone = (copy.deepcopy(source.values[chosen.event.index]) for _ in range(2))
    place(before, chosen.pointers["finish"], None)
    for name in () if source.cumulative else ("output_ids", "text", *chosen.series):
        if name in chosen.pointers:
            place(alone, chosen.pointers[name], "" if name == "text" else [])
    body = body_of(source)
    body.data[chosen.event.index : chosen.event.index + 1] = [written(before), written(alone)]
    return Edit(body)


# Other ways to write an event


@legal
def keys_change_places(source: Source, hand: Hand) -> Edit:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(entry) for key, entry in reversed(value.items())}
        return [turned(entry) for entry in value] if isinstance(value, list) else value

    return _rewrite(source, hand, lambda value: written(turned(value)))


@legal
def fields_that_nobody_knows(source: Source, hand: Hand) -> Edit:
    strange: Any = hand.choose((1, "x", {"a": [1, 2]}, [], None))
    body = body_of(source)
    for index, data in enumerate(body.data):
        if data != "[DONE]":
            body.data[index] = written({**json.loads(data), "a_later_field": strange})
    return Edit(body)


@legal
def white_space_between_values(source: Source, hand: Hand) -> Edit:
    return _rewrite(
        source, hand, lambda value: json.dumps(value, ensure_ascii=False, separators=(" , ", " :\t"))
    )


@legal
def escaped_characters(source: Source, hand: Hand) -> Edit:
    return _rewrite(source, hand, lambda value: json.dumps(value, ensure_ascii=True, separators=(",", ":")))


@legal
def one_event_in_many_lines(source: Source, hand: Hand) -> Edit:
    return _rewrite(source, hand, lambda value: json.dumps(value, ensure_ascii=False, indent=1))


# Other framing


@legal
def two_framings_together(source: Source, hand: Hand) -> Edit:
    body = body_of(source)
    for name in hand.choose(list(pairs(named=body.named))):
        body = FEATURES[name].of(body)
    return Edit(body)


@legal
def comments_between_events(source: Source, hand: Hand) -> Edit:
    body = body_of(source)
    comment = hand.choose((":\n", ": keep-alive\n", ": keep-alive\n\n", ":data: {}\n"))
    body.before = dict.fromkeys(range(0, len(body.data), hand.choose((1, 2, 5))), comment)
    return Edit(body)


@legal
def fields_of_the_event_stream(source: Source, hand: Hand) -> Edit:
    body = body_of(source)
    line = hand.choose(("id: 7\n", "retry: 100\n", "unknown: x\n", "id\n"))
    body.before = {hand.choose(range(len(body.data))): line}
    return Edit(body)


@legal
def other_ends_of_lines(source: Source, hand: Hand) -> Edit:
    body = body_of(source)
    body.end_of_line = hand.choose(("\r\n", "\r"))
    return Edit(body)


@legal
def no_space_after_the_colon(source: Source, hand: Hand) -> Edit:
    del hand
    body = body_of(source)
    body.name = "data:"
    return Edit(body)


@legal
def a_byte_order_mark(source: Source, hand: Hand) -> Edit:
    del hand
    body = body_of(source)
    body.prefix = b"\xef\xbb\xbf"
    return Edit(body)


@legal
def other_reads(source: Source, hand: Hand) -> Edit:
    """Change only the sizes of the reads. For each edit, `try_legal` chooses a size by chance."""
    del hand
    return Edit(body_of(source))
