"""Checks of refusals: what must be refused, how it is said, and that no other request is harmed by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from tokenwire.checks.about import ended, is_error
from tokenwire.checks.check import Target, check, check_run
from tokenwire.checks.difference import observe_sequence, observe_text
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.bad_values import (
    impossible_ones,
    names_unknown_ids,
    unknown_prompt_ids,
    unreadable_body,
)
from tokenwire.checks.reading.chance import goes_apart
from tokenwire.checks.reading.fields import end_place, start_place
from tokenwire.dialects.control import Action
from tokenwire.dialects.dialect import is_chat, names_of, policy_of
from tokenwire.record import Answer, Asked, Stream, fact, integer
from tokenwire.target.death import ORDINARY
from tokenwire.target.determinism import known_by
from tokenwire.target.honesty import SCENARIO, UNKNOWN_PATH
from tokenwire.wire.exchange import BUSY, Ending

ABOUT_ACCESS_OR_LOAD = frozenset({401, 403, 407, 408, 429, 499, 503})
"""Statuses that a server, or a gateway before it, gives before it looks at a request: no access, not now."""
NOT_ABOUT_THE_REQUEST = ABOUT_ACCESS_OR_LOAD | {404, 405}
"""Statuses that say nothing of the request's content; two more tell of its path."""

TITO_FIELDS: Mapping[str, str] = {
    "return_prompt_token_ids": "prompt_token_ids",
    "return_meta_info": "meta_info",
    "return_token_ids": "token_ids",
}
"""What a chat stream may have to refuse: the field of `Asked`, and what its wire names have in common."""

_SHAPES = '{"error": {"message": …}}, {"error": …} or {"object": "error", "message": …, "code": …}'
"""Those of the schema of errors, in words: which of them a server meant cannot be told."""


def words_of(error: object) -> str:
    """What an error body says, in words; empty where it says nothing."""
    if isinstance(error, str):
        return error.strip()
    if isinstance(error, Mapping):
        stated = (words_of(error[name]) for name in ("message", "error", "detail") if name in error)
        return next((words for words in stated if words), "")
    return ""


def _is_refusal(code: int | None) -> bool:
    return code is not None and 400 <= code < 500 and code not in NOT_ABOUT_THE_REQUEST


def _refused_in_band(stream: Answer) -> bool:
    """Whether all that a stream says of its request is a 4xx code: in an error event without any choice
    beside it, or in the aborts that end every choice.

    A server that has committed itself to status 200 before it looked at the request has no other way.
    """
    if not stream.choices:
        return _is_refusal(_code_in_band(stream))
    finishes = (choice.finish for choice in stream.choices)
    return all(f is not None and is_error(f) and _is_refusal(integer(f.code)) for f in finishes)


def _code_in_band(stream: Answer) -> int | None:
    """The code of a stream's error event; None where there is none."""
    error = stream.error
    if not stream.asked.stream or stream.exchange.status != 200 or not isinstance(error, Mapping):
        return None
    nested = error.get("error")
    return integer((nested if isinstance(nested, Mapping) else error).get("code"))


def put_off(stream: Answer) -> bool:
    """Whether the target had no room for a request, or none any more, by its status or by an error event."""
    return stream.exchange.busy or _code_in_band(stream) in BUSY


def was_refused(stream: Answer) -> bool:
    """Whether the target refused what the request asks for, by its status or in a stream."""
    by_status = stream.refused and stream.exchange.status not in NOT_ABOUT_THE_REQUEST
    return by_status or _refused_in_band(stream)


def observe_refusal(stream: Stream, what: str) -> Iterator[Observation]:
    """Look whether a request was refused; nothing to see where no answer came, or none about it."""
    status = stream.exchange.status
    if status is None or status in NOT_ABOUT_THE_REQUEST:
        return
    message = f"{what} answered with status {status} instead of being refused"
    yield expect(start_place(stream), "a 4xx status", status, message, holds=was_refused(stream))


