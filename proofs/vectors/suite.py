"""All cases of an endpoint from the tables: answers, legal changes of answers, and violations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proofs.mutation.edit import Body, written
from proofs.mutation.framing import FEATURES, UNNAMED, pairs
from proofs.vectors import legal
from proofs.vectors.answers import CHAT, FIRST, HALVES, TEXT, Answer, Output, Token, answers_of, record_of
from proofs.vectors.doors import DOORS, Door, Event, Shape, Step, request
from proofs.vectors.legal import plain
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Delivery, Stream
from tokenwire.wire.event_stream import parse_event_stream
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire_clients.vectors import reads_of

MEDIA_TYPE = "text/event-stream; charset=utf-8"
MANY = 100_000
_REPLACES = "cumulative-replaces"
"""The behaviour of a client that replaces cumulative snapshots instead of joining deltas."""


@dataclass(frozen=True)
class Case:
    """One vector."""

    door: str
    id: str
    comment: str
    sentence: str
    """The sentence for clients that the case tests."""
    request: dict[str, Any]
    reads: tuple[bytes, ...]
    record: dict[str, Any] | None
    """The final content of a correct client; None if it is unknown."""
    result: str = "valid"
    requirement: str = ""
    """The requirement that the case violates."""
    follows: str = ""
    """The case from which this case is made. If a client fails that case, it fails this one for the same
    reason.
    """
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", MEDIA_TYPE),)
    ending: Ending = Ending.COMPLETE
    rules: tuple[Any, ...] = field(default=(), compare=False)
    """The reads as rules, if there are too many reads to write them all. `reads` follows from the rules."""

    @property
    def exchange(self) -> Exchange:
        """The exchange that is judged."""
        door = DOORS[self.door]
        reads = tuple(Read(n / 1000, read) for n, read in enumerate(self.reads))
        asked = HttpRequest("POST", door.path, self.request)
        name = f"{door.dialect}/vectors/{self.id}"
        started = "2026-01-01T00:00:00.000000+00:00"
        return Exchange(
            name, asked, "vectors", self.status, self.headers, reads, self.ending, started=started
        )

    @property
    def stream(self) -> Stream:
        """The stream in Tokenwire's own reader."""
        hint = Delivery.CUMULATIVE if DOORS[self.door].cumulative else Delivery.INCREMENTAL
        return load_dialects()[DOORS[self.door].dialect].read(self.exchange, delivery_hint=hint)


def events_of(door: Door, answer: Answer, steps: Sequence[Step], shape: Shape) -> list[Event]:
    return list(door.write(door, answer, steps, shape))


def body_of(door: Door, events: Sequence[Event], how: Any = written) -> Body:
    return Body([event if isinstance(event, str) else how(event) for event in events], named=door.named)


def by_event(body: bytes) -> tuple[bytes, ...]:
    """Return the bytes of a stream in reads that end at the ends of events."""
    events, _, _ = parse_event_stream(body)
    return tuple(legal.cut(body, [event.end for event in events]))


def _case(door: Door, answer: Answer, name: str, comment: str, body: bytes, **more: Any) -> Case:
    return Case(
        door.name,
        f"{answer.name}-{name}" if name else answer.name,
        f"{answer.comment}. {comment}" if comment else answer.comment,
        more.pop(
            "sentence", _REPLACES if door.cumulative and answer.sentence == legal.DELTAS else answer.sentence
        ),
        more.pop("request", None) or request(door, answer),
        more.pop("reads", None) or by_event(body),
        record_of(answer, door.name),
        follows=answer.name if name else FIRST.get(answer.name, "text"),
        **more,
    )


