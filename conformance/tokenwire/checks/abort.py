"""Checks of aborts and of clients that disconnect: which requests end, what they report, and which requests
are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tokenwire.checks.about import ANY, about, ended, finished_choices, is_error, was_aborted
from tokenwire.checks.agreement import agree, choice_pairs, same_beginning
from tokenwire.checks.check import (
    Relation,
    Target,
    check,
    check_finished,
    check_rows,
    check_run,
    check_run_rows,
    select,
)
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import count_of, end_place
from tokenwire.checks.reading.refusals import put_off
from tokenwire.checks.reading.times import INSTANT_S, began, delivered_at, over, overlap, timeline
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.dialect import family_of, known_as, names_of
from tokenwire.record import Answer, Choice, Delivery, Stream, integer
from tokenwire.requirement import tolerance
from tokenwire.target.advertised import clears_refused_after_s
from tokenwire.typed_table import counted
from tokenwire.wire.exchange import Ending, ExchangeHead

TOKENS_AFTER_LEAVING = int(tolerance("tokens_after_leaving"))
"""A disconnected request must end before another running request has received this many tokens."""


def _single(stream: Answer) -> bool:
    asked = stream.asked
    return asked.prompts * asked.n == 1 and not asked.batch and len(stream.choices) == 1


def _aborts(stream: Answer, target: Target, names: frozenset[str] | None = None) -> list[ControlCall]:
    """Return the answered abort calls that name a request, by any of its ids or by one of `names`."""
    names = names_of(stream) if names is None else names
    return [call for call in target.aborts if call.ids & names] if names else []


def _abort_under_way(stream: Stream, target: Target, name: str | None) -> ControlCall | None:
    """Return the first abort of a stream by `name` that reached the stream early.

    The abort must be sent after the first tokens, and answered before a quarter of the budget was delivered.
    """
    budget = stream.asked.max_new_tokens
    if budget is None or name is None or not _single(stream):
        return None
    for call in _aborts(stream, target, frozenset({name})):
        sent, answered = began(call.exchange), over(call.exchange)
        before = delivered_at(stream, sent) if sent is not None else None
        after = delivered_at(stream, answered) if answered is not None else None
        if before and after is not None and after * 4 <= budget:
            return call
    return None


_FASTER = 4
"""The maximum ratio of the speed after an abort to the speed before it. A higher ratio shows that tokens were
buffered.
"""


def _came_as_made(stream: Stream, moment: float) -> bool:
    """True if the rest of a stream was generated after `moment`, as far as a client can see.

    If the reader stalls, or the server writes slowly, the rest arrives late and all at once.
    """
    start = began(stream.exchange)
    times = sorted(emission.event.place.time for choice in stream.delivering for emission in choice.delivered)
    before = [time for time in times if start is not None and start + time <= moment]
    later = times[len(before) :]
    if start is None or not before or len(later) < 2 or times[-1] - times[0] < times[0]:
        return False
    pace = len(before) / max(moment - start - times[0], INSTANT_S)
    return len(later) - 1 <= _FASTER * pace * max(later[-1] - later[0], INSTANT_S)


@dataclass(frozen=True)
class _Aborted(Relation):
    """An early abort by a request id must keep a stream from using its whole budget."""

    name: Callable[[Answer], str | None]
    words: str = ""
    """Text for the message that describes the abort. It may contain `{name}`."""


def _observe_aborted(row: _Aborted, stream: Stream, target: Target) -> Iterator[Observation]:
    name = row.name(stream)
    call = _abort_under_way(stream, target, name)
    if call is None:
        return
    how = row.words.format(name=name)
    message = f"the request was aborted early{how}, and went on to the end of its budget"
    for choice in finished_choices(stream):
        if was_aborted(choice) or _came_as_made(stream, over(call.exchange) or 0.0):
            yield from early_end(stream, choice, message)


def early_end(stream: Stream, choice: Choice, message: str) -> Iterator[Observation]:
    """Check that a choice that was aborted early did not use its whole budget. Choices that met a stop are
    skipped.
    """
    finish, count = choice.finish, count_of(stream, choice)
    if finish is not None and finish.type in {"abort", "length"}:
        actual, holds = f"{finish.type} after {'all' if count is None else count} tokens", was_aborted(choice)
        yield expect(choice.last_at("finish"), "an end before the budget", actual, message, holds=holds)


check_rows(
    _observe_aborted,
    _Aborted("abort-ends-the-request", about(ended=True, finished=True), known_as),
    _Aborted(
        "abort-knows-the-clients-id",
        about(ended=True, finished=True),
        lambda stream: stream.asked.request_id,
        " by the id {name!r} that its client gave it",
    ),
)


@check("abort-is-told", about(ended=True))
def _abort_is_told(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a choice reports `abort` if only an abort can explain that the choice ended before its
    budget.
    """
    asked = stream.asked
    if asked.stoppable or not _single(stream) or not _aborts(stream, target):
        return
    for choice in () if stream.refused else stream.choices:
        count = count_of(stream, choice)
        used_up = count is None or asked.max_new_tokens is None or count >= asked.max_new_tokens
        finish = choice.finish.type if choice.finish is not None else None
        if (used_up and finish in {None, "length"}) or is_error(choice.finish):
            continue
        message = f"the choice was ended by an abort, and finished with {finish!r}"
        yield expect(choice.last_at("finish"), "abort", finish, message)


