"""Hand-made streams: a record, cut into emissions as it should be, and one thing changed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from tokenwire.ask import Asked
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Choice, Delivery, Emission, Event, Finish, Place, Stream, Usage
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

IDS = (11, 12, 13, 14, 15, 16)
TEXT = "abcdef"
PROMPT = (1, 2, 3)
GONE = object()
"""Given to `change` for a key: the emission does not carry it."""

STOP, LENGTH, ABORT = Finish("stop"), Finish("length"), Finish("abort")
FAILED = Finish("abort", code=500)

_BODY_TYPES = {Delivery.WHOLE: "application/json"}


def logprobs(ids: Sequence[int] = IDS) -> list[list[Any]]:
    """Sampled logprobs: one entry for each id."""
    return [[-0.5 - position, token, None] for position, token in enumerate(ids)]


def top_logprobs(ids: Sequence[int] = IDS) -> list[list[list[Any]]]:
    """Two top logprobs for each id, its own first."""
    return [
        [[-0.5 - position, token, None], [-9.5 - position, 90, None]] for position, token in enumerate(ids)
    ]


def chosen_logprobs(ids: Sequence[int] = IDS, chosen: Sequence[int] = (7, 5)) -> list[list[list[Any]]]:
    """Logprobs of chosen ids for each id."""
    return [[[-4.0, token, None] for token in chosen] for _ in ids]


@dataclass(frozen=True)
class Reply:
    """All that is told of one choice. Text has one character for each id."""

    ids: Sequence[int] | None = IDS
    text: str | None = TEXT
    series: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    customized: frozenset[str] = frozenset()
    prompt_ids: Sequence[int] | None = None
    prompt_series: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=lambda: {"prompt_tokens": len(PROMPT)})
    """Counters that do not change; completion_tokens is counted where `counted`."""
    counted: bool = True
    details: Mapping[str, Any] = field(default_factory=lambda: {"request_id": "r-1"})
    finish: Finish | None = LENGTH

    @property
    def size(self) -> int:
        return len(self.ids if self.ids is not None else self.text or "")


def _emission(
    reply: Reply, event: Event, choice: int, reach: tuple[int, int], delivery: Delivery
) -> Emission:
    start, end = reach
    part = slice(start if delivery is Delivery.INCREMENTAL else 0, end)
    last = end == reply.size and reply.finish is not None
    emission = Emission(
        event,
        choice,
        text=None if reply.text is None else reply.text[part],
        output_ids=None if reply.ids is None else list(reply.ids[part]),
        prompt_token_ids=None if reply.prompt_ids is None else list(reply.prompt_ids),
        series={name: list(entries[part]) for name, entries in reply.series.items()},
        customized=reply.customized,
        prompt_series={name: list(entries) for name, entries in reply.prompt_series.items()},
        counters={**({"completion_tokens": end} if reply.counted else {}), **reply.counters},
        details=dict(reply.details),
        finish=reply.finish if last else None,
    )
    return replace(emission, pointers=_pointers(emission))


def _pointers(emission: Emission) -> dict[str, str]:
    single = ("text", "output_ids", "prompt_token_ids", "finish")
    names = [name for name in single if getattr(emission, name) is not None]
    for fields in (emission.series, emission.prompt_series, emission.counters, emission.details):
        names += fields
    return {name: f"/{name}" for name in names}


def _place(name: str, index: int | None) -> Place:
    start = 100 * (index or 0)
    return Place(name, index, "", start, start + 100, 0.1 * (index or 0))


def _exchange(name: str, delivery: Delivery, body: Any) -> Exchange:
    media_type = _BODY_TYPES.get(delivery, "text/event-stream")
    return Exchange(
        name=name,
        request=HttpRequest("POST", "/generate", body),
        scenario="one",
        status=200,
        headers=(("Content-Type", f"{media_type}; charset=utf-8"),),
        reads=(Read(0.5, b"-"),),
        ending=Ending.COMPLETE,
    )


def build(
    delivery: Delivery = Delivery.INCREMENTAL,
    *,
    choices: Sequence[Reply] = (Reply(),),
    sizes: Sequence[int] | None = None,
    dialect: str = "sglang-generate",
    name: str = "generate/one",
    body: Any = None,
    usage: Mapping[str, Any] | None = None,
    **asked: Any,
) -> Stream:
    """A legal answer: each choice cut into parts of the given sizes, by default one id in each.

    Every emission has its own event; events of several choices take turns. `asked` overrides what was asked.
    """
    streamed = delivery is not Delivery.WHOLE
    wanted: dict[str, Any] = {
        "stream": streamed,
        "n": len(choices),
        "batch": len(choices) > 1,
        "input_ids": (PROMPT,),
        "max_new_tokens": choices[0].size if choices else None,
        "greedy": True,
        "key": "key",
    }
    exchange = _exchange(name, delivery, body)
    spoken = load_dialects().get(dialect)
    if body is not None and spoken is not None:
        wanted["sent"] = spoken.read_asked(exchange.request).sent
    cuts = []
    for index, choice in enumerate(choices):
        parts = [choice.size] if not streamed else list(sizes or [1] * choice.size or [0])
        ends = list(accumulate(parts))
        cuts += [
            (turn, index, end - part, end) for turn, (part, end) in enumerate(zip(parts, ends, strict=True))
        ]
    events: list[Event] = []
    by_choice: dict[int, list[Emission]] = {index: [] for index in range(len(choices))}
    for _, index, start, end in sorted(cuts):
        if streamed or not events:
            number = len(events)
            events.append(Event(number, _place(name, number if streamed else None), {"is": "an object"}))
        by_choice[index].append(_emission(choices[index], events[-1], index, (start, end), delivery))
    if streamed:
        events.append(Event(len(events), _place(name, len(events)), None, done=True))
    wants = Asked(**(wanted | asked))
    return Stream(
        exchange,
        dialect,
        wants,
        delivery,
        tuple(events),
        tuple(
            Choice(index, delivery, wants.likeliest, tuple(emissions))
            for index, emissions in by_choice.items()
        ),
        usage=usage,
        usage_place=_place(name, None) if usage is not None else None,
        usages=(Usage(_place(name, None), usage),) if usage is not None else (),
        schema="some-schema",
    )


def incremental(*choices: Reply, **options: Any) -> Stream:
    return build(Delivery.INCREMENTAL, choices=choices or (Reply(),), **options)


def cumulative(*choices: Reply, **options: Any) -> Stream:
    return build(Delivery.CUMULATIVE, choices=choices or (Reply(),), **options)


def whole(*choices: Reply, **options: Any) -> Stream:
    return build(Delivery.WHOLE, choices=choices or (Reply(),), **options)


def _changed(emission: Emission, fields: Mapping[str, Any]) -> Emission:
    replaced: dict[str, Any] = {}
    for name, value in fields.items():
        old = getattr(emission, name)
        if isinstance(old, Mapping):
            merged = {**old, **value}
            replaced[name] = {key: item for key, item in merged.items() if item is not GONE}
        else:
            replaced[name] = None if value is GONE else value
    emission = replace(emission, **replaced)
    return emission if "pointers" in fields else replace(emission, pointers=_pointers(emission))


def change(stream: Stream, position: int = -1, choice: int = 0, **fields: Any) -> Stream:
    """The stream with some fields of one emission of a choice changed; mappings are merged."""

    def edit(output: Choice) -> Choice:
        if output.index != choice:
            return output
        emissions = list(output.emissions)
        emissions[position] = _changed(emissions[position], fields)
        return replace(output, emissions=tuple(emissions))

    return replace(stream, choices=tuple(edit(item) for item in stream.choices))


def change_event(stream: Stream, position: int = -1, **fields: Any) -> Stream:
    """The stream with some fields of one event changed."""
    events = list(stream.events)
    events[position] = replace(events[position], **fields)
    return replace(stream, events=tuple(events))


def append(stream: Stream, edit: Callable[[Emission], Emission], choice: int = 0) -> Stream:
    """The stream with one more emission of a choice , made from its last one, in an event of its own."""
    number = len(stream.events) - 1
    event = Event(number, _place(stream.exchange.name, number), {"is": "an object"})
    end_mark = replace(stream.events[-1], index=number + 1, place=_place(stream.exchange.name, number + 1))

    def longer(output: Choice) -> Choice:
        if output.index != choice:
            return output
        added = edit(replace(output.emissions[-1], event=event))
        return replace(output, emissions=(*output.emissions, replace(added, pointers=_pointers(added))))

    choices = tuple(longer(item) for item in stream.choices)
    return replace(stream, events=(*stream.events[:-1], event, end_mark), choices=choices)


def with_exchange(stream: Stream, **fields: Any) -> Stream:
    """The stream with some fields of its exchange changed."""
    return replace(stream, exchange=replace(stream.exchange, **fields))


def named(stream: Stream, name: str) -> Stream:
    """The stream as an exchange of another name, so that evidence tells the two apart."""

    def moved(place: Place) -> Place:
        return place._replace(exchange=name)

    events = tuple(replace(event, place=moved(event.place)) for event in stream.events)
    by_index = {event.index: event for event in events}
    choices = tuple(
        replace(
            choice,
            emissions=tuple(replace(e, event=by_index[e.event.index]) for e in choice.emissions),
        )
        for choice in stream.choices
    )
    return replace(with_exchange(stream, name=name), events=events, choices=choices)


def refusal(status: int = 400, error: Any = None, **asked: Any) -> Stream:
    """An answer with a 4xx status; by default it says why."""
    body = asked.pop("body", None)
    dialect = asked.pop("dialect", "sglang-generate")
    error = {"error": {"message": "input_ids cannot be empty."}} if error is None else error
    blank = build(
        Delivery.WHOLE, choices=(), dialect=dialect, body=body, **({"n": 1, "batch": False} | asked)
    )
    event = Event(
        0,
        _place(blank.exchange.name, None),
        error,
        error=error.get("error") if isinstance(error, dict) else None,
    )
    stream = replace(blank, events=(event,), refused=True, error=error, schema="error")
    return with_exchange(stream, status=status)
