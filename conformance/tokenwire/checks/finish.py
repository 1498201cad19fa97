"""Checks of finish reasons across answers: budgets near a known stop, and prompts near the end of the
context.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import eq, itemgetter

from tokenwire.checks.check import Target, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import EXTRAS, asked_alike, count_of, end_place, start_place
from tokenwire.checks.reading.refusals import NOT_ABOUT_THE_REQUEST, was_refused
from tokenwire.checks.round_trips import Whole, related_streams
from tokenwire.checks.stops import stop_string_of
from tokenwire.dialects.dialect import is_chat, policy_of
from tokenwire.record import Answer, Stream, fact
from tokenwire.target.advertised import CONTEXT_BORDER


def _stops(whole: Whole) -> tuple[object, ...]:
    """Return a key of everything in a request that influences its answer, except the budget."""
    prompt = whole.stream.asked.prompt_key or whole.prompt
    stops = ("stop", "stop_token_ids", "stop_regex", "ignore_eos", "min_new_tokens")
    return (prompt, *asked_alike(whole.stream, "other_sampling", *stops))


def _tokens_to_stop(whole: Whole) -> int | None:
    """Return the number of sampled tokens at which a choice stopped. None if it did not stop, or does not
    report the number.
    """
    if whole.choice.finish is None or whole.choice.finish.type != "stop":
        return None
    count = count_of(whole.stream, whole.choice)
    return None if count is None else count + (not policy_of(whole.stream).stop_id_in_output_ids)


@check_run("stop-wins-within-the-budget")
def _stop_wins_within_the_budget(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that each answer ends at its budget or at the known stop, whichever comes first.

    The answer with the largest budget shows where the choice stops. This stop needs confirmation: a second
    answer that stopped at the same token, or a stop of the request at the end of the answer. Otherwise the
    answer may have been cut short.
    """
    groups: dict[tuple[object, ...], list[tuple[int, int | None, Whole]]] = {}
    seen = _Ends()
    for whole in related_streams(streams):
        seen.add(whole)
        budget = whole.stream.asked.max_new_tokens
        if budget and (whole.stream.asked.prompt_key or whole.prompt):
            groups.setdefault(_stops(whole), []).append((budget, _tokens_to_stop(whole), whole))
    yield from _ends_of_the_model(streams, seen)
    for group in groups.values():
        _, position, most = max(group, key=itemgetter(0))
        alike = sum(stopped_at == position for _, stopped_at, _ in group)
        if position is None or not (alike > 1 or _meets_a_stop(most)):
            continue
        # Without ids, a server may or may not count the end-of-sequence token: llama.cpp counts it.
        unsure = most.choice.output_ids is None and not _meets_a_stop(most)
        for budget, _, whole in group:
            finish = whole.choice.finish
            if whole is most or finish is None or finish.type not in {"stop", "length"}:
                continue
            if unsure and budget == position:
                continue
            expected, kind = "stop" if budget >= position else "length", finish.type
            message = f"finished with {kind} at a budget of {budget}; the stop comes at token {position}"
            yield expect(
                whole.choice.last_at("finish"),
                expected,
                kind,
                message,
                related=(most.choice.last_at("finish"),),
                by_chance=not _begins_alike(whole, most),
            )


@fact(Stream)
def _goes_on_behind(stream: Stream) -> frozenset[int]:
    """Return the ids after which an answer continued.

    These ids are not end-of-sequence ids, because an end-of-sequence id would have ended the answer.
    """
    if stream.asked.ignore_eos or stream.asked.min_new_tokens:
        return frozenset()
    lists = (choice.output_ids or [] for choice in stream.choices)
    return frozenset(token for ids in lists for token in ids[:-1] if type(token) is int)


@fact(Stream)
def _only_the_model_ends(stream: Stream) -> bool:
    """True if only an end-of-sequence id or the budget can end a choice, and neither a stop nor a grammar."""
    asked = stream.asked
    stops = (asked.stop, asked.stop_token_ids, asked.stop_regex, asked.ignore_eos, asked.min_new_tokens)
    grammar = asked.constraints or asked.tools
    return policy_of(stream).stop_id_in_output_ids and not (any(stops) or grammar)


_ENDS = 2
"""The number of answers that must stop with an id before their budget to show that it is an end-of-sequence
id.
"""


