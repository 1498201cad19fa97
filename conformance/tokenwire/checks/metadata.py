"""Checks of the chapter on per-token metadata: customized_info, logprobs, prompt-side series."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import exp
from typing import Any, NamedTuple

from tokenwire.ask import Wanted
from tokenwire.checks.about import ANSWERED, ANY, FINISHED, about, finished_choices
from tokenwire.checks.check import Target, check, check_choices, check_each, check_equal, check_run
from tokenwire.checks.difference import observe_sequence, observe_sequences
from tokenwire.checks.evidence import Observation, Row, expect, expect_each
from tokenwire.checks.reading.channels import hides_reasoning
from tokenwire.checks.reading.fields import first_of_prompt, first_prompt_ids, names_of_prompt, prompt_of
from tokenwire.checks.tito import told_once_for_all
from tokenwire.dialects.dialect import dialect_of, has_items, is_chat, policy_of
from tokenwire.dialects.logprobs import (
    CHOSEN,
    CONTENT,
    LEAST,
    NAMED_TOP,
    PROMPT,
    PROMPT_CHOSEN,
    RANKED,
    SAMPLED,
    TOP,
    Logprob,
    Logprobs,
    Position,
    Ranked,
    ReportedLogprobs,
    is_logprob_series,
    joined_series,
    number_of,
    ranked_entries,
    read_series,
    reported_along,
    series_along,
)
from tokenwire.record import Answer, Choice, Emission, Place, Stream, as_list, fact, integer
from tokenwire.requirement import tolerance
from tokenwire.target.alike import alike
from tokenwire.target.shown import LOGPROBS_LENGTH, MIRRORED_ID
from tokenwire.typed_table import counted
from tokenwire.wire.json_pointer import ABSENT, find, parse

MIRRORED_POSITION = "mirror_position"
"""The series in which the mirror sampler writes the position of each output id."""


@check("customized-info-has-a-value", FINISHED)
def _customized_info_has_a_value(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a key of customized_info is absent if it has no value for any token."""
    for choice in finished_choices(stream):
        for name in sorted(choice.customized):
            values = choice.series(name)
            if values:
                last = [emission for emission in choice.emissions if name in emission.series][-1]
                message = f"{name} is null for each of the {len(values)} output ids"
                expected = "a value that is not null"
                holds = any(value is not None for value in values)
                yield expect(last.at(name), expected, f"null {len(values)} times", message, holds=holds)


@check_choices("customized-info-is-fixed-at-sampling")
def _customized_info_is_fixed_at_sampling(
    choice: Choice, _stream: Stream, _target: Target
) -> Iterator[Observation]:
    """Check that each entry of the mirror sampler equals the output id at its position, and that its
    positions are consecutive.
    """
    for emission in choice.delivered if MIRRORED_ID in choice.series_names else ():
        if (both := _beside_ids(emission, MIRRORED_ID)) is not None and both[0]:
            ids, actual = both
            place, name = emission.at(MIRRORED_ID), f"{MIRRORED_ID} entry"
            yield observe_sequence(place, name, expected=ids, actual=actual, source="the output ids")
    position: int | None = None
    for emission in choice.delivered if MIRRORED_POSITION in choice.series_names else ():
        both = _beside_ids(emission, MIRRORED_POSITION)
        if both is None:
            position = None
        elif actual := both[1]:
            start = integer(actual[0] if position is None else position)
            due = [start] if start is None else list(range(start, start + len(actual)))
            position = position if start is None else start + len(actual)
            place, name = emission.at(MIRRORED_POSITION), f"{MIRRORED_POSITION} entry"
            yield observe_sequence(place, name, expected=due, actual=actual, source="the positions in order")


def _beside_ids(emission: Emission, name: str) -> tuple[list[Any], list[Any]] | None:
    """Return the new ids of an emission, and their entries in a series. None if their numbers differ."""
    entries = emission.entries(name)
    if emission.output_ids is None or entries is None or len(entries) != len(emission.output_ids):
        return None
    return emission.unseen(emission.output_ids), emission.unseen(entries)


