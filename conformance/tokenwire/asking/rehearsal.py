"""A rehearsal: runs all scenarios without a server, to find the most requests, tokens and cost of a run.

A scenario may choose a request by an earlier answer. So each request gets an invented answer at once, the
longest answer that its dialect allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire.ask import Asked
from tokenwire.asking.politeness import Price, prompt_tokens, tokens_asked
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.dialects.control import load_controls
from tokenwire.dialects.dialect import Dialect
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, dialect_and_label
from tokenwire.wire.json_pointer import parse, put

_MOST_EVENTS = 32
"""The most tokens of an invented answer. No scenario waits for more."""
_STREAMED = "text/event-stream"
_BESIDE = "beside"
"""The value in place of the dialect in the key of requests that belong to no dialect."""


@dataclass(frozen=True)
class Estimate:
    """The most requests and tokens of one scenario in one dialect."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
        )

    def cost(self, price: Price) -> float:
        return price.of(self.prompt_tokens, self.output_tokens)


@dataclass
class Rehearsal:
    """A sender without a network: invents the answers, and counts requests and tokens."""

    dialects: Sequence[Dialect]
    context_length: int
    asked: dict[tuple[str, str], Estimate] = field(default_factory=dict)
    """Estimates by dialect and scenario, in the order of the first request."""
    _dearest: dict[tuple[str, str], Estimate] = field(default_factory=dict)
    """The estimate of the most expensive request, by dialect and scenario."""

    def count(self, request: HttpRequest, scenario: str, dialect: str = _BESIDE) -> None:
        """Count one request."""
        tokens = tokens_asked(request, self.dialects, self.context_length)
        estimate = Estimate(1, prompt_tokens(request, self.dialects), tokens)
        key = dialect, scenario
        self.asked[key] = self.asked.get(key, Estimate()) + estimate
        dearest = self._dearest.get(key, estimate)
        self._dearest[key] = max(estimate, dearest, key=lambda known: known.output_tokens)

    def raise_to(self, requests: int, scenario: str, dialect: str) -> None:
        """Raise the estimate of a scenario to this number of requests.

        Each added request costs as much as the scenario's most expensive request.
        """
        key = dialect, scenario
        while key in self.asked and self.asked[key].requests < requests:
            self.asked[key] += self._dearest[key]

    async def send(
        self,
        name: str,
        scenario: str,
        request: HttpRequest,
        *,
        slow_reader: SlowReader | None = None,  # noqa: ARG002  # a rehearsal does not wait
        tap: Tap | None = None,
        aside: bool = False,  # noqa: ARG002  # as above
    ) -> Exchange:
        """Return the invented answer to a request."""
        named, _ = dialect_and_label(name, scenario)
        dialect = next((dialect for dialect in self.dialects if dialect.name == named), None)
        asked = dialect.read_asked(request) if dialect is not None and request in dialect.endpoint else None
        self.count(request, scenario, dialect.name if dialect else _BESIDE)
        control = load_controls().get(dialect.family) if dialect is not None else None
        parts = [(control.idle(request) if control is not None else None) or b"{}"]
        if dialect is not None and asked is not None:
            text = dialect.request.says.text(request.body) if dialect.request.says is not None else None
            parts = list(_answer(dialect, asked, text))
        if tap is not None:
            tap.begin()
            for part in parts:
                tap.read(part)
            tap.end()
        streamed = asked is not None and asked.stream
        return Exchange(
            name=name,
            request=request,
            scenario=scenario,
            status=200,
            headers=(("content-type", _STREAMED if streamed else "application/json"),),
            reads=tuple(Read(0.0, part) for part in parts),
            ending=Ending.COMPLETE,
        )


