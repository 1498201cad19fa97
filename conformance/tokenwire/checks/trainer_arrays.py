"""Checks of arrays for trainers, except logprobs: sampling masks, spans of weights, and arrays with rows for
tokens.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from tokenwire.checks.about import FINISHED, finished_choices
from tokenwire.checks.agreement import choice_pairs
from tokenwire.checks.check import Target, check, check_finished, check_run, compare, select
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import prompt_of, usage_count
from tokenwire.checks.reading.times import INSTANT_S, began, delivered_at, over, overlap
from tokenwire.dialects.arrays import Array, ArrayRule, Rows
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.dialect import arrays_of
from tokenwire.dialects.logprobs import MASK, MASK_LOGPROBS, TOP, joined_series
from tokenwire.record import Answer, Choice, Delivery, Emission, Place, Stream, as_list, fact, integer
from tokenwire.requirement import tolerance
from tokenwire.target.alike import alike
from tokenwire.target.determinism import Comparison, details_named
from tokenwire.typed_table import counted

_EXPERTS, _MOST_EXPERTS = "routed_experts", 4096
_ROUNDING = tolerance("rounding")
LEAST_NUMBERS = 8
"""The minimum number of equal numbers in a row that shows placeholder data. Fewer may be equal by chance.

For example, the experts of two layers may be equal.
"""


@check_finished("mask-holds-the-sampled-id")
def _mask_holds_the_sampled_id(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the sampling mask of each position is a list of ids that contains the sampled id."""
    ids, masks = choice.output_ids, choice.series(MASK)
    if not ids or masks is None:
        return
    place = choice.last_at(MASK)
    for position, (token, mask) in enumerate(zip(ids, masks, strict=False)):
        message = f"the sampling mask of output id {position} does not contain this id"
        expected = f"a list of ids that contains {token}"
        yield expect(place, expected, mask, message, holds=isinstance(mask, list) and token in mask)


