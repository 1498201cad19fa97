"""Hand-made streams and rows for the tests of judge and reports: one choice, ids, text, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenwire.ask import Asked
from tokenwire.record import Choice, Delivery, Emission, Event, Finish, Place, Stream
from tokenwire.requirement import Basis, Level, Requirement
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read


def ids_stream(
    *parts: Sequence[int],
    name: str = "generate/one",
    scenario: str = "one",
    stream: bool = True,
    key: str = "k",
    asked: Asked | None = None,
    series: dict[str, Sequence[Any]] | None = None,
    answered: bool = True,
) -> Stream:
    """A stream that delivers `parts`, one event each, and ends with `length`; `series` has a value per
    event.
    """
    asked = asked or Asked(stream=stream, key=key, greedy=True, input_ids=((1, 2),))
    events, emissions, reads = [], [], []
    position = 0
    for index, ids in enumerate(parts):
        data = f'data: {{"output_ids":{list(ids)}}}\n\n'.encode()
        place = Place(name, index, "", position, position + len(data), 0.1 * (index + 1))
        position += len(data)
        reads.append(Read(0.1 * (index + 1), data))
        event = Event(index, place, {"output_ids": list(ids)})
        events.append(event)
        emissions.append(
            Emission(
                event,
                0,
                pointers={"output_ids": "/output_ids"},
                output_ids=list(ids),
                text="".join(chr(97 + i % 26) for i in ids),
                series={k: v[index] for k, v in (series or {}).items()},
                finish=Finish("length") if index == len(parts) - 1 else None,
            )
        )
    exchange = Exchange(
        name=name,
        request=HttpRequest("POST", "/generate", {"input_ids": [1, 2], "text": "it's"}),
        scenario=scenario,
        status=200,
        headers=(("content-type", "text/event-stream"),),
        reads=tuple(reads),
        ending=Ending.COMPLETE,
    )
    choices = (
        Choice(0, Delivery.INCREMENTAL if asked.stream else Delivery.WHOLE, emissions=tuple(emissions)),
    )
    return Stream(
        exchange,
        "sglang-generate",
        asked,
        Delivery.INCREMENTAL if asked.stream else Delivery.WHOLE,
        tuple(events),
        choices if answered else (),
    )


def made_up_row(**changes: object) -> Requirement:
    """A requirement that no specification holds."""
    defaults = {
        "id": "made-up",
        "chapter": "record",
        "level": Level.MUST,
        "sentence": "Things MUST be so.",
        "profile": "core",
        "contract": "blackbox",
        "oracle": "within-response",
        "witnesses": 2,
        "applies_when": (),
        "condition": None,
        "upstream": (),
        "excluded": None,
        "basis": (Basis.TOKENWIRE,),
        "breaks": "any client",
    }
    return Requirement(**{**defaults, **changes})  # type: ignore[arg-type]  # values are checked by the tests