@check("refusal-is-json")
def refusal_is_json(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A refusal is JSON of the shape of an error, and says why."""
    if not stream.refused or not was_refused(stream):
        return
    faults = [event.problem for event in stream.events if event.problem]
    stated = words_of(stream.error)
    if any(event.schema_errors for event in stream.events) and stated:
        faults = [f"{stated[:80]!r} stands in no shape of an error: {_SHAPES}"]
    elif not faults and not stated:
        faults = ["the body does not say why"]
    yield expect(
        start_place(stream),
        "a JSON error that says why",
        faults[:3] or stated,
        "; ".join(faults[:2]),
        holds=not faults,
    )


def _asks_for_nothing(asked: Asked) -> bool:
    return asked.input_ids is not None and not (asked.input_ids and all(asked.input_ids))


@check("empty-input-ids-refused")
def empty_input_ids_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """No ids are no prompt, alone or in a batch."""
    if _asks_for_nothing(stream.asked):
        yield from observe_refusal(stream, "an empty list of input_ids was")


def _are_ids(values: Collection[object]) -> bool:
    return {*map(type, values)} <= {int}


def _malformed(value: object) -> bool:
    """Whether a JSON value is neither a list of integers nor a list of such lists."""
    if not isinstance(value, (list, tuple)):
        return True
    if all(isinstance(row, (list, tuple)) for row in value):
        return not all(map(_are_ids, value))
    return not _are_ids(value)


def _sent_malformed_ids(stream: Stream) -> bool:
    """Whether a request has something else where its ids should stand.

    Where an endpoint takes ids and text in one field, a text is no malformed list of ids.
    """
    stated = stream.asked.sent.get("input_ids")
    mixed = policy_of(stream).mixed_prompts
    return stated is not None and not mixed and any(v is not None and _malformed(v) for v in stated.values)


@check("malformed-input-ids-refused")
def malformed_input_ids_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Strings, fractions, booleans, null and deeper lists are no token ids."""
    if _sent_malformed_ids(stream):
        yield from observe_refusal(stream, "malformed input_ids were")


def _asks_in_vain(stream: Stream, target: Target, name: str) -> bool:
    """Whether a chat stream was asked for something that this dialect does not stream."""
    return (
        target.tito_stream_refused
        and is_chat(stream)
        and stream.asked.stream
        and bool(getattr(stream.asked, name))
        and stream.exchange.status is not None
        and stream.exchange.status not in NOT_ABOUT_THE_REQUEST
    )


def _observe_early_refusal(stream: Stream, target: Target, name: str) -> Iterator[Observation]:
    if not _asks_in_vain(stream, target, name):
        return
    status = stream.exchange.status
    message = f"a chat stream that asks for {TITO_FIELDS[name]} was answered with status {status}"
    yield expect(
        start_place(stream),
        "status 400 before any event",
        status,
        message,
        holds=stream.refused and status == 400,
    )


@check("chat-stream-refuses-prompt-ids")
def chat_stream_refuses_prompt_ids(stream: Stream, target: Target) -> Iterator[Observation]:
    """Chat streams have no place for prompt_token_ids. Asking for all token ids is another question."""
    if not stream.asked.return_token_ids:
        yield from _observe_early_refusal(stream, target, "return_prompt_token_ids")


@check("chat-stream-refuses-meta-info")
def chat_stream_refuses_meta_info(stream: Stream, target: Target) -> Iterator[Observation]:
    """Chat streams have no place for meta_info."""
    yield from _observe_early_refusal(stream, target, "return_meta_info")


@check("chat-stream-refuses-token-ids")
def chat_stream_refuses_token_ids(stream: Stream, target: Target) -> Iterator[Observation]:
    """Chat streams have no place for the ids of the response."""
    yield from _observe_early_refusal(stream, target, "return_token_ids")


@check("refusal-names-the-field")
def refusal_names_the_field(stream: Stream, target: Target) -> Iterator[Observation]:
    """The refusal of a chat stream names the field, and says that it is to be had without streaming."""
    fields = [part for name, part in TITO_FIELDS.items() if _asks_in_vain(stream, target, name)]
    if not fields or not was_refused(stream):
        return
    stated = words_of(stream.error)
    holds = any(field in stated for field in fields) and "stream" in stated
    expected = f"words that name {' or '.join(fields)} and the way out: no stream"
    message = "the refusal does not name the field and the way out"
    yield expect(start_place(stream), expected, stated, message, holds=holds)


@fact(Stream)
def _misshapen(stream: Stream) -> bool:
    """Whether a request ought to be refused by any target, whatever its vocabulary."""
    unreadable = unreadable_body(stream.exchange.request)
    empty = _asks_for_nothing(stream.asked)
    return bool(unreadable) or empty or _sent_malformed_ids(stream) or any(impossible_ones(stream))


def _is_bad(stream: Answer, target: Target) -> bool:
    """Whether a request was refused, or ought to have been."""
    return was_refused(stream) or _misshapen(stream) or names_unknown_ids(stream, target)


def refused_as_bad(stream: Answer, target: Target) -> bool:
    """Whether a request was refused that ought to have been."""
    return was_refused(stream) and (_misshapen(stream) or names_unknown_ids(stream, target))


def _was_aborted(stream: Answer, target: Target) -> bool:
    """Whether an abort named a request while it was under way: what became of it is the abort's doing."""
    return any(deed.names(names_of(stream)) for deed in target.deeds.beside(stream.exchange, Action.ABORT))


def suspicion(stream: Answer, target: Target) -> int:
    """How much a request is to be suspected of having ended the server: the less, the more."""
    if any(unknown_prompt_ids(stream.asked, target.advertised.vocab_size)):
        return 0
    return 1 if _misshapen(stream) or names_unknown_ids(stream, target) else ORDINARY


Good = tuple[str, tuple[object, ...], Answer]
"""A complete answer to a good request, with its key and how it was delivered."""


def _after_bad(streams: tuple[Answer, ...], target: Target) -> tuple[list[tuple[Answer, Answer]], list[Good]]:
    """Each good request that was sent next after a bad one in the same talk, behind that bad one; and all
    good ones that were answered.
    """
    bad: dict[tuple[str, str], Answer] = {}
    controls: list[tuple[Answer, Answer]] = []
    good: list[Good] = []
    for stream in streams:
        talk = (stream.exchange.scenario, stream.dialect)
        if _was_aborted(stream, target):
            continue
        if _is_bad(stream, target):
            bad[talk] = stream
        elif not _failed(stream):
            if talk in bad:
                controls.append((bad.pop(talk), stream))
            if stream.asked.key and stream.answered and ended(stream):
                good.append((stream.asked.key, _delivered(stream), stream))
    return controls, good


def _failed(stream: Answer) -> bool:
    """Whether an answer failed as the request itself may have caused, was given up by this suite, or was put
    off by the target.
    """
    failures = (is_error(choice.finish) for choice in stream.choices)
    return (
        any(failures)
        or put_off(stream)
        or stream.exchange.ending in {Ending.CANCELLED, Ending.HUNG_UP, Ending.OUTGROWN}
    )


@check_run("refused-request-harms-nobody")
def refused_request_harms_nobody(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """The request after a bad one is answered as the same request was elsewhere in the run.

    Only a request that the target could answer at another time tells whether harm was done. Results are
    compared where the target was seen to repeat itself, and where nothing but such requests contradicts it;
    a difference counts beside an answer that was delivered in the same way.
    One that goes another way may do so by chance; where most of them do, it is none.
    """
    compared: list[list[Observation]] = []
    controls, good = _after_bad(streams, target)
    after_bad = {control.exchange.name for _, control in controls}
    answers: dict[str, list[Answer]] = {}
    reported: Counter[tuple[object, ...]] = Counter()
    results: dict[str, list[int]] = {key: [] for key in target.contradicted}
    for key, delivered, stream in good:
        disturbed = stream.exchange.name in after_bad
        reported[key, delivered, disturbed] += 1
        if (
            reported[key, delivered, disturbed] <= 2
        ):  # a control, and the first beside it: others tell no more
            answers.setdefault(key, []).append(stream)
        if key in results and not disturbed:
            results[key].append(known_by([(choice.output_ids, choice.text) for choice in stream.choices]))
    repeats = bool(target.repeated) and target.contradicted <= {one.asked.key for _, one in controls}
    for bad, control in controls:
        twins = [answer for answer in answers.get(control.asked.key, ()) if answer is not control]
        before = [one for one in twins if one.exchange.name not in after_bad]
        twin = next(iter(before or twins), None)
        if twin is None:
            continue
        holds = control.answered and ended(control)
        yield expect(
            end_place(control),
            "an answer",
            control.exchange.status,
            f"the request after a bad one got no complete answer ({control.exchange.ending})",
            holds=holds,
            related=(start_place(bad), start_place(twin)),
        )
        own = results.get(control.asked.key)
        steady = own is None or (len(own) > 1 and len(set(own)) == 1)
        alike = next((one for one in (*before, *twins) if _delivered(one) == _delivered(control)), None)
        if holds and repeats and steady:
            look = list(_as_before(control, alike or twin))
            # What was delivered in another way can show only that nothing was harmed.
            if alike is not None or all(one.holds for one in look):
                compared.append(look)
    changed = sum(not all(one.holds for one in look) for look in compared)
    chance = changed < _NO_CHANCE or 2 * changed < len(compared)
    for look in compared:
        yield from (one._replace(by_chance=one.by_chance and chance) for one in look)


_NO_CHANCE = 3
"""Near ties do not go the other way after so many bad requests, and nowhere else."""


def _delivered(stream: Answer) -> tuple[object, ...]:
    """How an answer was delivered: what a stream loses on its way is no harm done."""
    return stream.delivery, stream.asked.stream_interval


def _as_before(control: Answer, twin: Answer) -> Iterator[Observation]:
    source = "the answer to the same request elsewhere"
    others = {choice.index: choice for choice in twin.choices}
    for choice in control.choices:
        if choice.index not in others:
            continue
        other = others[choice.index]
        by_chance, related = goes_apart((other, choice)), (other.last_at(),)
        ids, other_ids = choice.output_ids, other.output_ids
        text, other_text = choice.text, other.text
        if ids is not None and other_ids is not None:
            yield observe_sequence(
                choice.last_at("output_ids"),
                "output id",
                expected=other_ids,
                actual=ids,
                source=source,
                related=related,
                by_chance=by_chance,
            )
        elif text is not None and other_text is not None:
            place = choice.last_at("text")
            yield observe_text(
                place, expected=other_text, actual=text, source=source, related=related, by_chance=by_chance
            )


@check("unknown-paths-are-not-found")
def unknown_paths_are_not_found(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A path that no server has; the scenario's other requests go to the endpoint."""
    exchange = stream.exchange
    if exchange.scenario != SCENARIO or exchange.label != UNKNOWN_PATH:
        return
    if exchange.status is None or exchange.status in ABOUT_ACCESS_OR_LOAD:
        return
    message = f"{exchange.request.path}, which no server has, was answered with status {exchange.status}"
    place = start_place(stream)
    yield expect(place, 404, exchange.status, message)