@check_finished("mask-names-an-id-once")
def _mask_names_an_id_once(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that no sampling mask contains an id twice, because a trainer sums over the mask."""
    for position, mask in enumerate(choice.series(MASK) or ()):
        ids = [token for token in mask if type(token) is int] if isinstance(mask, list) else []
        twice = next((token for token, count in Counter(ids).items() if count > 1), None)
        if ids:
            message = f"the sampling mask of output id {position} contains {twice} twice"
            place = choice.last_at(MASK)
            yield expect(place, "each id once", ids[:8], message, holds=twice is None)


@check_finished("mask-logprob-is-legal")
def _mask_logprob_is_legal(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that each logprob within the sampling mask is a finite number of at most 0."""
    for position, value in enumerate(choice.series(MASK_LOGPROBS) or ()):
        legal = _is_number(value) and value <= 0
        message = f"the sampling logprob of output id {position} is {value!r}"
        expected = "a finite number not above 0"
        yield expect(choice.last_at(MASK_LOGPROBS), expected, value, message, holds=legal)


@check_finished("mask-logprob-is-among-the-mask")
def _mask_logprob_is_among_the_mask(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Compare the logprob within a sampling mask with the top logprobs, if these contain all ids
    of the mask.
    """
    ids, masks, logprobs = choice.output_ids, choice.series(MASK), choice.series(MASK_LOGPROBS)
    top = joined_series(choice, TOP)
    # At temperature 1, logprobs describe the distribution from which ids are sampled, under either rule
    # (spec/sampling.md).
    if stream.asked.temperature != 1 or not ids or not masks or not logprobs or top is None:
        return
    for token, mask, logprob, entries in zip(ids, masks, logprobs, top.positions, strict=False):
        known = {entry.id: entry.value for entry in entries or () if _is_number(entry.value)}
        if isinstance(mask, list) and token in mask and known.keys() >= {*mask} and _is_number(logprob):
            due = known[token] - math.log(sum(math.exp(known[token_id]) for token_id in {*mask}))
            message = f"the sampling logprob is {logprob}, but the top logprobs of the mask give {due:.4f}"
            holds = abs(logprob - due) <= _ROUNDING
            yield expect(choice.last_at(MASK_LOGPROBS), round(due, 4), logprob, message, holds=holds)


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and math.isfinite(value)


class _Spans(NamedTuple):
    """The spans of output ids with one version of the weights each, as the finish of a choice
    reports them.
    """

    emission: Emission
    parts: list[Any]
    tokens: int
    """The number of tokens that the spans must cover: completion tokens, or those of the prompt."""
    field: str = "weight_versions"

    @property
    def place(self) -> Place:
        return self.emission.at(self.field)


def _spans(stream: Stream) -> Iterator[_Spans]:
    for choice in finished_choices(stream):
        for emission in choice.emissions:
            reported = as_list(emission.details.get("weight_versions"))
            if reported is not None and emission.finish is not None:
                tokens = _completion_tokens(stream, emission)
                if tokens is not None:
                    yield _Spans(emission, reported, tokens)


_OF_PROMPT = "prefill_weight_versions"


def _prompt_spans(stream: Stream) -> Iterator[_Spans]:
    for choice in finished_choices(stream):
        for emission in choice.emissions:
            reported, tokens = (
                emission.details.get(_OF_PROMPT),
                integer(emission.counters.get("prompt_tokens")),
            )
            if reported is not None and emission.finish is not None and tokens is not None:
                yield _Spans(emission, as_list(reported) or [], tokens, _OF_PROMPT)


def _completion_tokens(stream: Stream, emission: Emission) -> int | None:
    """Return the number of completion tokens of a choice: its counter, the usage, or the number of ids of a
    whole answer.

    None if it is unknown.
    """
    counted = integer(emission.counters.get("completion_tokens"))
    if counted is None and len(stream.choices) == 1:
        counted = usage_count(stream)
    # The number of ids in a stream does not replace the counter. Ids may be lost, which other requirements
    # report.
    if counted is None and emission.counted and stream.delivery is Delivery.WHOLE:
        return emission.after
    return counted


@check("weight-spans-partition-the-output", FINISHED)
def _weight_spans_partition_the_output(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the spans of weights cover the output without gap or overlap, from 0 to the last token."""
    for spans in _spans(stream):
        yield _partition(spans, "completion tokens")


@check("prompt-spans-partition-the-prompt", FINISHED)
def _prompt_spans_partition_the_prompt(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the spans of weights cover the prompt without gap or overlap, from 0 to the last token."""
    for spans in _prompt_spans(stream):
        yield _partition(spans, "prompt tokens")


def _partition(spans: _Spans, tokens: str) -> Observation:
    reached = 0
    for span in spans.parts:
        start, end = (integer(span.get(n)) if isinstance(span, dict) else None for n in ("start", "end"))
        if start != reached or end is None or end < reached or (end == reached and spans.tokens):
            break
        reached = end
    else:
        start, end = reached, spans.tokens
    whole = reached == spans.tokens and start is not None and end is not None and start <= end
    message = f"the spans of weights {spans.parts!r:.200} do not cover {spans.tokens} {tokens}"
    expected = f"spans from 0 to {spans.tokens} without gap or overlap"
    holds = whole and (bool(spans.parts) or not spans.tokens)
    return expect(spans.place, expected, spans.parts, message, holds=holds)


@check("weight-version-is-that-of-the-last-span", FINISHED)
def _weight_version_is_that_of_the_last_span(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that weight_version equals the version of the last span."""
    for spans in _spans(stream):
        version = spans.emission.details.get("weight_version")
        last = spans.parts[-1] if spans.parts else None
        if version is not None and isinstance(last, dict):
            message = f"weight_version is {version!r}, but the last span has {last.get('version')!r}"
            yield expect(spans.emission.at("weight_version"), last.get("version"), version, message)


@check("neighbouring-weight-spans-differ", FINISHED)
def _neighbouring_weight_spans_differ(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that each span of weights has another version than the span before it.

    A single span is evidence only if the weights were named during the request.
    """
    named = [call for call in _namings(target) if overlap(stream.exchange, call.exchange)]
    for spans in (*_spans(stream), *_prompt_spans(stream)):
        versions = [span.get("version") for span in spans.parts if isinstance(span, dict)]
        repeated = next((one for one, other in pairwise(versions) if one == other), None)
        if len(versions) > 1 or (named and spans.field != _OF_PROMPT):
            yield expect(
                spans.place,
                "another version in each span than in the span before it",
                spans.parts,
                f"two spans of weights in a row have the version {repeated!r}",
                holds=repeated is None,
                related=tuple(Place(call.exchange.name) for call in named),
            )


def _namings(target: Target) -> Iterator[ControlCall]:
    """Yield the accepted calls that give a version to the weights."""
    for call in target.calls:
        if call.action in {Action.UPDATE, Action.RENAME} and call.done and call.version:
            yield call


@fact(Choice)
def _last_version(choice: Choice) -> Any:
    """Return the version of the weights in the last span of a choice; None without spans."""
    spans = as_list(choice.emissions[-1].details.get("weight_versions"))
    return spans[-1].get("version") if spans and isinstance(spans[-1], dict) else None


@check_run("weight-spans-follow-updates")
def _weight_spans_follow_updates(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a new version of the weights begins after the tokens that arrived before the update was
    sent, and ends the choice if three quarters of the tokens arrived after the update.
    """
    namings = list(_namings(target))
    for call in namings:
        sent, answered = began(call.exchange), over(call.exchange)
        during = [stream for stream in streams if overlap(stream.exchange, call.exchange)]
        if sent is None or answered is None or not during or call.version in _versions_before(streams, sent):
            continue
        for stream in during:
            if any(overlap(stream.exchange, other.exchange) for other in namings if other is not call):
                continue
            content = stream.load()
            before, after = (delivered_at(content, time) for time in (sent - INSTANT_S, answered + INSTANT_S))
            for spans in _spans(content):
                if before is not None and after is not None and after * 4 <= spans.tokens:
                    yield _follows(spans, call, before)


def _versions_before(streams: tuple[Answer, ...], moment: float) -> set[Any]:
    """Return the versions of the weights that answers report which ended before a time."""
    earlier = [stream for stream in streams if (end := over(stream.exchange)) is not None and end <= moment]
    return {_last_version(choice) for stream in earlier for choice in finished_choices(stream)}


def _follows(spans: _Spans, call: ControlCall, before: int) -> Observation:
    """Observe the spans of a stream during which the weights got a new version.

    `before` is the number of tokens that arrived before the update.
    """
    parts = [span for span in spans.parts if isinstance(span, dict)]
    starts = [integer(span.get("start")) for span in parts if span.get("version") == call.version]
    last = bool(parts) and parts[-1].get("version") == call.version
    return expect(
        spans.place,
        f"{call.version!r} in the last span, from token {before} or a later one",
        spans.parts,
        f"the weights became {call.version!r} after {before} of {spans.tokens} tokens, but their spans are "
        f"{spans.parts!r:.200}",
        holds=last and all(start is not None and start >= before for start in starts),
        related=(Place(call.exchange.name),),
    )


class _Array(NamedTuple):
    rule: ArrayRule
    emission: Emission
    value: Any
    due: int
    """The number of rows that the array must have."""
    ids: list[int] | None
    """The token ids of the rows, if they are known."""

    @property
    def place(self) -> Place:
        return self.emission.at(self.rule.name)

    def read(self) -> Array | str:
        """Return the array, or a description of the error in its format."""
        try:
            return self.rule.read(self.value)
        except ValueError as error:
            return str(error)


def _arrays(stream: Stream) -> Iterator[_Array]:
    """Yield the arrays of complete choices whose number of rows is known."""
    rules = arrays_of(stream)
    for choice in finished_choices(stream):
        for emission in choice.emissions:
            prompt = emission.counters.get("prompt_tokens")
            sent = prompt_of(stream, choice.index)
            prompt_tokens = prompt if type(prompt) is int else None if sent is None else len(sent)
            output = choice.output_ids
            # The last output id was sampled but never run, because no id follows it.
            run = None if sent is None or output is None else [*sent, *output[: max(emission.after - 1, 0)]]
            for rule in rules:
                value = emission.details.get(rule.name)
                if value is None or prompt_tokens is None or not emission.counted:
                    continue
                if not emission.after and (emission.finish is None or emission.finish.type == "abort"):
                    continue  # the prompt may not have been run
                cached = emission.counter("cached_tokens")
                due = rule.due(stream.exchange.request.body, prompt_tokens, emission.after, cached)
                if due is not None:
                    ids = output if rule.rows is Rows.OUTPUT else run and run[len(run) - due :]
                    yield _Array(rule, emission, value, due, ids)


@select
def _with_arrays(stream: Stream) -> bool:
    """Select the answers with at least one array."""
    return not details_named(stream).isdisjoint(rule.name for rule in arrays_of(stream))


@check_run("array-covers-what-was-run", alone=True)
def _array_covers_what_was_run(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that an array has one row for each token that it covers.

    If an array reports no shape, the width of its rows must equal the width in most other answers.
    """
    widths: dict[tuple[str, str], Counter[float]] = defaultdict(Counter)
    reported = [
        (widths[stream.dialect, source.rule.name], source, source.read())
        for stream in _with_arrays(streams)
        for source in _arrays(stream.load())
    ]
    for seen, source, array in reported:
        if isinstance(array, Array) and not array.shaped and source.due:
            seen[len(array.rows[0]) / source.due] += 1
    for seen, source, array in reported:
        expected, message = f"{source.due} rows", ""
        if isinstance(array, str):
            holds, actual, message = False, array, f"{source.rule.name}: {array}"
        elif array.shaped:
            holds, actual = len(array.rows) == source.due, counted(len(array.rows), "row")
        else:
            numbers = len(array.rows[0])
            actual = f"{numbers} numbers"
            usual = max(seen, key=lambda width: (seen[width], -width), default=0.0)
            if usual.is_integer() and usual > 0:
                holds = numbers == usual * source.due
                expected = f"{source.due} rows of {usual:g} numbers"
            else:
                holds = numbers > 0 and numbers % source.due == 0 if source.due else not numbers
        message = message or f"{source.rule.name} has {actual} instead of {expected}"
        yield expect(source.place, expected, actual, message, holds=holds)


@check("array-rows-are-not-filler", FINISHED)
def _array_rows_are_not_filler(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a row of several numbers does not repeat a single number, like placeholder data."""
    for source in _arrays(stream):
        array = source.read()
        cut = array.cut(source.due) if isinstance(array, Array) else None
        rows = [row for row in cut.rows if len(row) >= LEAST_NUMBERS] if cut is not None else []
        if rows:
            filler = [position for position, row in enumerate(rows) if len(set(row)) == 1]
            value = rows[filler[0]][0] if filler else None
            message = f"{len(filler)} of {len(rows)} rows of {source.rule.name} repeat the number {value}"
            actual = f"row {filler[0]}: {value} repeated" if filler else "so"
            yield expect(source.place, "rows of several numbers", actual, message, holds=not filler)


@check("expert-ids-are-ids", FINISHED)
def _expert_ids_are_ids(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the ids of experts are integers in the possible range."""
    for source, array in _read_arrays(stream, _EXPERTS):
        wrong = [n for row in array.rows for n in row if type(n) is not int or not 0 <= n < _MOST_EXPERTS]
        message = f"{source.rule.name} has {len(wrong)} numbers that are not ids of experts: {wrong[:3]}"
        expected, actual = f"integers below {_MOST_EXPERTS}", wrong[:3] or "so"
        yield expect(source.place, expected, actual, message, holds=not wrong)


@check("neighbouring-states-differ", FINISHED)
def _neighbouring_states_differ(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that adjacent positions have different hidden states.

    Positions with equal tokens are skipped, because a model may have no position encoding.
    """
    for source, array in _read_arrays(stream, "hidden_states"):
        ids = source.ids or []
        known = len(ids) == len(array.rows)
        pairs = [
            (position, first == second)
            for position, (first, second) in enumerate(pairwise(array.rows))
            if len(first) >= LEAST_NUMBERS and not (known and ids[position] == ids[position + 1])
        ]
        equal = [position for position, same in pairs if same]
        if pairs:
            message = f"row {equal[:1]} of {source.rule.name} and the next row are equal"
            yield expect(source.place, "other numbers", f"{len(equal)} equal", message, holds=not equal)


def _read_arrays(stream: Stream, name: str) -> Iterator[tuple[_Array, Array]]:
    """Yield the valid arrays with this name, divided into rows."""
    for source in _arrays(stream):
        array = source.read() if source.rule.name == name else ""
        cut = array.cut(source.due) if isinstance(array, Array) else None
        if cut is not None:
            yield source, cut


@check_run("array-rows-are-of-their-tokens")
def _array_rows_are_of_their_tokens(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that the experts of a token are the same in answers of different lengths."""
    first: dict[object, tuple[_Array, Array, list[Any]]] = {}
    for answer in _with_arrays(streams):
        stream, prompt = answer.load(), prompt_of(answer.load(), 0)
        if prompt is None or len(stream.choices) != 1 or not stream.asked.likeliest:
            continue
        for source, array in _read_arrays(stream, _EXPERTS):
            ids = stream.choices[0].output_ids or []
            key = (stream.dialect, tuple(prompt), source.due - len(ids))
            known = first.setdefault(key, (source, array, ids))
            same = known[2][: len(ids)] == ids[: len(known[2])]
            if known[0].emission is not source.emission and same and len(ids) != len(known[2]):
                rows = min(len(array.rows), len(known[1].rows))
                yield expect(
                    source.place,
                    f"the {rows} rows of the other answer",
                    counted(len(array.rows), "row"),
                    f"{source.rule.name} has other rows for the same tokens in an answer of another length",
                    holds=[*map(list, array.rows[:rows])] == [*map(list, known[1].rows[:rows])],
                    related=(known[0].place,),
                    by_chance=True,
                )


@compare("array-equals-whole")
def _array_equals_whole(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Check that answers with equal ids have arrays with equal rows, except for rounding.

    Answers with different numbers of cached tokens are skipped, because rows of the prompt depend on the
    cache.
    """
    for (_, ours), (_, theirs) in choice_pairs(comparison.baseline, comparison.other):
        for rule in arrays_of(comparison.baseline) if arrays_of(comparison.other) else ():
            pair = [_last(rule, choice) for choice in (ours, theirs)]
            if pair[0] is None or pair[1] is None:
                continue
            why = (
                "" if comparison.repeats else "no repeated request shows that the server repeats its answers"
            )
            why = why or (
                "" if ours.output_ids == theirs.output_ids else "the two answers have different ids"
            )
            if why or ours.counter("cached_tokens") != theirs.counter("cached_tokens"):
                yield left_out(
                    pair[1][0].at(rule.name), why or "the two answers have different numbers of cached tokens"
                )
                continue
            (emission, expected), (other, actual) = pair[0], pair[1]
            rounding = comparison.noise.rounding(comparison.other, rule.name)
            yield expect(
                other.at(rule.name),
                "the rows of the whole answer",
                counted(len(actual.rows), "row") if actual.shaped else f"{len(actual.rows[0])} numbers",
                f"{rule.name} differs between two answers to one request",
                holds=_alike(expected.rows, actual.rows, rounding),
                related=(emission.at(rule.name),),
                by_chance=True,
            )


def _last(rule: ArrayRule, choice: Choice) -> tuple[Emission, Array] | None:
    """Return the last array of a choice and its emission. None if the array is missing or invalid."""
    carrying = [emission for emission in choice.emissions if emission.details.get(rule.name) is not None]
    try:
        return (carrying[-1], rule.read(carrying[-1].details[rule.name])) if carrying else None
    except ValueError:
        return None


def _alike(ours: tuple[Any, ...], theirs: tuple[Any, ...], rounding: float) -> bool:
    same = partial(alike, tolerance=rounding)
    return len(ours) == len(theirs) and all(
        len(row) == len(twin) and all(map(same, row, twin)) for row, twin in zip(ours, theirs, strict=True)
    )
