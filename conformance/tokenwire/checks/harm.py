"""Checks of harm: no request, valid or not, crashes the server or changes the answers to other requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from tokenwire.checks.about import ended, is_error
from tokenwire.checks.check import Target, check_run
from tokenwire.checks.difference import observe_sequence, observe_text
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.chance import goes_apart
from tokenwire.checks.reading.fields import end_place, start_place
from tokenwire.checks.reading.refusals import is_bad, put_off, was_refused
from tokenwire.checks.reading.times import INSTANT_S, began, over
from tokenwire.dialects.control import Action
from tokenwire.dialects.dialect import names_of
from tokenwire.record import Answer, Place
from tokenwire.target.alike import known_by
from tokenwire.target.death import DIED, closed_silently, failure, question_of
from tokenwire.wire.exchange import Ending


def _was_aborted(stream: Answer, target: Target) -> bool:
    """True if an abort named the request while it was running.

    Then the abort explains why the request ended.
    """
    return any(deed.names(names_of(stream)) for deed in target.deeds.beside(stream.exchange, Action.ABORT))


Good = tuple[str, tuple[object, ...], Answer]
"""A complete answer to a valid request, with the key of the request and the delivery mode."""


def _after_bad(streams: tuple[Answer, ...], target: Target) -> tuple[list[tuple[Answer, Answer]], list[Good]]:
    """Return pairs of a bad request and the valid request that followed it in the same conversation.

    The second value contains all answered valid requests.
    """
    bad: dict[tuple[str, str], Answer] = {}
    behind: list[tuple[Answer, Answer]] = []
    good: list[Good] = []
    for stream in streams:
        talk = (stream.exchange.scenario, stream.dialect)
        if _was_aborted(stream, target):
            continue
        if is_bad(stream, target):
            bad[talk] = stream
        elif not _failed(stream):
            if talk in bad and _sent_behind(bad[talk], stream):
                behind.append((bad.pop(talk), stream))
            if stream.asked.key and stream.answered and ended(stream):
                good.append((stream.asked.key, _delivered(stream), stream))
    return behind, good


def _sent_behind(bad: Answer, stream: Answer) -> bool:
    """True if a request was sent after the bad request was answered, or if the times are unknown."""
    answered, sent = over(bad.exchange), began(stream.exchange)
    return answered is None or sent is None or answered <= sent + INSTANT_S


def controls(streams: tuple[Answer, ...], target: Target) -> list[tuple[Answer, Answer]]:
    """Return pairs of a bad request and the valid request that followed it in the same conversation."""
    return _after_bad(streams, target)[0]


def _failed(stream: Answer) -> bool:
    """True if the answer shows nothing about harm: the suite ended it, the server deferred it, or it failed
    by itself.
    """
    given_up = stream.exchange.ending in {Ending.CANCELLED, Ending.HUNG_UP, Ending.OUTGROWN}
    return given_up or put_off(stream) or any(is_error(choice.finish) for choice in stream.choices)


@check_run("refused-request-harms-nobody")
def _refused_request_harms_nobody(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the request after a bad request is answered like the same request elsewhere in the run.

    A valid request can show harm only if the server also answered it at another time. The content of its
    answer is compared only if the server repeats its answers, except possibly those after a bad request. A
    difference counts only between answers with the same delivery mode. One different answer may be chance. If
    most answers differ, the differences are not chance.
    """
    compared: list[list[Observation]] = []
    behind, good = _after_bad(streams, target)
    after_bad = {control.exchange.name for _, control in behind}
    answers: dict[str, list[Answer]] = {}
    reported: Counter[tuple[object, ...]] = Counter()
    results: dict[str, list[int]] = {key: [] for key in target.contradicted}
    for key, delivered, stream in good:
        disturbed = stream.exchange.name in after_bad
        reported[key, delivered, disturbed] += 1
        # Two answers are enough: one after a bad request, and one elsewhere. Further answers add no
        # evidence.
        if reported[key, delivered, disturbed] <= 2:
            answers.setdefault(key, []).append(stream)
        if key in results and not disturbed:
            results[key].append(known_by([(choice.output_ids, choice.text) for choice in stream.choices]))
    of_controls = {control.asked.key for _, control in behind}
    repeats = bool(target.repeated) and target.contradicted <= of_controls
    for bad, control in behind:
        twins = [answer for answer in answers.get(control.asked.key, ()) if answer is not control]
        before = [candidate for candidate in twins if candidate.exchange.name not in after_bad]
        twin = next(iter(before or twins), None)
        place = end_place(control)
        if twin is None:
            yield left_out(place, "the request after a bad one has no complete answer elsewhere in the run")
            continue
        holds = control.answered and ended(control)
        ending, status = control.exchange.ending, control.exchange.status
        came = f"status {status}" if ending is Ending.COMPLETE else ending
        message = f"the request after a bad one got no complete answer ({came})"
        related = (start_place(bad), start_place(twin))
        yield expect(place, "an answer", control.exchange.status, message, holds=holds, related=related)
        before_refusal = results.get(control.asked.key)
        steady = before_refusal is None or (len(before_refusal) > 1 and len(set(before_refusal)) == 1)
        delivered = _delivered(control)
        alike = next((answer for answer in (*before, *twins) if _delivered(answer) == delivered), None)
        if holds and repeats and steady:
            observations = list(_as_before(control, alike or twin))
            # An answer with another delivery mode can prove that there was no harm. A difference from such an
            # answer does not prove harm.
            if alike is not None or all(candidate.holds for candidate in observations):
                compared.append(observations)
    changed = sum(not all(candidate.holds for candidate in observations) for observations in compared)
    chance = changed < _NO_CHANCE or 2 * changed < len(compared)
    for seen in chain.from_iterable(compared):
        yield seen._replace(by_chance=seen.by_chance and chance)