def legal_cases(door: Door) -> Iterator[Case]:
    """Yield the cases that a correct client reads into the known record."""
    output = {answer.name: answer for answer in answers_of(door.name)}
    for answer in output.values():
        for name, comment, events in _delivered(door, answer):
            yield _case(door, answer, name, comment, body_of(door, events).bytes())
    text, characters = output["text"], output["characters"]
    events = events_of(door, text, legal.plain(text), Shape())
    for name, (sentence, comment, shape, doors, answers) in legal.SHAPES.items():
        told = answers.split() if door.name.rpartition("-")[2] in doors.split() else ()
        for answer in (output[shown] for shown in told if shown in output):
            shaped = body_of(door, events_of(door, answer, legal.plain(answer), shape)).bytes()
            asked = request(door, answer)
            if name == "usage-in-each" and "stream_options" in asked:
                asked["stream_options"] |= {"continuous_usage_stats": True}
            yield _case(door, answer, name, comment, shaped, sentence=sentence, request=asked)
    for name, (sentence, comment, change) in legal.CHANGED.items():
        if name in {"nulls", "absent"} and door.name not in CHAT - {"sglang-chat"}:
            continue
        changed = body_of(door, [change(event) for event in events]).bytes()
        yield _case(door, text, name, comment, changed, sentence=sentence)
    for name, (sentence, comment, how) in legal.WRITTEN.items():
        told_events = events_of(door, characters, legal.plain(characters), Shape())
        encoded = body_of(door, told_events, how).bytes()
        yield _case(door, characters, name, comment, encoded, sentence=sentence)
    # cumulative texts contain the whole character
    if not door.cumulative and door.name != "openai-responses":
        halves = events_of(door, HALVES, legal.plain(HALVES), Shape())
        yield _case(door, HALVES, "", "", body_of(door, halves, json.dumps).bytes())
    yield from _framed_cases(door, text, body_of(door, events))
    for answer, table in ((text, legal.CUT), (characters, legal.CUT_CHARACTERS)):
        body = body_of(door, events_of(door, answer, legal.plain(answer), Shape())).bytes()
        for name, (sentence, comment, where) in table.items():
            reads = tuple(legal.cut(body, where(body)))
            yield _case(door, answer, name, comment, body, sentence=sentence, reads=reads)


def _framed_cases(door: Door, text: Answer, body: Body) -> Iterator[Case]:
    """Yield cases with a short answer for each framing feature, and for each pair of framing features."""
    for name, (sentence, feature) in legal.FRAMED.items():
        if name in UNNAMED and door.named:
            continue
        framed = feature.of(body).bytes()
        yield _case(door, text, name, feature.comment, framed, sentence=sentence)
        if name == "crlf":
            ends = [offset for offset, byte in enumerate(framed) if byte == 0x0A]
            reads = tuple(legal.cut(framed, ends))
            yield _case(
                door, text, "crlf-cut", "CR LF, cut between the two", framed, sentence=sentence, reads=reads
            )
    short = short_answer("framed", "Three tokens")
    body = body_of(door, events_of(door, short, plain(short), Shape()))
    for pair in pairs(named=door.named):
        first, second = (FEATURES[name] for name in pair)
        comment = f"{first.comment}; {second.comment[0].lower()}{second.comment[1:]}"
        case = _case(door, short, "-".join(pair), comment, second.of(first.of(body)).bytes())
        yield replace(case, sentence="framings-are-combined", follows=f"text-{pair[1]}")


def _delivered(door: Door, answer: Answer) -> Iterator[tuple[str, str, list[Event]]]:
    yield "", "", events_of(door, answer, legal.plain(answer), Shape())
    for name, comment, steps in legal.deliveries(answer):
        if not (answer.failed and name == "all-at-once"):
            yield name, comment, events_of(door, answer, steps, Shape())