class _Ends:
    """The ends of greedy answers that only an end-of-sequence id or the budget can end."""

    def __init__(self) -> None:
        self.before: Counter[tuple[str, object]] = Counter()
        """The number of answers that stopped before their budget, by dialect and last id."""
        self.at_budget: list[tuple[Whole, int, object, str]] = []
        """The answers that used their whole budget, each with the budget, the last id and the finish reason.
        """

    def add(self, whole: Whole) -> None:
        budget, ids, finish = whole.stream.asked.max_new_tokens, whole.ids, whole.choice.finish
        if not ids or budget is None or finish is None or not _only_the_model_ends(whole.stream):
            return
        if len(ids) == budget and finish.type in {"stop", "length"}:
            self.at_budget.append((whole, budget, ids[-1], finish.type))
        elif len(ids) < budget and finish.type == "stop":
            self.before[whole.stream.dialect, ids[-1]] += 1


def _ends_of_the_model(streams: tuple[Answer, ...], seen: _Ends) -> Iterator[Observation]:
    """Check the finish reason of answers that use their whole budget and may end with an end-of-sequence id.

    Other answers show if the last id is an end-of-sequence id. An id after which an answer continued is not
    an end-of-sequence id. An id with which several answers stopped before their budget is an end-of-sequence
    id.
    """
    spent = [
        (whole, budget, last, kind, times)
        for whole, budget, last, kind in seen.at_budget
        if (times := seen.before[whole.stream.dialect, last]) >= _ENDS or kind == "stop"
    ]
    going_on: defaultdict[str, set[int]] = defaultdict(set)
    for stream in streams if spent else ():
        going_on[stream.dialect] |= _goes_on_behind(stream)
    for whole, budget, last, kind, times in spent:
        dialect = whole.stream.dialect
        place, what = whole.choice.last_at("finish"), f"finished with {kind} at its budget of {budget}"
        if last in going_on[dialect]:
            if kind == "stop":
                message = f"{what}; its last id, {last}, does not end other answers"
                yield expect(place, "length", kind, message)
        elif times >= _ENDS:
            yield expect(place, "stop", kind, f"{what}; its last id, {last}, ended {times} other answers")


def _meets_a_stop(whole: Whole) -> bool:
    """True if a choice ends with a stop id or a stop string of its request."""
    asked, ids = whole.stream.asked, whole.ids or ()
    return ids[-1:] in {(stop,) for stop in asked.stop_token_ids} or bool(stop_string_of(asked, whole.choice))


def _begins_alike(whole: Whole, other: Whole) -> bool:
    """True if two choices agree up to the end of the shorter one.

    Their texts are compared if ids are unknown.
    """
    if whole.ids is not None and other.ids is not None:
        return all(map(eq, whole.ids, other.ids))
    texts = whole.choice.text, other.choice.text
    return bool(texts[0]) and all(map(eq, texts[0] or "", texts[1] or ""))


def _asks_for_more(stream: Answer) -> bool:
    """True if a request has options for which a server may refuse it."""
    asked, extras = stream.asked, (*EXTRAS, "logprobs", "stop", "echo", "other_sampling")
    return asked.n * asked.prompts != 1 or any(getattr(asked, name) for name in extras)


@check_run("one-length-rule")
def _one_length_rule(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that all endpoints, streamed and whole, accept or refuse a request of one length alike.

    A chat endpoint may run the messages instead of the ids, so it is not compared with other endpoints.
    """
    context = target.advertised.context_length
    first: dict[tuple[int, int], Answer] = {}
    for stream in sorted(streams, key=is_chat) if context is not None else ():
        asked, status = stream.asked, stream.exchange.status
        if context is None or not asked.input_ids or asked.max_new_tokens is None or _asks_for_more(stream):
            continue
        decided = was_refused(stream) or stream.answered
        if status is None or status in NOT_ABOUT_THE_REQUEST or not decided:
            continue
        size = (len(asked.input_ids[0]), asked.max_new_tokens)
        if sum(size) < context - CONTEXT_BORDER:
            continue
        other = first.setdefault(size, stream)
        if other is stream:
            continue
        refused, before = was_refused(stream), was_refused(other)
        words = {True: "refused", False: "answered"}
        message = (
            f"{size[0]} prompt tokens and a budget of {size[1]} were {words[refused]}, "
            f"and {words[before]} in {other.exchange.name}"
        )
        related = (start_place(other),)
        yield expect(end_place(stream), words[before], words[refused], message, related=related)