_NO_CHANCE = 3
"""The number of changed answers from which near ties no longer count as chance, if at least half of all
answers changed.
"""


def _delivered(stream: Answer) -> tuple[object, ...]:
    """Return the delivery mode and interval of an answer. Content that is lost in delivery is not harm."""
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


_OF_A_WORKER = frozenset({502, 504})
"""Statuses with which a healthy gateway reports that its worker did not answer."""


@check_run("requests-do-not-break-the-server")
def _requests_do_not_break_the_server(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that every request, valid or not, ends in an answer or a refusal.

    The worst failures come first: a death of the server, then no response, then a status. If the server
    answered nothing at all, nothing is judged, because it may not be an inference server.
    """
    if not any(stream.answered for stream in streams):
        return
    for death in target.deaths:
        place = end_place(death.of) if death.call is None else Place(death.name)
        yield expect(place, "a record or a refusal", DIED, death.words, holds=False)
    looked_at = []
    closed_once = _closed_once(streams)
    for stream in streams:
        given_up = stream.exchange.ending in {Ending.CANCELLED, Ending.HUNG_UP}
        if given_up or stream.exchange.status in _OF_A_WORKER:
            continue
        if stream is closed_once:
            reason = "one connection of the run was closed without a byte; the repeated request was answered"
            yield left_out(end_place(stream), reason)
            continue
        failed = failure(stream)
        if failed or stream.answered or was_refused(stream):
            looked_at.append((stream, failed))
    for stream, failed in sorted(looked_at, key=_gravest_first):
        message = f"the request ended in a failure of the server ({failed})"
        actual = failed or "a record or a refusal"
        yield expect(end_place(stream), "a record or a refusal", actual, message, holds=not failed)


def _closed_once(streams: tuple[Answer, ...]) -> Answer | None:
    """Return the only answer of a run whose connection was closed without a byte, if the closing may be an
    accident. The closing may be an accident if the same request was answered at another time. A live run
    repeats such a request.
    """
    closed = [stream for stream in streams if closed_silently(stream.exchange)]
    if len(closed) != 1:
        return None
    asked = question_of(closed[0])
    answered = (stream for stream in streams if stream.answered or was_refused(stream))
    return closed[0] if any(question_of(stream) == asked for stream in answered) else None


def _gravest_first(looked_at: tuple[Answer, str]) -> int:
    stream, failed = looked_at
    return 2 if not failed else int(stream.exchange.status is not None)