@check_choices("logprobs-name-their-ids")
def _logprobs_name_their_ids(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a logprob entry names the output id at its position, if entries have ids."""

    def rows() -> Iterator[tuple[Emission, str, list[Any], list[Any]]]:
        for emission, reported in reported_along(choice):
            ids, series = emission.unseen(emission.output_ids or []), reported.series
            named = [entry.sampled.id if entry.sampled else None for entry in reported.positions]
            names_ids = series == SAMPLED or any(token is not None for token in named)
            if ids and len(named) == len(ids) and names_ids:
                yield emission, series, ids, named

    yield from observe_sequences(rows(), "the id of {field} entry", "the output ids")


@check_each("logprob-values-are-legal", ANY, "{field} contains {actual[0]!r}, which is not a logprob")
def _illegal_logprobs(choice: Choice) -> Iterator[Row]:
    """Yield a row for each logprob series of each emission.

    The logprobs of the series must be finite and at most 0.
    """
    for emission, series in series_along(choice):
        wrong = series.illegal
        if wrong or series.is_observed:
            yield emission, series.name, not wrong, "finite numbers not above 0", wrong[:3] or "as expected"


_LEAST_OF_THE_LIKELIEST = -100


@check_choices("greedy-logprobs-are-likely", about(answered=True, unasked=("ignore_eos", "min_new_tokens")))
def _greedy_logprobs_are_likely(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that greedy sampling never chooses a token with the logprob of an impossible token."""
    asked = stream.asked
    if not asked.greedy or asked.other_sampling or asked.constraints or asked.tools is not None:
        return
    rows: Iterator[Row] = (
        (emission, reported.series, number > _LEAST_OF_THE_LIKELIEST, "a logprob above -100", number)
        for emission, reported in reported_along(choice)
        for position in reported.positions
        if position.sampled is not None and (number := number_of(position.sampled.value)) is not None
    )
    yield from expect_each(rows, "greedy sampling chose a token with the logprob {actual}")


@check_choices("sampled-ids-have-logprobs", ANSWERED)
def _sampled_ids_have_logprobs(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that no sampled token has the placeholder for a missing logprob.

    If the request or the server may force an id that the model excludes, its probability may be 0.
    """
    asked = stream.asked
    if asked.other_sampling or asked.constraints or asked.tools is not None or _lists_differ(stream):
        return

    def rows() -> Iterator[Row]:
        for emission, reported in reported_along(choice):
            sampled = (number_of(entry.sampled.value) for entry in reported.positions if entry.sampled)
            numbers = [number for number in sampled if number is not None]
            wrong = next((number for number in numbers if number < LEAST), None)
            if numbers:
                actual = numbers[0] if wrong is None else wrong
                yield emission, reported.series, wrong is None, f"a logprob above {LEAST:g}", actual

    yield from expect_each(rows(), "a sampled token has {actual} in {field}, which is not a logprob")


_ENOUGH_IDS = 8
"""The minimum number of different ids. Fewer ids may have the same logprob by chance."""
_ENOUGH_SURE_IDS = 64
"""The minimum number of ids. A very certain model may give fewer ids the logprob 0."""


@check_run("logprobs-vary", alone=True)
def _logprobs_vary(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that logprobs differ between tokens, except if a grammar or top_k leaves one token.

    If all logprobs of an answer are 0, this is a violation only if they are 0 in all answers of the endpoint.
    """
    answers: dict[str, list[_Varying]] = {}
    for stream in streams:
        if not (stream.asked.other_sampling or stream.asked.truncated):
            answers.setdefault(stream.dialect, []).extend(_varying(stream))
    for reported in answers.values():
        tokens = {token for series in reported for token in series.sure}
        all_sure = len({series.place.exchange for series in reported}) > 1 and all(
            len(series.sure) == series.ids for series in reported
        )
        all_zero = len(tokens) >= _ENOUGH_SURE_IDS and all_sure
        for series in reported:
            if series.ids < _ENOUGH_IDS or (len(series.sure) == series.ids and not all_zero):
                continue
            message = f"the logprobs of {series.ids} ids in {series.series} are all {series.number}"
            yield expect(series.place, "logprobs that differ", series.number, message, holds=series.differ)


class _Varying(NamedTuple):
    """The logprobs of the sampled tokens of a choice, in one series."""

    place: Place
    series: str
    ids: int
    """The number of different tokens."""
    differ: bool
    number: float
    """One of the logprobs, as an example."""
    sure: frozenset[Hashable]
    """The tokens if all of their logprobs are 0, otherwise empty."""


@fact(Stream)
def _varying(stream: Stream) -> tuple[_Varying, ...]:
    found = []
    for emission, series, tokens, numbers in _sampled_logprobs(stream):
        sure = frozenset(tokens) if numbers == {0} else frozenset()
        number = next(iter(numbers))
        found.append(_Varying(emission.at(series), series, len(tokens), len(numbers) > 1, number, sure))
    return tuple(found)


def _known_by(entry: Logprob) -> Hashable:
    """Return a value that identifies a token: its id, else its text, else the text as JSON."""
    token = entry.id or entry.text
    return token if type(token) in {int, str} else (json.dumps(token),)


def _sampled_logprobs(stream: Stream) -> Iterator[tuple[Emission, str, set[Hashable], set[float]]]:
    """Yield the different tokens and logprobs of each choice, for each series that contains logprobs."""
    for choice in stream.delivering:
        series: dict[str, tuple[set[Hashable], set[float]]] = {}
        for _, reported in reported_along(choice):
            tokens, numbers = series.setdefault(reported.series, (set(), set()))
            for entry in (position.sampled for position in reported.positions):
                if entry is not None and (number := entry.number) is not None:
                    tokens.add(_known_by(entry))
                    numbers.add(number)
        for name, (tokens, numbers) in series.items():
            if tokens:
                yield choice.delivered[-1], name, tokens, numbers


@check_equal("logprob-counter-follows", ANY, "{field} is {actual!r} after {expected} delivered entries")
def _counted_entries(choice: Choice) -> Iterator[tuple[Emission, str, int, Any]]:
    """Yield the number of delivered logprob entries, and the counter that reports it."""
    delivered: int | None = None
    for emission in choice.delivered:
        entries = emission.entries(SAMPLED)
        if entries is not None:
            delivered = len(entries) + ((delivered or 0) if emission.incremental else 0)
        count = emission.counters.get(LOGPROBS_LENGTH, emission.details.get(LOGPROBS_LENGTH))
        if count is not None and delivered is not None:
            yield emission, LOGPROBS_LENGTH, delivered, count


Fault = Callable[[ReportedLogprobs, Position], str]
"""A function that describes the error of the top logprobs at a position. It returns an empty string if they
are correct.
"""


def _is_besides(position: Position, entries: Logprobs) -> bool:
    """True if the first entry is the sampled token, and no other entry is less likely."""
    sampled, first, others = position.sampled, entries[0], entries[1:]
    if sampled is None or sampled.id is None or first.id != sampled.id:
        return False
    if not {type(entry.value) for entry in entries} <= {int, float}:
        return False
    ids = [entry.id for entry in entries]
    return len(set(ids)) == len(ids) and all(other.value >= first.value for other in others)


def _fault_in_top(
    reported: ReportedLogprobs, position: Position, *, k: int, fewer: bool, besides: bool
) -> str:
    """Describe the error if a position has a wrong number of top logprobs, or one id twice. Empty without an
    error.
    """
    entries = position.top
    if entries is None:
        return f"is {position.written_top!r}, not a list of entries"
    if reported.by_text:
        # There may be k alternatives and the sampled token. Tokens with equal text share one entry.
        return (
            ""
            if 1 <= len(entries) <= k + 1
            else f"holds {counted(len(entries), 'entry')} for {k} and the sampled"
        )
    if besides and len(entries) == k + 1 and _is_besides(position, entries):
        return ""
    if len(entries) > k or len(entries) < (1 if fewer else k):
        return f"holds {counted(len(entries), 'entry')} instead of {k}"
    ids = [entry.id for entry in entries if entry.names_id]
    return "names an id twice" if any(ids.count(token) > 1 for token in ids) else ""


def _fault_in_order(_reported: ReportedLogprobs, position: Position, *, sampled_first: bool) -> str:
    """Describe the error if the top logprobs of a position are not in descending order. Empty if they are."""
    in_order = (position.top or [])[sampled_first:]
    numbers = [entry.value for entry in in_order if type(entry.value) in {int, float}]
    return "is not in falling order" if any(after > before for before, after in pairwise(numbers)) else ""


def _observe_top(
    every: Iterable[tuple[Emission, ReportedLogprobs]], fault_in: Fault, expected: str
) -> Iterator[Observation]:
    """Observe the top logprobs of each emission. `fault_in` describes the error of a position."""

    def rows() -> Iterator[Row]:
        for emission, reported in every:
            if reported.top_series and reported.positions:
                observed = any(entry.number is not None for p in reported.positions for entry in p.top or ())
                faults = [fault_in(reported, position) for position in reported.positions]
                words = ""
                if any(faults):
                    wrong = next(position for position, fault in enumerate(faults) if fault)
                    place = f"position {wrong + emission.seen_entries} of {reported.top_series}"
                    words = f"{place} {faults[wrong]}"
                if words or observed:
                    yield emission, reported.top_series, not words, expected, words or expected

    yield from expect_each(rows(), "{actual}")


@check_choices("top-logprobs-have-k", about("top_logprobs", answered=True))
def _top_logprobs_have_k(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that each position has the requested number of alternatives."""
    k, policy = stream.asked.top_logprobs, policy_of(stream)
    fewer, besides = policy.fewer_top_logprobs, policy.sampled_besides_top_logprobs
    fault_in = partial(_fault_in_top, k=k, fewer=fewer, besides=besides)
    yield from _observe_top(reported_along(choice), fault_in, f"{k} entries with different ids")


_FEWEST_ALTERNATIVES = 4
"""The minimum number of positions. Alternatives with empty text are special tokens, which may fill fewer
positions.
"""


@check_choices("alternatives-have-names", about("top_logprobs", answered=True))
def _alternatives_have_names(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the alternatives of at least one position have an id, a text or bytes."""
    positions, named, place = 0, 0, None
    for emission, reported in reported_along(choice):
        for position in () if reported.by_text else reported.positions:
            sampled, top = position.sampled, position.top or ()
            others = [entry for entry in top if sampled is None or entry[1:] != sampled[1:]]
            if others:
                positions, place = positions + 1, emission.at(reported.top_series)
                named += any(entry.id is not None or entry.text or entry.data for entry in others)
    if place is not None and positions >= _FEWEST_ALTERNATIVES:
        message = f"the alternatives at all {positions} positions have no id, no text and no bytes"
        actual = f"{named} of {positions} positions"
        yield expect(place, "alternatives with an id, a text or bytes", actual, message, holds=named > 0)


@check_choices("top-logprobs-fall", about("top_logprobs", answered=True))
def _top_logprobs_fall(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the alternatives are in descending order. Alternatives in a JSON object have no order."""
    sampled_first = policy_of(stream).top_logprobs_begin_with_sampled
    fault_in = partial(_fault_in_order, sampled_first=sampled_first)
    ranked = (pair for pair in reported_along(choice) if not pair[1].by_text)
    yield from _observe_top(ranked, fault_in, "logprobs in falling order")


_OVER_ONE = 1 + tolerance("truncation_share")


def _fault_in_sum(_reported: ReportedLogprobs, position: Position) -> str:
    """Describe the error if the probabilities of a position's alternatives add up to more than 1. Empty
    otherwise.

    A repeated id counts once, because another requirement covers repetition.
    """
    entries = {
        entry.id if type(entry.id) is int else f"entry {place}": entry
        for place, entry in enumerate(position.top or ())
    }
    logprobs = [entry.number for entry in entries.values() if entry.number is not None]
    total = sum(exp(min(logprob, 0.0)) for logprob in logprobs)
    return f"has probabilities that add up to {total:.3f}" if total > _OVER_ONE else ""


@check_choices("top-logprobs-are-one-whole", about("top_logprobs", answered=True))
def _top_logprobs_are_one_whole(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the probabilities of a position's alternatives add up to at most 1."""
    yield from _observe_top(reported_along(choice), _fault_in_sum, "probabilities that add up to at most 1")


def _fault_in_ranks(entries: Sequence[Ranked], *, likeliest: bool) -> str:
    """Describe the error if the ranks of a position contradict the logprobs. Empty if they may be right.

    likeliest: True if all listed tokens except one are the most likely tokens. The exception may have any
    rank.
    """
    numbers = {entry.token: entry.number for entry in entries}
    last = min(numbers.values(), default=0.0)
    for token, number, rank in entries:
        if rank is None:
            continue
        if type(rank) is not int or rank < 1:
            return f"has the rank {rank!r} for {token!r}, but ranks count from 1"
        # The list may contain the token with another number, which is not a contradiction of the rank.
        others = {**numbers, token: number}.values()
        apart = [other for other in others if not alike(other, number)]
        likelier = sum(other > number for other in apart)
        equals = len(others) - len(apart)
        if rank <= likelier:
            return f"has the rank {rank} for {token!r}, but {likelier} listed tokens are more likely"
        if rank * exp(min(number, 0.0)) > _OVER_ONE:
            return f"has the rank {rank} for {token!r}, but fewer tokens are as likely as {number!r}"
        if likeliest and not alike(number, last) and rank > likelier + equals:
            return f"has the rank {rank} for {token!r}, but it is among the first {likelier + equals}"
    return ""


@check_choices("rank-is-the-rank", ANSWERED)
def _rank_is_the_rank(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the ranks of output and prompt tokens agree with their logprobs."""
    likeliest = not (stream.asked.chosen_ids or stream.asked.chosen_in_top)

    def rows() -> Iterator[Row]:
        for emission in choice.emissions:
            lists = ((CONTENT, emission.entries(CONTENT)), (RANKED, emission.prompt_series.get(RANKED)))
            for name, values in lists:
                positions = [ranked_entries(value) for value in values] if isinstance(values, list) else []
                if not any(entry.rank is not None for entries in positions for entry in entries):
                    continue
                faults = (_fault_in_ranks(entries, likeliest=likeliest) for entries in positions)
                found = next(((nth, fault) for nth, fault in enumerate(faults) if fault), None)
                words = f"position {found[0]} of {name} {found[1]}" if found else ""
                yield emission, name, not words, "the places of the tokens", words

    yield from expect_each(rows(), "{actual}")


def _chose_the_first(stream: Stream) -> bool:
    """True if greedy sampling must have chosen the first of the top logprobs.

    A server may apply penalties and biases after it has listed the top logprobs. In some dialects, a server
    may also ban ids after it has listed them. Some servers have penalties that the request did not set.
    """
    asked = stream.asked
    return asked.greedy and not asked.other_sampling and not _lists_differ(stream)


def _lists_differ(stream: Stream) -> bool:
    """True if the server may ban ids, or apply penalties of its own, after it has computed the logprobs."""
    asked, listed = stream.asked, policy_of(stream).likeliest_are_listed
    banned = asked.ignore_eos or bool(asked.min_new_tokens)
    return listed == "before_penalties" or (listed == "before_bans" and banned)


def _fault_in_belonging(reported: ReportedLogprobs, position: Position, *, greedy: bool) -> str:
    """Describe the error if the sampled id and the top logprobs contradict each other. Empty if they do not.

    Several tokens may have the same text. So if entries lack ids, only the highest logprob is compared.
    """
    sampled, top = position.sampled, position.top
    if sampled is None or not top:
        return ""
    value, same = sampled.value, None
    if sampled.id is not None:
        same = next((entry for entry in top if entry.id == sampled.id), None)
    if same is not None and not alike(same.value, value):
        return f"gives id {same.id!r} the logprob {same.value!r}, but {reported.series} {value!r}"
    if not greedy:
        return ""
    # Without ids, tokens with equal text cannot be distinguished, but their logprobs can be compared.
    if sampled.id is None or any(entry.id is None for entry in top):
        numbers = [entry.value for entry in top if type(entry.value) in {int, float}]
        if numbers and not alike(max(numbers), value):
            if reported.by_text and sampled.text in [entry.text for entry in top]:
                another = f"another logprob than the sampled token's {value!r}: two tokens share a key"
                return f"gives {sampled.text!r} {another}"
            return f"has {max(numbers)!r} as its greatest logprob, but greedy sampling chose {value!r}"
    elif top[0].id != sampled.id and not (same is not None and alike(top[0].value, value)):
        return f"begins with id {top[0].id!r}, but greedy sampling chose {sampled.id!r}"
    return ""


@check_choices("top-logprobs-belong-to-position", ANSWERED)
def _top_logprobs_belong_to_position(
    choice: Choice, stream: Stream, _target: Target
) -> Iterator[Observation]:
    """Check that the sampled id has the same logprob in all lists, and that the id of greedy sampling comes
    first.

    Two ids with equal logprobs may come in either order.
    """
    fault_in = partial(_fault_in_belonging, greedy=_chose_the_first(stream))
    yield from _observe_top(reported_along(choice), fault_in, "the sampled id with its own logprob")


@check_choices("chosen-logprobs-are-the-asked-ids", about("chosen_ids"))
def _chosen_logprobs_are_the_asked_ids(
    choice: Choice, stream: Stream, _target: Target
) -> Iterator[Observation]:
    """Check that each position has the logprobs of the requested ids, in the order of the request."""
    asked = list(stream.asked.chosen_ids)
    first = choice.delivered[0]
    of_prompt = as_list(first.prompt_series.get(PROMPT_CHOSEN)) if first.position == 0 else None
    chosen = [(emission, series) for emission, series in series_along(choice) if series.name == CHOSEN]
    chosen.append((first, read_series(PROMPT_CHOSEN, (of_prompt or [])[1:])))

    def rows() -> Iterator[Row]:
        for emission, series in chosen:
            named = [[entry.id for entry in position or ()] for position in series.positions]
            wrong = next((ids for ids in named if ids != asked), None)
            if named:
                yield emission, series.name, wrong is None, asked, asked if wrong is None else wrong

    yield from expect_each(rows(), "a position of {field} names {actual} instead of {expected}")


@check_choices("chosen-ids-replace-the-likeliest", about("chosen_in_top"))
def _chosen_ids_replace_the_likeliest(
    choice: Choice, stream: Stream, _target: Target
) -> Iterator[Observation]:
    """Check that each position has an entry for the sampled id and one for each id that the request chose.

    A position that is an object by text may have fewer entries, because ids share texts.
    """
    chosen = set(stream.asked.chosen_in_top)
    ids = choice.output_ids or []

    def rows() -> Iterator[Row]:
        number = 0
        for emission, reported in reported_along(choice):
            for position in reported.positions:
                sampled = ids[number] if number < len(ids) else None
                number += 1
                if position.top is None:
                    continue
                most = len(chosen if sampled in chosen else chosen | {sampled})
                least = 1 if isinstance(position.written_top, Mapping) else most
                holds = least <= len(position.top) <= most
                yield emission, reported.series, holds, most, len(position.top)

    yield from expect_each(rows(), "a position of {field} has {actual} entries instead of {expected}")


def _ids_of_ranked(entries: list[Any], prompt: list[Any]) -> list[Any]:
    """Return the id of each entry of ranked logprobs.

    If an entry contains the id of the prompt, this id is returned. The first position has no logprob, so its
    id counts as right.
    """

    def id_of(position: int, entry: Any) -> Any:
        due = prompt[position] if position < len(prompt) else None
        known = entry is None and position == 0
        keys = entry if isinstance(entry, Mapping) else {}
        return due if known or str(due) in keys else next(iter(keys), None)

    return [id_of(position, entry) for position, entry in enumerate(entries)]


@check("prompt-logprobs-cover-the-prompt", FINISHED)
def _prompt_logprobs_cover_the_prompt(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that prompt logprobs cover the prompt from the requested start to its end, each with the right
    id.
    """
    start = stream.asked.logprob_start
    if start is None:
        return
    for choice in finished_choices(stream):
        carried = first_of_prompt(choice, PROMPT)
        ranked = first_of_prompt(choice, RANKED)
        emission, entries = carried or ranked or (None, [])
        if emission is None:
            continue
        prompt = prompt_of(stream, choice.index) or emission.prompt_token_ids
        if prompt is not None:
            if carried is None:
                name, due, source = RANKED, prompt, "the prompt"
                named = _ids_of_ranked(entries, prompt)
            else:
                name, due, source = PROMPT, prompt[start:], f"the prompt from position {start}"
                named = [entry.id if entry else None for entry in read_series(PROMPT, entries).tokens]
            place, what = emission.at(name), f"the id of {name} entry"
            yield observe_sequence(place, what, expected=due, actual=named, source=source)
        elif carried is not None and (count := choice.counter("prompt_tokens")) is not None:
            size = len(entries)
            message = f"{PROMPT} holds {size} entries for a prompt of {count} tokens from position {start}"
            yield expect(emission.at(PROMPT), max(0, count - start), size, message)


@check("prompt-logprobs-null-only-first", FINISHED)
def _prompt_logprobs_null_only_first(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that only the first position of a prompt has no logprob."""
    for choice in finished_choices(stream):
        for name in sorted(names_of_prompt(choice)):
            carried = first_of_prompt(choice, name)
            if carried is None or not carried[1] or not is_logprob_series(name):
                continue
            emission, values = carried
            entry = read_series(name, values[:1]).tokens[0]
            first_is_null = values[0] is None or (entry is not None and entry.value is None)
            judged = values[first_is_null:]
            series = read_series(name, judged)
            wrong = series.illegal
            if wrong or series.is_observed:
                message = f"{name} holds {wrong[0]!r} after its first entry" if wrong else ""
                expected = "null in the first entry only, then finite numbers not above 0"
                place = emission.at(name)
                yield expect(place, expected, wrong[:3] or "as expected", message, holds=not wrong)


@check("metadata-only-on-request")
def _metadata_only_on_request(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that logprobs, top logprobs and logprobs of chosen ids are absent unless the request enables
    them.
    """
    asked = stream.asked

    def is_unasked(name: str) -> bool:
        if not asked.logprobs and is_logprob_series(name):
            return True
        return (name == TOP and not asked.top_logprobs) or (name == CHOSEN and not asked.chosen_ids)

    all_asked = asked.logprobs and asked.top_logprobs and asked.chosen_ids
    for choice in stream.delivering_as_begun if asked.uniform and not all_asked else ():
        found = (
            (emission, name)
            for emission in choice.delivered
            for name, value in sorted({**emission.series, **emission.prompt_series}.items())
            if value is not None and name not in choice.customized and is_unasked(name)
        )
        emission, name = next(found, (choice.delivered[-1], ""))
        message = f"{name} is in an answer whose request did not ask for it"
        expected = "no logprob series that was not asked for"
        yield expect(emission.at(name), expected, name or "none", message, holds=not name)


@check("arrays-only-on-request", FINISHED)
def _arrays_only_on_request(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that optional arrays are absent unless the request enables them."""
    known = dialect_of(stream)
    wanted = known.request.wanted.values() if known else ()
    names = [name for array in wanted if array not in stream.asked.wanted for name in array.names]
    for choice in stream.choices if names else ():
        held = [name for name in names if name in choice.held]
        members = ((emission, name) for emission in choice.emissions for name in held)
        found = ((emission, name) for emission, name in members if _holds(emission, name))
        emission, name = next(found, (choice.emissions[-1], ""))
        message = f"{name} is in an answer whose request did not ask for it"
        place, expected = emission.at(name), "nothing that was not asked for"
        yield expect(place, expected, name or "none", message, holds=not name)


def _has_logprobs(choice: Choice) -> bool:
    has_object = any(value is not None for value in choice.details("logprobs"))
    return has_object or any(map(is_logprob_series, choice.server_series))


def _has_meta_info(choice: Choice) -> bool:
    return any(isinstance(detail, Mapping) for detail in choice.details("meta_info"))


def _has_top(choice: Choice) -> bool:
    """True if a choice has top logprobs: as a series, or as the separate `meta_info` keys that a request may
    choose.
    """
    if choice.series_names & {TOP, NAMED_TOP}:
        return True
    content = joined_series(choice, CONTENT)
    if content and (not content.values or any(entries and len(entries) > 1 for entries in content.positions)):
        return True
    infos = choice.details("meta_info")
    return any(isinstance(info, Mapping) and any(str(key).startswith(TOP) for key in info) for info in infos)


def _has_texts(choice: Choice) -> bool:
    """True if each logprob entry of a sampled id has a text."""
    series = joined_series(choice, SAMPLED)
    return series is not None and all(entry and isinstance(entry.text, str) for entry in series.tokens)


def _holds(emission: Emission, name: str) -> bool:
    """True if an emission has a value other than null under a name."""
    mappings = (emission.details, emission.series, emission.prompt_series, emission.counters)
    return any(mapping.get(name) is not None for mapping in mappings)


def _carries_wanted(stream: Stream, wanted: Wanted, choice: Choice) -> bool:
    """True if a choice has the requested array, or if the document has it outside of the choices."""
    if not choice.held.isdisjoint(wanted.names):
        return True
    found = (find(event.data, parse(position)) for position in wanted.pointers for event in stream.events)
    return any(value is not ABSENT and value is not None for value in found)


def _asked_fields(stream: Stream) -> Iterator[tuple[str, str, Callable[[Choice], bool]]]:
    """Yield each requested output: its field in the answer, its request field, and a predicate that a choice
    must satisfy.
    """
    asked, native = stream.asked, not is_chat(stream)
    if asked.return_prompt_token_ids and not told_once_for_all(stream):
        yield "prompt_token_ids", "return_prompt_token_ids", lambda c: first_prompt_ids(c) is not None
    if asked.return_token_ids:
        yield "output_ids", "return_token_ids", lambda c: c.output_ids is not None
    if asked.return_meta_info:
        yield "meta_info", "return_meta_info", _has_meta_info
    for wanted in asked.wanted:
        yield (wanted.names or wanted.pointers)[0], "", partial(_carries_wanted, stream, wanted)
    if not asked.uniform:
        return
    if asked.logprob_start is not None:
        yield PROMPT, "logprob_start", lambda c: any(map(is_logprob_series, names_of_prompt(c)))
    if asked.max_new_tokens == 0:  # a budget of zero gives no token, and so no metadata
        return
    if asked.logprobs:
        yield SAMPLED if native else "logprobs", "logprobs", _has_logprobs
    if asked.top_logprobs > 0:
        yield TOP if native else NAMED_TOP, "top_logprobs", _has_top
    if asked.chosen_ids:
        yield CHOSEN, "chosen_ids", lambda c: CHOSEN in c.series_names
    if asked.logprob_texts:
        yield f"texts in {SAMPLED}", "logprob_texts", _has_texts


@check("scored-prompt-ids-have-logprobs", FINISHED)
def _scored_prompt_ids_have_logprobs(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that prompt logprobs that begin inside the prompt have a number at their first position.

    Only the very first token of a prompt has no token before it, and so no logprob.
    """
    start = stream.asked.logprob_start or 0
    for choice in finished_choices(stream) if start > 0 else ():
        carried = first_of_prompt(choice, PROMPT)
        if carried is not None and carried[1]:
            emission, entries = carried
            entry = read_series(PROMPT, entries[:1]).tokens[0]
            reported = None if entry is None else entry.value
            message = f"{PROMPT} begins at position {start} with {reported!r}, although a token precedes it"
            expected = "a number for each prompt token except the very first"
            place = emission.at(PROMPT)
            holds = entry is not None and entry.number is not None
            yield expect(place, expected, reported, message, holds=holds)


_OF_TOKENS = frozenset({"return_token_ids", "logprobs", "top_logprobs", "chosen_ids", "logprob_texts"})
"""The request fields for data of each token, which would show reasoning that the request hides."""


@check("asked-or-refused", about(finished=True, ended=True))
def _asked_or_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that every choice has the requested fields. A server may refuse the request instead."""
    left_out = _OF_TOKENS if hides_reasoning(stream) else frozenset()
    for choice in finished_choices(stream):
        if has_items(stream) and not choice.text:
            continue  # an item without text has no logprobs
        for name, field, is_there in _asked_fields(stream):
            if field in left_out:
                continue
            holds = is_there(choice)
            stated = stream.asked.sent.get(field)
            wanted = stated.wire_name if stated is not None else name
            message = f"{wanted} was requested, but choice {choice.index} does not have it"
            place = choice.last_at(name)
            actual = "there" if holds else "absent"
            yield expect(place, f"{name} in every choice", actual, message, holds=holds)