def _answer(dialect: Dialect, asked: Asked, text: str | None) -> Iterator[bytes]:
    """Yield the parts of an answer with as many tokens as the request allows. A stream has one event per
    token.

    `text`: the first token; a text that the request's grammar permits.
    """
    table = dialect.table["answer"]
    count = max(1, min(asked.max_new_tokens or 1, _MOST_EVENTS))
    pieces = [
        f" {chr(97 + position % 26)}{position}" if text is None else text * (position == 0)
        for position in range(count)
    ]
    if dialect.has_items:
        yield from _item_answer(table, pieces, stream=asked.stream)
        return
    choices = range(max(1, asked.prompts * asked.n))
    if not asked.stream:
        every = [_choice(table["whole"], choice, pieces, 0, last=True) for choice in choices]
        yield json.dumps(_document(table["whole"], every, whole=not asked.batch)).encode()
        return
    for position in range(count):
        for choice in choices:
            document = _choice(
                table["stream"], choice, pieces[position : position + 1], position, last=position + 1 == count
            )
            yield (
                b"data: " + json.dumps(_document(table["stream"], [document], whole=True)).encode() + b"\n\n"
            )
    if mark := dialect.policy.end_mark:
        yield f"data: {mark}\n\n".encode()


def _item_answer(table: Mapping[str, Any], pieces: Sequence[str], *, stream: bool) -> Iterator[bytes]:
    """Yield an answer with one text item and finish reason `length`.

    In a stream, the finish has its own event.
    """
    if not stream:
        document = _of_kind(table["whole"], "text", "".join(pieces))
        holder: dict[str, Any] = {}
        put(holder, parse(table["whole"]["items"]), [document])
        yield json.dumps(holder | _spent(table["whole"]["document"]["finish"])).encode()
        return
    rows = table["stream"]["kinds"]
    ends, row = next((kind, row) for kind, row in rows.items() if "finish" in row)
    deltas = [_of_kind(table["stream"], "text", piece) for piece in pieces[1:]]
    for event in (*deltas, {"type": ends, **_spent(row["finish"])}):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _of_kind(table: Mapping[str, Any], field: str, value: str) -> dict[str, Any]:
    """Return an item or event of the first type that has this field, with the field set to `value`."""
    kind, row = next((kind, row) for kind, row in table["kinds"].items() if field in row)
    written: dict[str, Any] = {}
    holder, star, rest = row[field].partition("/*")
    put(written, parse(holder), [{parse(rest)[0]: value}] if star else value)
    first, *others = kind.split()
    beside = [pointer for pointer in table["kind"] if parse(pointer)[:-1] == parse(row[field])[:-1]]
    for pointer, name in zip((table["kind"][0], *beside), (first, *others), strict=False):
        put(written, parse(pointer), name)
    return written


def _spent(finish: Mapping[str, Any]) -> dict[str, Any]:
    """Return the finish fields of an answer that reached its token limit."""
    words = next(word for word, kind in finish["types"].items() if kind == "length")
    written: dict[str, Any] = {}
    put(written, parse(finish["reason"][0]), words)
    return written


def _choice(
    table: Mapping[str, Any], choice: int, pieces: Sequence[str], start: int, *, last: bool
) -> dict[str, Any]:
    """Return a choice that contains these tokens. `start`: the index of the first token."""
    finish, end = table.get("finish", {"type": ""}), start + len(pieces)
    values: dict[str, Any] = {
        table.get("text", ""): "".join(pieces),
        table.get("output_ids", ""): [100 + (position + 31 * choice) % 400 for position in range(start, end)],
        table.get("prompt_token_ids", ""): [200, 201, 202],
        table.get("index", ""): choice,
        table.get("counters", {}).get("completion_tokens", ""): end,
        table.get("details", {}).get("result", ""): float(choice),
        finish["type"]: "length" if last else None,
    }
    written: dict[str, Any] = {}
    for pointer, value in values.items():
        if pointer and not (pointer == finish["type"] and value is None):
            put(written, parse(pointer), value)
    return written


def _document(table: Mapping[str, Any], choices: list[dict[str, Any]], *, whole: bool) -> Any:
    """Return the response body for these choices: one object, a list, or an object that contains a list."""
    if not table["choices"]:
        return choices[0] if whole and len(choices) == 1 else choices
    document: dict[str, Any] = {}
    put(document, parse(table["choices"]), choices)
    return document
