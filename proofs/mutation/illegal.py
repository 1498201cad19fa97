"""Illegal edits: each breaks the contract in a way that the stream itself shows.

An edit is made only where it must be seen: a lost event by a counter, a changed text by the tokenizer,
a changed entry by what stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from proofs.mutation.edit import (
    Body,
    Edit,
    Hand,
    Make,
    body_of,
    carrying,
    following,
    preceding,
    value_at,
    with_value,
    written,
)
from proofs.mutation.source import Source
from tokenwire.record import Emission
from tokenwire.wire.exchange import Ending

ILLEGAL: dict[str, Make] = {}

_COUNTER = "completion_tokens"
_NATIVE = "sglang-generate"


def illegal(make: Make) -> Make:
    """Enter an illegal edit under the name of its function."""
    ILLEGAL[make.__name__.replace("_", "-")] = make
    return make


def _counted(source: Source) -> list[Emission]:
    """Emissions with new ids and their counter."""
    return [emission for emission in carrying(source, "output_ids") if _COUNTER in emission.pointers]


def _choose(hand: Hand, options: list[Emission]) -> Emission | None:
    return hand.choose(options) if options else None


def _finishing(source: Source) -> list[Emission]:
    return [emission for emission in source.stream.emissions() if emission.finish is not None]


def _series(emission: Emission) -> list[str]:
    """Names of the series that hold entries, one for each id of the emission."""
    due = len(emission.output_ids or ())
    return [
        name
        for name, entries in emission.series.items()
        if isinstance(entries, list)
        and len(entries) == due > 0
        and any(entry is not None for entry in entries)
    ]


# Whole events.


@illegal
def an_event_is_lost(source: Source, hand: Hand) -> Edit | None:
    if source.cumulative:
        return None
    seen_later = [
        item for item in _counted(source) if (after := following(source, item)) and _COUNTER in after.pointers
    ]
    one = _choose(hand, seen_later)
    if one is None:
        return None
    body = body_of(source)
    del body.data[one.event.index]
    return Edit(body, one.event.index)


@illegal
def an_event_comes_twice(source: Source, hand: Hand) -> Edit | None:
    one = _choose(hand, _finishing(source) if source.cumulative else _counted(source))
    if one is None:
        return None
    body = body_of(source)
    body.data.insert(one.event.index, body.data[one.event.index])
    return Edit(body, one.event.index + 1)


@illegal
def two_events_change_places(source: Source, hand: Hand) -> Edit | None:
    pairs = [
        emission
        for emission in _counted(source)
        if (after := following(source, emission))
        and after in _counted(source)
        and after.output_ids != emission.output_ids
    ]
    one = _choose(hand, pairs)
    if one is None:
        return None
    after = following(source, one)
    assert after is not None
    body = body_of(source)
    first, second = one.event.index, after.event.index
    body.data[first], body.data[second] = body.data[second], body.data[first]
    return Edit(body, first)


@illegal
def the_stream_ends_early_as_if_it_were_whole(source: Source, hand: Hand) -> Edit | None:
    last = min(emission.event.index for emission in _finishing(source))
    kept = hand.choose(range(1, last + 1)) if last else None
    if kept is None:
        return None
    body = body_of(source)
    body.data = [*body.data[:kept], *(["[DONE]"] if hand.choose((True, False)) else [])]
    return Edit(body, kept - 1)


@illegal
def the_stream_is_cut_inside_an_event(source: Source, hand: Hand) -> Edit | None:
    body = body_of(source)
    frames = body.frames()
    event = hand.choose(range(len(frames)))
    inside = hand.choose(range(1, len(frames[event]) - 2))
    body.cut = sum(map(len, frames[:event])) + inside
    body.ending = hand.choose((Ending.COMPLETE, Ending.TRUNCATED))
    return Edit(body, max(0, event - 1))


@illegal
def the_end_mark_is_missing(source: Source, hand: Hand) -> Edit | None:
    del hand
    body = body_of(source)
    if body.data.pop() != "[DONE]":
        return None
    return Edit(body, len(body.data) - 1)


@illegal
def the_end_mark_comes_twice(source: Source, hand: Hand) -> Edit | None:
    del hand
    body = body_of(source)
    if body.data[-1] != "[DONE]":
        return None
    body.data.append("[DONE]")
    return Edit(body, len(body.data) - 2)


@illegal
def something_follows_the_end_mark(source: Source, hand: Hand) -> Edit | None:
    body = body_of(source)
    if body.data[-1] != "[DONE]":
        return None
    body.data.append(hand.choose(body.data[:-1]))
    return Edit(body, len(body.data) - 2)


# Ids.


@illegal
def an_id_is_lost(source: Source, hand: Hand) -> Edit | None:
    one = _choose(hand, _counted(source))
    if one is None:
        return None
    ids = value_at(source, one, "output_ids")
    del ids[hand.choose(range(len(ids)))]
    body = body_of(source)
    with_value(body, one, output_ids=ids)
    return Edit(body, one.event.index)


@illegal
def an_id_comes_twice(source: Source, hand: Hand) -> Edit | None:
    one = _choose(hand, _counted(source))
    if one is None:
        return None
    ids = value_at(source, one, "output_ids")
    at = hand.choose(range(len(ids)))
    body = body_of(source)
    with_value(body, one, output_ids=[*ids[: at + 1], *ids[at:]])
    return Edit(body, one.event.index)


@illegal
def an_id_is_none(source: Source, hand: Hand) -> Edit | None:
    one = _choose(hand, carrying(source, "output_ids"))
    if one is None:
        return None
    ids = value_at(source, one, "output_ids")
    ids[hand.choose(range(len(ids)))] = hand.choose((-1, 1.5, "5", None, True))
    body = body_of(source)
    with_value(body, one, output_ids=ids)
    return Edit(body, one.event.index)


@illegal
def an_id_moves_to_the_event_before(source: Source, hand: Hand) -> Edit | None:
    if source.cumulative:
        return None
    late = [
        item
        for item in _counted(source)
        if (before := preceding(source, item)) and before in _counted(source)
    ]
    one = _choose(hand, late)
    if one is None:
        return None
    before = preceding(source, one)
    assert before is not None
    body = body_of(source)
    first, *rest = value_at(source, one, "output_ids")
    with_value(body, before, output_ids=[*value_at(source, before, "output_ids"), first])
    with_value(body, one, output_ids=rest)
    return Edit(body, before.event.index)


@illegal
def ids_come_in_the_other_mode(source: Source, hand: Hand) -> Edit | None:
    return _other_mode(source, hand, "output_ids")


def _other_mode(source: Source, hand: Hand, name: str) -> Edit | None:
    """One field of one event as the other mode would write it."""
    later = [
        emission
        for emission in _counted(source)
        if name in emission.pointers and preceding(source, emission) in _counted(source)
    ]
    one = _choose(hand, [item for item in later if value_at(source, item, name)])
    if one is None:
        return None
    before = preceding(source, one)
    assert before is not None
    if name not in before.pointers:
        return None
    now, then = value_at(source, one, name), value_at(source, before, name)
    if source.cumulative:
        new = now[len(then) :]
    else:
        own = next(choice for choice in source.stream.choices if choice.index == one.choice).emissions
        earlier = [value_at(source, e, name) for e in own[: own.index(one)] if name in e.pointers]
        new = [entry for part in earlier for entry in part] + now
    if new == now:
        return None
    body = body_of(source)
    with_value(body, one, **{name: new})
    return Edit(body, one.event.index)


# Series.


@illegal
def a_series_loses_an_entry(source: Source, hand: Hand) -> Edit | None:
    return _with_series(source, hand, lambda entries, at: [*entries[:at], *entries[at + 1 :]])


@illegal
def a_series_repeats_an_entry(source: Source, hand: Hand) -> Edit | None:
    return _with_series(source, hand, lambda entries, at: [*entries[: at + 1], *entries[at:]])


def _with_series(source: Source, hand: Hand, change: Any) -> Edit | None:
    if source.stream.dialect != _NATIVE:
        return None
    options = [(item, name) for item in _counted(source) for name in _series(item)]
    if not options:
        return None
    one, name = hand.choose(options)
    entries = value_at(source, one, name)
    body = body_of(source)
    with_value(body, one, **{name: change(entries, hand.choose(range(len(entries))))})
    return Edit(body, one.event.index)


@illegal
def a_series_comes_in_the_other_mode(source: Source, hand: Hand) -> Edit | None:
    if source.stream.dialect != _NATIVE:
        return None
    names = sorted({name for item in _counted(source) for name in _series(item)})
    return _other_mode(source, hand, hand.choose(names)) if names else None


@illegal
def a_customized_key_is_missing_once(source: Source, hand: Hand) -> Edit | None:
    options = [(item, name) for item in _counted(source) for name in _series(item) if name in item.customized]
    whole = {name: [one for one, other in options if other == name] for _, name in options}
    options = [(one, name) for one, name in options if len(whole[name]) > 1 and one is not whole[name][0]]
    if not options:
        return None
    one, name = hand.choose(options)
    body = body_of(source)
    value = json.loads(body.data[one.event.index])
    *way, last = one.pointers[name].split("/")[1:]
    holder = value
    for key in way:
        holder = holder[key]
    del holder[last]
    body.data[one.event.index] = written(value)
    return Edit(body, one.event.index)


@illegal
def a_logprob_names_another_id(source: Source, hand: Hand) -> Edit | None:
    return _with_entry(
        source, hand, "output_token_logprobs", lambda entry: [entry[0], entry[1] + 1, *entry[2:]]
    )


@illegal
def a_logprob_is_above_zero(source: Source, hand: Hand) -> Edit | None:
    return _with_entry(source, hand, "output_token_logprobs", lambda entry: [0.5, *entry[1:]])


@illegal
def a_distribution_is_one_short(source: Source, hand: Hand) -> Edit | None:
    if source.stream.asked.top_logprobs < 2:
        return None
    return _with_entry(source, hand, "output_top_logprobs", lambda entry: entry[:-1] if entry else None)


def _with_entry(source: Source, hand: Hand, name: str, change: Callable[[Any], Any]) -> Edit | None:
    """Another entry of a per-token series; None where `change` makes none of the entry that was drawn."""
    if source.stream.dialect != _NATIVE:
        return None
    one = _choose(hand, [item for item in _counted(source) if name in _series(item)])
    if one is None:
        return None
    entries = value_at(source, one, name)
    at = hand.choose(range(len(entries)))
    changed = change(entries[at])
    if changed is None:
        return None
    entries[at] = changed
    body = body_of(source)
    with_value(body, one, **{name: entries})
    return Edit(body, one.event.index)


# Counters, finish, identity.


@illegal
def a_counter_is_off_by_one(source: Source, hand: Hand) -> Edit | None:
    one = _choose(hand, _counted(source))
    if one is None:
        return None
    body = body_of(source)
    changed = value_at(source, one, _COUNTER) + hand.choose((-1, 1))
    with_value(body, one, **{_COUNTER: changed})
    return Edit(body, one.event.index)


@illegal
def the_prompt_grows_on_the_way(source: Source, hand: Hand) -> Edit | None:
    if source.stream.dialect != _NATIVE:
        return None
    name = "prompt_tokens"
    one = _choose(hand, [item for item in carrying(source, name) if preceding(source, item)])
    if one is None:
        return None
    body = body_of(source)
    with_value(body, one, **{name: value_at(source, one, name) + 1})
    return Edit(body, one.event.index)


@illegal
def a_prompt_id_changes(source: Source, hand: Hand) -> Edit | None:
    name = "prompt_token_ids"
    if source.stream.asked.input_ids is None or not source.stream.asked.return_prompt_token_ids:
        return None
    one = _choose(hand, carrying(source, name))
    if one is None:
        return None
    ids = value_at(source, one, name)
    at = hand.choose(range(len(ids)))
    ids[at] += 1
    body = body_of(source)
    with_value(body, one, **{name: ids})
    return Edit(body, one.event.index)


@illegal
def the_request_id_changes(source: Source, hand: Hand) -> Edit | None:
    name = "request_id"
    if source.stream.dialect != _NATIVE:
        return None
    one = _choose(hand, [item for item in carrying(source, name) if preceding(source, item)])
    if one is None:
        return None
    body = body_of(source)
    with_value(body, one, **{name: value_at(source, one, name) + "x"})
    return Edit(body, one.event.index)


@illegal
def the_finish_is_lost(source: Source, hand: Hand) -> Edit | None:
    one = _choose(hand, [emission for emission in _finishing(source) if "finish" in emission.pointers])
    if one is None:
        return None
    body = body_of(source)
    with_value(body, one, finish=None)
    return Edit(body, one.event.index)


@illegal
def the_finish_comes_early(source: Source, hand: Hand) -> Edit | None:
    one = _choose(hand, [emission for emission in _finishing(source) if "finish" in emission.pointers])
    if one is None:
        return None
    own = next(choice for choice in source.stream.choices if choice.index == one.choice).emissions
    early = [emission for emission in own[: own.index(one)] if "finish" in emission.pointers]
    if not early:
        return None
    before = hand.choose(early)
    body = body_of(source)
    with_value(body, before, finish=value_at(source, one, "finish"))
    return Edit(body, before.event.index)


@illegal
def a_choice_is_mislabelled(source: Source, hand: Hand) -> Edit | None:
    if source.stream.dialect != _NATIVE:
        return None
    options = [
        index
        for index, value in enumerate(source.values)
        if isinstance(value, dict) and type(value.get("index")) is int
    ]
    if not options:
        return None
    at = hand.choose(options)
    body = body_of(source)
    value = json.loads(body.data[at])
    value["index"] = 7
    body.data[at] = written(value)
    return Edit(body)


# Text and bytes.


def _with_text(source: Source, hand: Hand, change: Any) -> Edit | None:
    """Another text; seen where the tokenizer tells what the ids say."""
    asked = source.stream.asked
    if source.run.tokenizer is None or not _counted(source) or asked.stop or asked.stop_regex or asked.echo:
        return None
    if source.verdicts.get("text-is-what-its-ids-say") is None:
        return None
    one = _choose(
        hand,
        [
            emission
            for emission in carrying(source, "text")
            if emission.text and "\ufffd" not in emission.text
        ],
    )
    if one is None or one.text is None:
        return None
    at = hand.choose(range(len(one.text)))
    new = change(one.text, at)
    if source.cumulative and following(source, one) is not None and new.startswith(one.text[: len(new)]):
        return None
    body = body_of(source)
    with_value(body, one, text=new)
    return Edit(body, one.event.index)


@illegal
def a_character_is_lost(source: Source, hand: Hand) -> Edit | None:
    return _with_text(source, hand, lambda text, at: text[:at] + text[at + 1 :])


@illegal
def a_character_comes_twice(source: Source, hand: Hand) -> Edit | None:
    return _with_text(source, hand, lambda text, at: text[: at + 1] + text[at:])


@illegal
def a_character_is_broken(source: Source, hand: Hand) -> Edit | None:
    return _with_text(source, hand, lambda text, at: f"{text[:at]}\ufffd{text[at + 1 :]}")


@illegal
def an_event_is_no_json(source: Source, hand: Hand) -> Edit | None:
    body = body_of(source)
    at = hand.choose([n for n, data in enumerate(body.data) if data != "[DONE]"])
    data = body.data[at]
    body.data[at] = hand.choose(
        (data[:-1], data + "}", '{"x":NaN,' + data[1:], '{"x":1,"x":2,' + data[1:], '{"x":1e999,' + data[1:])
    )
    return Edit(body, at)


@illegal
def a_byte_is_no_text(source: Source, hand: Hand) -> Edit | None:
    body = body_of(source)
    at = hand.choose([n for n, data in enumerate(body.data) if data != "[DONE]"])
    frame = bytearray(body.frames()[at])
    frame[frame.index(b'"') + 1 : frame.index(b'"') + 1] = hand.choose((b"\xff", b"\xc3", b"\xe2\x82"))
    body.as_it_is[at] = bytes(frame)
    return Edit(body, at)


def unchanged(source: Source, body: Body) -> bool:
    """Whether an edit changed nothing after all."""
    return body.bytes() == body_of(source).bytes() and body.ending is Ending.COMPLETE