def _taken_back(choice: Choice) -> str:
    """Describe the ids that an aborted choice delivered earlier and lacks at its end. Empty if no
    id is lost.
    """
    after = [emission.after for emission in choice.delivered]
    if choice.delivery is Delivery.INCREMENTAL or not after:
        return ""
    shown, last = max(after[:-1], default=0), after[-1]
    return f"{shown} output ids had been delivered, the end has {last}" if last < shown else ""


@check_finished("aborted-ids-are-counted")
def _aborted_ids_are_counted(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the end of an aborted choice has every id that the choice delivered.

    It must also have the number of these ids, and one entry for each id in each series.
    """
    ids = choice.output_ids
    if not was_aborted(choice) or ids is None:
        return
    last = choice.emissions[-1]
    fault = _taken_back(choice)
    count = integer(last.counters.get("completion_tokens"))
    if not fault and count is not None and count != len(ids):
        fault = f"completion_tokens is {count}, and the output ids are {len(ids)}"
    # Wherever these series are present, they have one entry for each output id.
    per_token = {name for name in choice.series_names if "logprob" in name} | choice.customized
    for name in sorted(per_token):
        entries = choice.series(name)
        if not fault and entries is not None and len(entries) != len(ids):
            fault = f"{name} has {counted(len(entries), 'entry')} for {len(ids)} output ids"
    if not fault and not ids:
        return
    expected = "all ids that were delivered, counted"
    place = last.at("output_ids")
    yield expect(place, expected, fault or f"{len(ids)} output ids, counted", fault, holds=not fault)


def _undisturbed(streams: tuple[Answer, ...]) -> dict[tuple[object, ...], Answer]:
    """Return the longest answer to each greedy request that was not aborted."""
    longest: dict[tuple[object, ...], Answer] = {}
    for stream in streams:
        key, choices = same_beginning(stream), finished_choices(stream)
        if key is None or not ended(stream) or len(choices) != 1 or was_aborted(choices[0]):
            continue
        held = longest.get(key)
        if held is None or (count_of(held, held.choices[0]) or 0) < (count_of(stream, choices[0]) or 0):
            longest[key] = stream
    return longest


@select
def _aborted_in_part(stream: Stream) -> bool:
    """Select the answers in which a choice was aborted."""
    return any(map(was_aborted, stream.choices))


@check_run("aborted-answer-is-a-prefix")
def _aborted_answer_is_a_prefix(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that an aborted answer equals the beginning of the answer to the same request without
    an abort.
    """
    whole = _undisturbed(streams) if _aborted_in_part(streams) else {}
    for stream in _aborted_in_part(streams):
        twin = whole.get(same_beginning(stream) or ())
        if twin is not None:
            for twin_choice, choice in choice_pairs(twin, stream):
                yield from agree(twin_choice, choice, "the answer that was not aborted")


@select
def named_by_clients(stream: Stream) -> bool:
    """Select the answers to requests whose client set a request id."""
    return stream.asked.request_id is not None


def _met(stream: Answer, call: ControlCall) -> bool:
    """True if a call was sent and answered while a request was running."""
    start, sent = began(stream.exchange), began(call.exchange)
    answered, end = over(call.exchange), over(stream.exchange)
    if start is None or sent is None or answered is None or end is None:
        return False
    return start <= sent and answered <= end


@check_run("abort-spares-others")
def _abort_spares_others(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that an abort does not end the concurrent requests that it does not name."""
    nearby: dict[str, list[ControlCall]] = {}
    for call in target.calls:
        if call.aborts:
            nearby.setdefault(call.exchange.scenario, []).append(call)
    sent = {scenario: timeline((c.exchange, c) for c in calls) for scenario, calls in nearby.items()}
    named = {
        scenario: frozenset().union(*(call.ids for call in calls))
        for scenario, calls in nearby.items()
        if not any(call.everything for call in calls)
    }
    for stream in named_by_clients(streams):
        name, scenario = known_as(stream), stream.exchange.scenario
        if name is None or scenario not in named or named[scenario] & names_of(stream):
            continue
        beside = sent[scenario].during(began(stream.exchange), over(stream.exchange))
        for choice in finished_choices(stream) if beside and _single(stream) and ended(stream) else ():
            aborted = sorted({request_id for call in beside for request_id in call.ids})
            others = [request_id for request_id in aborted if name.startswith(request_id)] or aborted
            message = f"request {name!r} was ended by an abort of {', '.join(map(repr, others))}"
            place = choice.last_at("finish")
            if not was_aborted(choice) and not any(_met(stream, call) for call in beside):
                yield left_out(place, "no other request was aborted while this one was running")
                continue
            actual = choice.finish.type if choice.finish else None
            yield expect(place, "an end of its own", actual, message, holds=not was_aborted(choice))


def _ended_before(stream: Answer, call: ControlCall) -> bool:
    """True if a request certainly ended before an abort was sent, or was sent after the abort was
    answered.
    """
    start, end = began(stream.exchange), over(stream.exchange)
    sent, answered = began(call.exchange), over(call.exchange)
    if start is None or end is None or sent is None or answered is None:
        return False
    return end <= sent + INSTANT_S or answered <= start + INSTANT_S


@check_run("abort-of-nobody-is-no-failure")
def _abort_of_nobody_is_no_failure(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that an abort of an unknown or ended request does not fail."""
    known: dict[str, list[Answer]] = {}
    firsts: dict[str, Answer] = {}
    for stream in streams:
        firsts.setdefault(stream.exchange.scenario, stream)
    for stream in named_by_clients(streams):
        for name in names_of(stream):
            known.setdefault(name, []).append(stream)
    for call in target.calls:
        if call.action is not Action.ABORT or not call.ids:
            continue
        named = [stream for name in call.ids for stream in known.get(name, ())]
        if named and all(overlap(stream.exchange, call.exchange) for stream in named):
            continue
        beside = firsts.get(call.exchange.scenario)
        if beside is None or call.exchange.ending is not Ending.COMPLETE:
            continue
        status = call.exchange.status or 0
        if status < 500 and not all(_ended_before(stream, call) for stream in named):
            yield left_out(end_place(beside), "a request with the aborted id may have been running")
            continue
        message = f"{call.exchange.name}: the abort of an id that no request has gave status {status}"
        yield expect(end_place(beside), "a status below 500", status, message, holds=status < 500)


@check_run("abort-without-ids-is-refused")
def _abort_without_ids_is_refused(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that an abort without ids is refused by a server that takes aborts with ids."""
    aborts = [call for call in target.calls if call.action is Action.ABORT]
    served = any(call.done and call.ids for call in aborts)
    firsts: dict[str, Answer] = {}
    for stream in streams:
        firsts.setdefault(stream.exchange.scenario, stream)
    for call in aborts if served else ():
        beside, status = firsts.get(call.exchange.scenario), call.exchange.status
        if not call.lacks_ids or beside is None or call.exchange.ending is not Ending.COMPLETE:
            continue
        message = f"{call.exchange.name}: an abort without ids gave status {status}"
        yield expect(end_place(beside), "a status from 400 to 499", status, message, holds=call.refused)


@check_run("id-in-use-spares-the-first")
def _id_in_use_spares_the_first(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a second request with the same id does not end the first request.

    A PASS needs a first request that was still running when the server cleaned up after the second request.
    """
    named: dict[str, list[Answer]] = {}
    for stream in named_by_clients(streams):
        if stream.asked.request_id and began(stream.exchange) is not None:
            named.setdefault(stream.asked.request_id, []).append(stream)
    for name, group in named.items():
        first, *later = sorted(group, key=lambda stream: began(stream.exchange) or 0.0)
        beside = [second for second in later if overlap(first.exchange, second.exchange)]
        if not beside or _aborts(first, target) or first.exchange.ending.ours or put_off(first):
            continue
        choice = first.choices[0] if len(first.choices) == 1 else None
        finish = choice.finish if choice is not None else None
        holds = ended(first) and finish is not None and finish.type != "abort"
        message = f"the request {name!r} did not finish after another request with the same id was sent"
        place = choice.last_at("finish") if choice else end_place(first)
        actual = finish.type if finish else str(first.exchange.ending)
        timer = clears_refused_after_s(family_of(first.dialect))
        lasted = max((over(first.exchange) or 0.0) - (over(second.exchange) or 0.0) for second in beside)
        if holds and lasted <= timer:
            why = f"it ended {lasted:.1f} s after the other; the server clears that one after {timer:g} s"
            yield left_out(place, why if timer else "it ended before the other request")
            continue
        yield expect(
            place, "an end of its own", actual, message, holds=holds, related=(end_place(beside[0]),)
        )


def _loads(target: Target, scenario: str, dialect: str) -> list[ControlCall]:
    """Return the answered load requests of a scenario in one dialect, in the order in which they
    were sent.
    """
    talk = (scenario, dialect)
    calls = [c for c in target.calls if (c.exchange.scenario, c.exchange.named_dialect) == talk and c.load]
    return sorted(calls, key=lambda call: began(call.exchange) or 0.0)


@dataclass(frozen=True)
class _Left(Relation):
    """A request must end soon after its client has disconnected."""

    streamed: bool


def _observe_left(row: _Left, streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Observe the requests from which the suite disconnected, grouped by scenario and dialect."""
    groups: dict[tuple[str, str], list[Answer]] = {}
    for answer in streams:
        if answer.exchange.ending is Ending.HUNG_UP and answer.asked.stream is row.streamed:
            groups.setdefault((answer.exchange.scenario, answer.dialect), []).append(answer)
    for left in groups.values():
        yield from _after_leaving(left, streams, target)


check_run_rows(
    _observe_left,
    _Left("left-stream-is-ended", ANY, streamed=True),
    _Left("left-request-is-ended", ANY, streamed=False),
)


def _after_leaving(left: list[Answer], streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the load falls after clients have disconnected.

    The load must fall before another running request has received many more tokens. A load response shows the
    state at an unknown time between the load request and the response. A response that arrived in time and
    counts fewer requests proves that the disconnected requests ended. A load request that was sent too late
    proves a violation if its response still counts the disconnected requests. A late response that does not
    count the disconnected requests proves nothing, because they may have ended at any earlier time.
    """
    scenario, dialect = left[0].exchange.scenario, left[0].dialect
    loads = _loads(target, scenario, dialect)
    moment = max(over(answer.exchange) or 0.0 for answer in left)
    before = [call for call in loads if (over(call.exchange) or 0.0) <= moment]
    neighbours = [
        stream
        for stream in streams
        if (stream.exchange.scenario, stream.dialect) == (scenario, dialect)
        and ended(stream)
        and stream.answered
    ]
    if not before or not neighbours or before[0].load is None or before[0].load.live:
        return  # the load is unknown, or other clients use the server
    running = max(before, key=_live)
    neighbour, busy = neighbours[0], _live(running)
    if busy <= len(left):
        return  # the requests and their neighbour were never seen running together
    more, end = _more_tokens(neighbour, moment, over), over(neighbour.exchange) or 0.0
    later = [call for call in loads[loads.index(running) + 1 :] if call.load is not None]
    while_clocked = [call for call in later if (began(call.exchange) or 0.0) <= end]
    freed = [c for c in while_clocked if _live(c) <= busy - len(left)]
    in_time = [c for c in freed if more(c) <= TOKENS_AFTER_LEAVING]
    sent_after = _more_tokens(neighbour, moment, began)
    late = [c for c in later if _live(c) > busy - len(left) and sent_after(c) >= TOKENS_AFTER_LEAVING]
    for call in (in_time or late)[:1]:
        still, tokens = _live(call), more if in_time else sent_after
        yield expect(
            end_place(left[0]),
            f"at most {busy - len(left)} live requests",
            still,
            f"{len(left)} clients left, and {tokens(call)} tokens later {still} of {busy} requests "
            "were still live",
            holds=bool(in_time),
        )
    first, last = before[0].load, later[-1].load if later else None
    if last is None or last.live or first.used_tokens is None or last.used_tokens is None:
        return
    kept = last.used_tokens > first.used_tokens
    if kept or in_time or late:
        yield expect(
            end_place(left[0]),
            f"at most {first.used_tokens}",
            last.used_tokens,
            f"no request is left, and {last.used_tokens} positions of the cache are held; before "
            f"there were {first.used_tokens}",
            holds=not kept,
        )


def _live(call: ControlCall) -> int:
    return call.load.live if call.load is not None else 0


def _more_tokens(
    neighbour: Answer, moment: float, when: Callable[[ExchangeHead], float | None]
) -> Callable[[ControlCall], int]:
    """Return a function that counts the tokens that a neighbour got from `moment` until a load call.

    `when` returns the start or the end of a call.
    """
    stream = neighbour.load()
    so_far = delivered_at(stream, moment) or 0
    return lambda call: (delivered_at(stream, when(call.exchange) or 0.0) or 0) - so_far
