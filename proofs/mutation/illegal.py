"""Illegal edits: each violates the contract in a way that the stream itself shows.

An edit is made only where it must be detected: a lost event by a counter, a changed text by the tokenizer, a
changed entry by its neighbours.
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
    """Register an illegal edit under the name of its function."""
    ILLEGAL[make.__name__.replace("_", "-")] = make
    return make


def _counted(source: Source) -> list[Emission]:
    """Return the emissions that have new ids and a counter."""
    return [emission for emission in carrying(source, "output_ids") if _COUNTER in emission.pointers]


def _choose(hand: Hand, options: list[Emission]) -> Emission | None:
    return hand.choose(options) if options else None


def _finishing(source: Source) -> list[Emission]:
    return [emission for emission in source.stream.emissions() if emission.finish is not None]


def _series(emission: Emission) -> list[str]:
    """Return the names of the series that have one entry for each id of the emission."""
    due = len(emission.output_ids or ())
    return [
        name
        for name, entries in emission.series.items()
        if isinstance(entries, list)
        and len(entries) == due > 0
        and any(entry is not None for entry in entries)
    ]


# Edits of whole events.


@illegal
def an_event_is_lost(source: Source, hand: Hand) -> Edit | None:
    if source.cumulative:
        return None
    seen_later = [
        item for item in _counted(source) if (after := following(source, item)) and _COUNTER in after.pointers
    ]
    chosen = _choose(hand, seen_later)
    if chosen is None:
        return None
    body = body_of(source)
    del body.data[chosen.event.index]
    return Edit(body, chosen.event.index)


@illegal
def an_event_comes_twice(source: Source, hand: Hand) -> Edit | None:
    chosen = _choose(hand, _finishing(source) if source.cumulative else _counted(source))
    if chosen is None:
        return None
    body = body_of(source)
    body.data.insert(chosen.event.index, body.data[chosen.event.index])
    return Edit(body, chosen.event.index + 1)


@illegal
def two_events_change_places(source: Source, hand: Hand) -> Edit | None:
    pairs = [
        emission
        for emission in _counted(source)
        if (after := following(source, emission))
        and after in _counted(source)
        and after.output_ids != emission.output_ids
    ]
    chosen = _choose(hand, pairs)
    if chosen is None:
        return None
    after = following(source, chosen)
    assert after is not None
    body = body_of(source)
    first, second = chosen.event.index, after.event.index
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
    chosen = _choose(hand, _counted(source))
    if chosen is None:
        return None
    ids = value_at(source, chosen, "output_ids")
    del ids[hand.choose(range(len(ids)))]
    body = body_of(source)
    with_value(body, chosen, output_ids=ids)
    return Edit(body, chosen.event.index)


@illegal
def an_id_comes_twice(source: Source, hand: Hand) -> Edit | None:
    chosen = _choose(hand, _counted(source))
    if chosen is None:
        return None
    ids = value_at(source, chosen, "output_ids")
    index = hand.choose(range(len(ids)))
    body = body_of(source)
    with_value(body, chosen, output_ids=[*ids[: index + 1], *ids[index:]])
    return Edit(body, chosen.event.index)


@illegal
def an_id_is_none(source: Source, hand: Hand) -> Edit | None:
    chosen = _choose(hand, carrying(source, "output_ids"))
    if chosen is None:
        return None
    ids = value_at(source, chosen, "output_ids")
    ids[hand.choose(range(len(ids)))] = hand.choose((-1, 1.5, "5", None, True))
    body = body_of(source)
    with_value(body, chosen, output_ids=ids)
    return Edit(body, chosen.event.index)


@illegal
def an_id_moves_to_the_event_before(source: Source, hand: Hand) -> Edit | None:
    if source.cumulative:
        return None
    late = [
        item
        for item in _counted(source)
        if (before := preceding(source, item)) and before in _counted(source)
    ]
    chosen = _choose(hand, late)
    if chosen is None:
        return None
    before = preceding(source, chosen)
    assert before is not None
    body = body_of(source)
    first, *rest = value_at(source, chosen, "output_ids")
    with_value(body, before, output_ids=[*value_at(source, before, "output_ids"), first])
    with_value(body, chosen, output_ids=rest)
    return Edit(body, before.event.index)


@illegal
def ids_come_in_the_other_mode(source: Source, hand: Hand) -> Edit | None:
    return _other_mode(source, hand, "output_ids")


def _other_mode(source: Source, hand: Hand, name: str) -> Edit | None:
    """Write one field of one event in the other delivery mode."""
    later = [
        emission
        for emission in _counted(source)
        if name in emission.pointers and preceding(source, emission) in _counted(source)
    ]
    chosen = _choose(hand, [item for item in later if value_at(source, item, name)])
    if chosen is None:
        return None
    before = preceding(source, chosen)
    assert before is not None
    if name not in before.pointers:
        return None
    now, then = value_at(source, chosen, name), value_at(source, before, name)
    if source.cumulative:
        new = now[len(then) :]
    else:
        emissions = next(
            choice for choice in source.stream.choices if choice.index == chosen.choice
        ).emissions
        earlier = [
            value_at(source, e, name) for e in emissions[: emissions.index(chosen)] if name in e.pointers
        ]
        new = [entry for part in earlier for entry in part] + now
    if new == now:
        return None
    body = body_of(source)
    with_value(body, chosen, **{name: new})
    return Edit(body, chosen.event.index)


# Series


@illegal
def a_series_loses_an_entry(source: Source, hand: Hand) -> Edit | None:
    return _with_series(source, hand, lambda entries, index: [*entries[:index], *entries[index + 1 :]])


@illegal
def a_series_repeats_an_entry(source: Source, hand: Hand) -> Edit | None:
    return _with_series(source, hand, lambda entries, index: [*entries[: index + 1], *entries[index:]])


def _with_series(source: Source, hand: Hand, change: Any) -> Edit | None:
    if source.stream.dialect != _NATIVE:
        return None
    options = [(item, name) for item in _counted(source) for name in _series(item)]
    if not options:
        return None
    chosen, name = hand.choose(options)
    entries = value_at(source, chosen, name)
    body = body_of(source)
    with_value(body, chosen, **{name: change(entries, hand.choose(range(len(entries))))})
    return Edit(body, chosen.event.index)


@illegal
def a_series_comes_in_the_other_mode(source: Source, hand: Hand) -> Edit | None:
    if source.stream.dialect != _NATIVE:
        return None
    names = sorted({name for item in _counted(source) for name in _series(item)})
    return _other_mode(source, hand, hand.choose(names)) if names else None


@illegal
def a_customized_key_is_missing_once(source: Source, hand: Hand) -> Edit | None:
    options = [(item, name) for item in _counted(source) for name in _series(item) if name in item.customized]
    whole = {name: [chosen for chosen, other in options if other == name] for _, name in options}
    options = [
        (chosen, name) for chosen, name in options if len(whole[name]) > 1 and chosen is not whole[name][0]
    ]
    if not options:
        return None
    chosen, name = hand.choose(options)
    body = body_of(source)
    value = json.loads(body.data[chosen.event.index])
    *way, last = chosen.pointers[name].split("/")[1:]
    holder = value
    for key in way:
        holder = holder[key]
    del holder[last]
    body.data[chosen.event.index] = written(value)
    return Edit(body, chosen.event.index)


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
    """Change an entry of a per-token series. Return None if `change` cannot change the chosen entry."""
    if source.stream.dialect != _NATIVE:
        return None
    chosen = _choose(hand, [item for item in _counted(source) if name in _series(item)])
    if chosen is None:
        return None
    entries = value_at(source, chosen, name)
    index = hand.choose(range(len(entries)))
    changed = change(entries[index])
    if changed is None:
        return None
    entries[index] = changed
    body = body_of(source)
    with_value(body, chosen, **{name: entries})
    return Edit(body, chosen.event.index)


# Counters, finish reason, identity


@illegal
def a_counter_is_off_by_one(source: Source, hand: Hand) -> Edit | None:
    chosen = _choose(hand, _counted(source))
    if chosen is None:
        return None
    body = body_of(source)
    changed = value_at(source, chosen, _COUNTER) + hand.choose((-1, 1))
    with_value(body, chosen, **{_COUNTER: changed})
    return Edit(body, chosen.event.index)


@illegal
def the_prompt_grows_on_the_way(source: Source, hand: Hand) -> Edit | None:
    if source.stream.dialect != _NATIVE:
        return None
    name = "prompt_tokens"
    chosen = _choose(hand, [item for item in carrying(source, name) if preceding(source, item)])
    if chosen is None:
        return None
    body = body_of(source)
    with_value(body, chosen, **{name: value_at(source, chosen, name) + 1})
    return Edit(body, chosen.event.index)


@illegal
def a_prompt_id_changes(source: Source, hand: Hand) -> Edit | None:
    name = "prompt_token_ids"
    if source.stream.asked.input_ids is None or not source.stream.asked.return_prompt_token_ids:
        return None
    chosen = _choose(hand, carrying(source, name))
    if chosen is None:
        return None
    ids = value_at(source, chosen, name)
    index = hand.choose(range(len(ids)))
    ids[index] += 1
    body = body_of(source)
    with_value(body, chosen, **{name: ids})
    return Edit(body, chosen.event.index)


@illegal
def the_request_id_changes(source: Source, hand: Hand) -> Edit | None:
    name = "request_id"
    if source.stream.dialect != _NATIVE:
        return None
    chosen = _choose(hand, [item for item in carrying(source, name) if preceding(source, item)])
    if chosen is None:
        return None
    body = body_of(source)
    with_value(body, chosen, **{name: value_at(source, chosen, name) + "x"})
    return Edit(body, chosen.event.index)


@illegal
def the_finish_is_lost(source: Source, hand: Hand) -> Edit | None:
    chosen = _choose(hand, [emission for emission in _finishing(source) if "finish" in emission.pointers])
    if chosen is None:
        return None
    body = body_of(source)
    with_value(body, chosen, finish=None)
    return Edit(body, chosen.event.index)


@illegal
def the_finish_comes_early(source: Source, hand: Hand) -> Edit | None:
    chosen = _choose(hand, [emission for emission in _finishing(source) if "finish" in emission.pointers])
    if chosen is None:
        return None
    emissions = next(choice for choice in source.stream.choices if choice.index == chosen.choice).emissions
    early = [emission for emission in emissions[: emissions.index(chosen)] if "finish" in emission.pointers]
    if not early:
        return None
    before = hand.choose(early)
    body = body_of(source)
    with_value(body, before, finish=value_at(source, chosen, "finish"))
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
    index = hand.choose(options)
    body = body_of(source)
    value = json.loads(body.data[index])
    value["index"] = 7
    body.data[index] = written(value)
    return Edit(body)


# Text and bytes


def _with_text(source: Source, hand: Hand, change: Any) -> Edit | None:
    """Change a text. The checks see the change only if the tokenizer knows the text of the ids."""
    asked = source.stream.asked
    if source.run.tokenizer is None or not _counted(source) or asked.stop or asked.stop_regex or asked.echo:
        return None
    if source.verdicts.get("text-is-what-its-ids-say") is None:
        return None
    chosen = _choose(
        hand,
        [
            emission
            for emission in carrying(source, "text")
            if emission.text and "\ufffd" not in emission.text
        ],
    )
    if chosen is None or chosen.text is None:
        return None
    index = hand.choose(range(len(chosen.text)))
    new = change(chosen.text, index)
    if (
        source.cumulative
        and following(source, chosen) is not None
        and new.startswith(chosen.text[: len(new)])
    ):
        return None
    body = body_of(source)
    with_value(body, chosen, text=new)
    return Edit(body, chosen.event.index)


@illegal
def a_character_is_lost(source: Source, hand: Hand) -> Edit | None:
    return _with_text(source, hand, lambda text, index: text[:index] + text[index + 1 :])


@illegal
def a_character_comes_twice(source: Source, hand: Hand) -> Edit | None:
    return _with_text(source, hand, lambda text, index: text[: index + 1] + text[index:])


@illegal
def a_character_is_broken(source: Source, hand: Hand) -> Edit | None:
    return _with_text(source, hand, lambda text, index: f"{text[:index]}\ufffd{text[index + 1 :]}")


@illegal
def an_event_is_no_json(source: Source, hand: Hand) -> Edit | None:
    body = body_of(source)
    index = hand.choose([n for n, data in enumerate(body.data) if data != "[DONE]"])
    data = body.data[index]
    body.data[index] = hand.choose(
        (data[:-1], data + "}", '{"x":NaN,' + data[1:], '{"x":1,"x":2,' + data[1:], '{"x":1e999,' + data[1:])
    )
    return Edit(body, index)


@illegal
def a_byte_is_no_text(source: Source, hand: Hand) -> Edit | None:
    body = body_of(source)
    index = hand.choose([n for n, data in enumerate(body.data) if data != "[DONE]"])
    frame = bytearray(body.frames()[index])
    frame[frame.index(b'"') + 1 : frame.index(b'"') + 1] = hand.choose((b"\xff", b"\xc3", b"\xe2\x82"))
    body.as_it_is[index] = bytes(frame)
    return Edit(body, index)


def unchanged(source: Source, body: Body) -> bool:
    """Return True if an edit changed nothing."""
    return body.bytes() == body_of(source).bytes() and body.ending is Ending.COMPLETE
