"""Violations of single sentences of the specification: mutations of any stream, and edits of an event.

Each row of `broken.yaml` and each mutation names the violated requirement, and the checks must agree.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from proofs.mutation.illegal import ILLEGAL, unchanged
from proofs.mutation.source import Source
from proofs.vectors.answers import CHAT, COMPLETIONS, answers_of
from proofs.vectors.doors import Door, Event, Shape
from proofs.vectors.legal import plain
from proofs.vectors.suite import Case, body_of, by_event, events_of
from tokenwire.judging.run import Run
from tokenwire.spec_files import read_yaml
from tokenwire.wire.exchange import Ending
from tokenwire.wire.json_pointer import find, parse

_T = TypeVar("_T")
LOST, DAMAGED = "broken-streams-are-told", "broken-records-are-told"
UNENDED = "unended-events-are-whole-or-dropped"
_SHOWS = frozenset(
    {"stream-ends-cleanly", "events-are-json-objects", "one-finish-per-choice", "choices-complete"}
)
"""Requirements whose violation a client notices itself: the stream breaks off, or its finish reason is
missing.
"""


@dataclass(frozen=True)
class Nth:
    """A source of choices that always takes the entry with this number, modulo the number of options."""

    number: int

    def choose(self, options: Sequence[_T]) -> _T:
        return options[self.number % len(options)]


MUTATIONS: dict[str, tuple[str, str]] = {
    "an-event-is-lost": ("ids-are-counted", ""),
    "an-event-comes-twice": ("incremental-ids-are-new", "one-finish-per-choice"),
    "two-events-change-places": ("incremental-ids-are-new", "cumulative-ids-extend"),
    "the-stream-ends-early-as-if-it-were-whole": ("one-finish-per-choice", "one-finish-per-choice"),
    "the-stream-is-cut-inside-an-event": ("stream-ends-cleanly", "stream-ends-cleanly"),
    "the-end-mark-is-missing": ("done-ends-the-stream", "done-ends-the-stream"),
    "the-end-mark-comes-twice": ("done-ends-the-stream", "done-ends-the-stream"),
    "something-follows-the-end-mark": ("done-ends-the-stream", "done-ends-the-stream"),
    "an-id-is-lost": ("ids-are-counted", "counter-follows-ids"),
    "an-id-comes-twice": ("ids-are-counted", "cumulative-ids-extend"),
    "an-id-is-none": ("ids-are-token-ids", "events-fit-schema"),
    "an-id-moves-to-the-event-before": ("counter-follows-ids", ""),
    "ids-come-in-the-other-mode": ("one-mode-per-stream", "one-mode-per-stream"),
    "a-series-loses-an-entry": ("logprobs-incremental", "logprobs-cumulative"),
    "a-series-repeats-an-entry": ("logprobs-incremental", "logprobs-cumulative"),
    "a-customized-key-is-missing-once": ("customized-info-incremental", "customized-info-cumulative"),
    "a-logprob-names-another-id": ("logprobs-name-their-ids", "logprobs-name-their-ids"),
    "a-logprob-is-above-zero": ("logprob-values-are-legal", "logprob-values-are-legal"),
    "a-counter-is-off-by-one": ("counter-follows-ids", "counter-follows-ids"),
    "the-prompt-grows-on-the-way": ("prompt-tokens-constant", "prompt-tokens-constant"),
    "the-request-id-changes": ("request-id-constant", "request-id-constant"),
    "the-finish-is-lost": ("one-finish-per-choice", "one-finish-per-choice"),
    "the-finish-comes-early": ("finish-comes-last", "finish-comes-last"),
    "a-choice-is-mislabelled": ("choices-complete", "choices-complete"),
    "an-event-is-no-json": ("events-are-json-objects", "events-are-json-objects"),
    "a-byte-is-no-text": ("stream-is-utf8", "stream-is-utf8"),
}
"""The requirements that a mutation violates in incremental and in cumulative delivery; empty if none."""
_MUTATED = ("text", "choices", "rollout")
_VARIANTS = {"an-event-is-no-json": 5, "the-stream-is-cut-inside-an-event": 4, "a-byte-is-no-text": 3}
_OF_ITEMS = frozenset({"the-stream-is-cut-inside-an-event", "an-event-is-no-json", "a-byte-is-no-text"})
"""Mutations that do not depend on end marks."""

GROUPS = {
    "chat and completions": CHAT | COMPLETIONS,
    "chat": CHAT,
    "completions": COMPLETIONS,
    "openai chat and completions": frozenset({"sglang-chat", "openai-chat", "openai-completions"}),
    "responses": frozenset({"openai-responses"}),
    "messages": frozenset({"anthropic-messages"}),
}
"""The endpoints of each table in `broken.yaml`."""


def _edit(events: list[Any], what: str, *given: Any) -> None:
    """Apply one edit of the table to the events of a stream."""
    match what, given:
        case "put" | "gone", (int(number), str(pointer), *value):
            *way, last = parse(pointer)
            holder = find(events[number], tuple(way)) if way else events[number]
            key: Any = int(last) if isinstance(holder, list) else last
            if value:
                holder[key] = value[0]
            else:
                del holder[key]
        case "out", (int(number),):
            del events[number]
        case "twice", (int(number),):
            events.insert(number, copy.deepcopy(events[number]))
        case "swap", (int(first), int(second)):
            events[first], events[second] = events[second], events[first]
        case "renumbered", ():
            for number, event in enumerate(events):
                event["sequence_number"] = number
        case "items turned", ():
            events[-1]["response"]["output"].reverse()
        case "relabelled", (int(index), int(other)):
            for choice in _choices(events, index):
                choice["index"] = other
        case "without choice", (int(index),):
            gone = list(map(id, _choices(events, index)))
            events[:] = [event for event in events if id(_first_choice(event)) not in gone]
        case _:
            raise ValueError(f"broken.yaml: there is no edit {what!r} of {given!r}")


def _first_choice(event: Event) -> Any:
    choices = event.get("choices") if isinstance(event, dict) else None
    return choices[0] if choices else None


def _choices(events: Sequence[Event], index: int) -> list[Any]:
    """Return the entries of a choice in events."""
    found = (_first_choice(event) for event in events)
    return [choice for choice in found if choice is not None and choice["index"] == index]


def broken_cases(door: Door, legal: dict[str, Case]) -> Iterator[Case]:
    """Yield the cases of an endpoint that violate a sentence. They are made from its legal cases."""
    yield from _mutated(door, legal)
    answers = {answer.name: answer for answer in answers_of(door.name)}
    tables = read_yaml(Path(__file__).with_name("broken.yaml"))
    for name, requirement, base, comment, edits in (
        row for group, rows in tables.items() if door.name in GROUPS[group] for row in rows
    ):
        events: list[Any] = copy.deepcopy(events_of(door, answers[base], plain(answers[base]), Shape()))
        for edit in edits:
            _edit(events, *edit)
        yield _broken(legal[base], name, comment, requirement, body_of(door, events).bytes())
    whole = legal["text"]
    for kind in ("application/json", "text/plain"):
        case = _broken(
            whole, kind.rpartition("/")[2], f"The media type is {kind}", "stream-content-type", b""
        )
        yield replace(case, reads=whole.reads, headers=(("content-type", kind),))
    for name, words, body in (
        ("reset", "behind the fourth event", b"".join(whole.reads[:4])),
        ("reset-at-once", "behind the first byte", whole.reads[0][:1]),
    ):
        case = _broken(whole, name, f"The connection breaks {words}", "stream-ends-cleanly", body)
        yield replace(case, ending=Ending.TRUNCATED)
    finish = next(number for number in range(len(whole.reads)) if _finishes(whole, number))
    last = len(whole.reads) - 1
    for name, words, number in (("finish", "the finish", finish), ("end", "the last event", last)):
        if name == "end" and number == finish:
            continue
        body = b"".join(whole.reads[: number + 1]).removesuffix(b"\n\n")
        comment = f"The stream ends behind {words}, without the blank line"
        case = _broken(whole, f"unended-{name}", comment, "stream-ends-cleanly", body)
        usage = {"usage": None} if number < last else {}
        yield replace(case, sentence=UNENDED, record={**(whole.record or {}), **usage})


def _finishes(case: Case, number: int) -> bool:
    """Return True if a read of a stream contains the finish reason."""
    stream = replace(case, reads=case.reads[: number + 1]).stream
    return any(choice.finish for choice in stream.choices)


def _broken(base: Case, name: str, comment: str, requirement: str, body: bytes) -> Case:
    return replace(
        base,
        id=f"{base.id}-{name}",
        comment=f"{base.comment}. {comment}",
        result="invalid",
        requirement=requirement,
        sentence=LOST if requirement in _SHOWS else DAMAGED,
        reads=by_event(body) if body else (),
        follows=base.id,
    )


def _mutated(door: Door, legal: dict[str, Case]) -> Iterator[Case]:
    for base in (legal[name] for name in _MUTATED if name in legal):
        stream = base.stream
        source = Source(stream, Run((stream,)))
        for name, by_mode in MUTATIONS.items():
            requirement = by_mode[door.cumulative]
            if not requirement or (door.named and name not in _OF_ITEMS):
                continue
            seen = {b"".join(base.reads)}
            for number in range(_VARIANTS.get(name, 2)):
                edit = ILLEGAL[name](source, Nth(number))
                if edit is None or unchanged(source, edit.body) or edit.body.bytes() in seen:
                    continue
                seen.add(edit.body.bytes())
                words = f"{name.replace('-', ' ').capitalize()}, at event {edit.event}"
                case = _broken(base, f"{name}-{number + 1}", words, requirement, edit.body.bytes())
                yield replace(case, ending=edit.body.ending)