def refused_cases(door: Door) -> Iterator[Case]:
    """Yield answers that are not streams. A client must report their error."""
    message = "max_tokens must be at least 1"
    shapes: dict[str, Any] = {
        "refused": {
            "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        },
        "refused-flat": {"object": "error", "message": message, "type": "BadRequestError", "code": 400},
    }
    if door.name == "anthropic-messages":
        shapes = {
            "refused": {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        }
    (text,) = (answer for answer in answers_of(door.name) if answer.name == "text")
    for name, body in shapes.items():
        yield Case(
            door.name, name, "A refusal in the place of a stream", "errors-are-told", request(door, text),
            (written(body).encode(),), {"choices": [], "usage": None, "error": message}, status=400,
            headers=(("content-type", "application/json"),),
        )  # fmt: skip


_COUNTS = re.compile(r'("(?:completion_tokens|output_tokens|total_tokens|sequence_number|length)":)(\d+)')
_SHORT = 3


def short_answer(name: str, comment: str) -> Answer:
    """Return an answer of three tokens that ends at the token limit."""
    tokens = tuple(Token(300 + place, piece, TEXT) for place, piece in enumerate(("a", " b", " c")))
    return Answer(name, comment, "long-streams-are-read", (Output(tokens, finish="length"),))


def long_case(door: Door, times: int = MANY) -> Case:
    """Return a long stream that follows a rule: the events of the middle token of a short answer are
    repeated.

    If each event contains the whole state, the first state is repeated.
    """
    short = short_answer("long", f"{times} events")
    more = 0 if door.cumulative else times - _SHORT
    frames = [
        read.decode()
        for read in by_event(body_of(door, events_of(door, short, plain(short), Shape())).bytes())
    ]
    middle = next(
        place for place, frame in enumerate(frames) if ('"a"' if door.cumulative else '" b"') in frame
    )

    def counted(frame: str, by: int) -> str:
        return _COUNTS.sub(lambda found: f"{found[1]}{int(found[2]) + by}", frame)

    template, first = frames[middle], 0
    if found := re.search(r'"(?:completion_tokens|sequence_number)":(\d+)', template):
        first = int(found[1])
        template = template[: found.start(1)] + ("{n}" if more else found[1]) + template[found.end(1) :]
    rule = {"text": template, "first": first, "times": times - _SHORT + 1}
    tail: list[Any] = []
    for frame in frames[middle + 1 :]:
        begin, repeated, end = counted(frame, more).partition("a b c") if more else (frame, "", "")
        while repeated:
            tail += [begin + "a", {"text": " b", "first": 0, "times": times - 2}]
            begin, repeated, end = (" c" + end).partition("a b c")
        tail.append(begin)
    rules = (*frames[:middle], rule, *tail)
    ids = {"join": [[300], {"repeat": [301], "times": 1 + more}, [302]]}
    record = record_of(short, door.name)
    choice = record["choices"][0]
    choice["text"] = {"join": ["a", {"repeat": " b", "times": 1 + more}, " c"]}
    if "output_ids" in choice:
        choice["output_ids"] = ids
    if record["usage"]:
        record["usage"]["completion_tokens"] += more
    asked = json.loads(
        json.dumps(request(door, short)).replace(f'tokens": {_SHORT}', f'tokens": {_SHORT + more}')
    )
    reads = tuple(reads_of(rules))
    return Case(
        door.name,
        "long",
        f"{times} events",
        short.sentence,
        asked,
        reads,
        record,
        follows="text",
        rules=rules,
    )


def settled(case: Case) -> Case:
    """Return a case with the result of its checks.

    Raises ValueError if a legal case violates a MUST, or if a broken case does not violate its requirement.
    """
    judged = judge([Run((case.stream,))])
    by_verdict: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for judgement in judged:
        by_verdict[judgement.verdict].append(judgement.requirement.id)
    if by_verdict[Verdict.HARNESS_ERROR]:
        raise ValueError(f"{case.door} {case.id}: the judge failed")
    failed = by_verdict[Verdict.FAIL]
    if case.result == "invalid":
        if case.requirement not in failed:
            raise ValueError(f"{case.door} {case.id} keeps {case.requirement}, and violates {failed}")
        return case
    if failed:
        raise ValueError(f"{case.door} {case.id} is to be legal, and violates {failed}")
    lesser = [*by_verdict[Verdict.WARN], *by_verdict[Verdict.INFO]]
    return replace(case, result="acceptable", requirement=lesser[0]) if lesser else case
