"""Checks of the chapter on the abstract record: choices, ids, counters and finish reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenwire.checks.about import ANSWERED, ANY, STREAMED, about, ended, finished_choices, is_error
from tokenwire.checks.check import (
    Target,
    check,
    check_choices,
    check_each,
    check_equal,
    check_finished,
    check_run,
)
from tokenwire.checks.evidence import Observation, Row, expect, expect_each, witnessed
from tokenwire.checks.reading.fields import (
    count_of,
    counters,
    details,
    end_place,
    prompt_of,
    start_place,
    usage_count,
)
from tokenwire.checks.reading.refusals import was_refused
from tokenwire.dialects.dialect import gives_results, has_items, known_as, policy_of
from tokenwire.dialects.logprobs import series_along
from tokenwire.record import ID_LIMIT, Answer, Choice, Emission, Place, Stream, as_list, fact, integer
from tokenwire.requirement import Level
from tokenwire.wire.exchange import Ending

TIERS = ("device", "host", "storage")

_CUT_BY_US = frozenset(
    {Ending.CANCELLED, Ending.HUNG_UP, Ending.OUTGROWN, Ending.TIMEOUT, Ending.UNREACHABLE}
)


@check("answer-fits-schema", about(unasked=("stream",)))
def _answer_fits_schema(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a whole answer is one JSON document that fits the schema of its endpoint."""
    if stream.exchange.status != 200 or stream.exchange.ending in _CUT_BY_US:
        return
    expected = f"one JSON document valid against {stream.schema or 'its schema'}"

    def documents() -> Iterator[Observation]:
        for event in stream.events:
            faults = [event.problem] if event.problem else list(event.schema_errors)
            yield expect(event.place, expected, faults[:5] or "one", "; ".join(faults[:2]), holds=not faults)

    yield from witnessed(stream, documents())


@check("choices-complete", about(ended=True))
def _choices_complete(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the answer has the requested number of choices for each prompt. Missing all choices is the
    worst case.
    """
    asked = stream.asked
    if stream.refused or stream.exchange.status != 200 or not stream.events or asked.n < 1:
        return
    refused = _refused_prompts(stream)
    # No list of the choices is made, because a request may ask for more choices than fit into
    # memory.
    due = (asked.prompts - len(refused)) * asked.n
    due = min(due, asked.most or due)
    actual = [choice.index for choice in stream.choices if choice.index // asked.n not in refused]
    in_range = all(0 <= index < asked.prompts * asked.n for index in actual)
    holds = in_range and len(actual) == len(set(actual)) == due
    message = f"the answer has the choices {actual}, but {asked.prompts} x {asked.n} were requested"
    place = end_place(stream)
    mixed = [(choice, ends) for choice in stream.choices if len(ends := _ends(choice)) > 1]
    if mixed and not holds:
        choice, ends = mixed[0]
        place = ends[1].at("finish")
        message = f"{len(ends)} finish reasons have the index {choice.index}: {message}"
    elif asked.n > 1 and actual == list(range(asked.prompts)):
        message = f"n was ignored: {message}"
    yield expect(place, f"{due} choices", actual, message, holds=holds)


def _ends(choice: Choice) -> list[Emission]:
    return [emission for emission in choice.emissions if emission.finish is not None]


def _refused_prompts(stream: Stream) -> set[int]:
    """Return the indices of the prompts of a batch for which a whole answer contains an error."""
    items = stream.events[0].data if stream.asked.prompts > 1 else None
    errors = [isinstance(item, Mapping) and item.get("error") is not None for item in as_list(items) or ()]
    return {position for position, error in enumerate(errors) if error}


@check("one-finish-per-choice", ANSWERED)
def _one_finish_per_choice(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that each choice has exactly one finish reason. Results, such as embeddings, have none."""
    for choice in stream.choices if not gives_results(stream) else ():
        finishes = _ends(choice)
        if finishes or ended(stream):
            where = finishes[:2][-1] if finishes else choice.emissions[-1]
            message = f"choice {choice.index} finished {len(finishes)} times"
            yield expect(where.at("finish"), 1, len(finishes), message)


def _content(emission: Emission) -> str | None:
    """Describe the content that an emission adds to a choice. None if it adds nothing."""
    if emission.finish is not None:
        return "a second finish reason"
    if emission.text:
        return "text"
    if emission.output_ids:
        return "output ids"
    return next((f"entries of {name}" for name, value in emission.series.items() if value), None)


@check("finish-comes-last", STREAMED)
def _finish_comes_last(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that no content of a choice follows its finish reason. Empty emissions may follow it."""
    for choice in stream.choices:
        for finish in _ends(choice)[:1]:
            later = ((e, _content(e)) for e in choice.emissions[finish.position + 1 :])
            where, content = next(((emission, what) for emission, what in later if what), (finish, None))
            message = f"{content} of choice {choice.index} came after its finish reason"
            place, actual = where.at("finish"), content or "nothing"
            yield expect(place, "nothing after it", actual, message, holds=content is None)


@check("finish-type-is-known", ANSWERED)
def _finish_type_is_known(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the finish reason has a type that the dialect knows."""
    policy = policy_of(stream)
    known = policy.finish_types
    for choice in stream.choices if not gives_results(stream) else ():
        for emission in choice.emissions:
            finish = emission.finish
            if finish is None:
                continue
            place = emission.at("finish")
            holds = isinstance(finish.type, str) and finish.type in known
            shown = finish.type or finish.raw
            message = f"the finish reason {shown!r} is none of {', '.join(sorted(known))}"
            seen = expect(place, sorted(known), finish.type, message, holds=holds)
            yield seen._replace(level=Level.MAY) if policy.other_finish_types and finish.type else seen


@check("stop-has-a-cause", ANSWERED)
def _stop_has_a_cause(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a choice finishes with `stop` only if the request has a stop condition.

    If the finish names a stop id, it must be the last output id.
    """
    for choice in stream.choices:
        ids = choice.output_ids
        for emission in choice.emissions:
            finish = emission.finish
            if finish is None or finish.type not in {"stop", "length"}:
                continue
            place = emission.at("finish")
            if finish.type == "stop" and integer(finish.matched) is not None and ids:
                message = f"stopped by id {finish.matched}, but the last output id is {ids[-1]!r}"
                yield expect(place, finish.matched, ids[-1], message)
            elif finish.matched is None and not stream.asked.stoppable:
                message = "the finish reason is stop, but the request had no stop condition"
                holds = finish.type != "stop"
                yield expect(place, "length or abort", finish.type, message, holds=holds)


def _id_lists(choice: Choice) -> Iterator[tuple[Emission, str, list[Any] | None]]:
    """Yield the lists of token ids in the emissions of a choice, without the ids of earlier emissions.

    The list is None if the key exists, but its value is not a list.
    """
    last_prompt: list[Any] | None = None
    for emission in choice.delivered:
        ids = emission.output_ids
        if ids is not None or "output_ids" in emission.pointers:
            yield emission, "output_ids", None if ids is None else emission.unseen(ids)
        if emission.prompt_token_ids is not None or "prompt_token_ids" in emission.pointers:
            prompt = as_list(emission.prompt_token_ids)
            if prompt is None or prompt != last_prompt:
                yield emission, "prompt_token_ids", prompt
            last_prompt = prompt or last_prompt
    yield from ((emission, series.name, series.ids) for emission, series in series_along(choice))


@check_choices("ids-are-token-ids")
def _ids_are_token_ids(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that every id on the wire is a JSON integer in the range of token ids."""
    expected = "integers t with 0 <= t < 2^31"
    rows: list[Row] = []
    for emission, name, ids in _id_lists(choice):
        if ids is None:
            message = f"{name} is not a list of token ids"
            yield expect(emission.at(name), expected, "no list", message, holds=False)
        elif ids:
            wrong = [value for value in ids if not (type(value) is int and 0 <= value < ID_LIMIT)]
            rows.append((emission, name, not wrong, expected, wrong[:3] or ids[:3]))
    yield from expect_each(rows, "{field} holds {actual[0]!r}, which is not a token id")


@check_finished("ids-are-counted")
def _ids_are_counted(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the number of output ids of a finished choice equals its completion_tokens."""
    ids = choice.output_ids
    counted = [emission for emission in choice.emissions if "completion_tokens" in emission.counters]
    if ids is not None and counted:
        count, place = counted[-1].counters["completion_tokens"], counted[-1].at("completion_tokens")
        message = f"choice {choice.index} has {len(ids)} output ids, but completion_tokens is {count!r}"
        yield expect(place, len(ids), count, message)


@check_equal("counter-follows-ids", STREAMED, "{field} is {actual!r} after {expected} delivered output ids")
def _counted_ids(choice: Choice) -> Iterator[tuple[Emission, str, int, Any]]:
    """Yield the number of delivered ids and completion_tokens, for every emission with ids."""
    for emission, count in counters(choice.delivered, "completion_tokens"):
        if emission.output_ids is not None:
            yield emission, "completion_tokens", emission.after, count


@check_each("counters-never-fall", STREAMED, "{field} is {actual!r}, not {expected}")
def _counters_before(choice: Choice) -> Iterator[Row]:
    """Yield a row for each value of a counter, which must not be below its previous value."""
    for name in dict.fromkeys(name for emission in choice.delivered for name in emission.counters):
        least: int | None = None
        expected = ""
        for emission, count in counters(choice.delivered, name):
            if integer(count) is None:
                # counters other than numbers of tokens may be fractions
                if name.endswith("_tokens") or not isinstance(count, float):
                    yield emission, name, False, "an integer", count
                continue
            if least is not None:
                yield emission, name, count >= least, expected, count
            if count != least:
                least, expected = count, f"at least {count}"


def _fault_in_details(details: object, cached: int | None) -> str:
    """Describe the error of cached_tokens_details. Empty without an error."""
    if not isinstance(details, Mapping):
        return f"cached_tokens_details is {details!r}, not an object"
    counts = {name: details[name] for name in TIERS if details.get(name) is not None}
    missing = [name for name in ("device", "host") if name not in counts]
    if missing:
        return f"cached_tokens_details does not name {' and '.join(missing)}"
    wrong = [name for name, value in counts.items() if type(value) is not int or value < 0]
    if wrong:
        return f"cached_tokens_details.{wrong[0]} is {counts[wrong[0]]!r}, not a count"
    if cached is not None and sum(counts.values()) > cached:
        return f"the tiers add up to {sum(counts.values())}, more than the {cached} cached_tokens"
    return ""


@check_choices("cached-details-add-up")
def _cached_details_add_up(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the numbers of all cache tiers add up to at most cached_tokens."""
    expected = "counts for device and host, together not above cached_tokens"
    for emission, tiers in details(choice.delivered, "cached_tokens_details"):
        if tiers is not None:
            fault = _fault_in_details(tiers, emission.counter("cached_tokens"))
            yield expect(emission.at("cached_tokens_details"), expected, tiers, fault, holds=not fault)


@check_each(
    "cached-details-where-cached", ANY, "{field} is {actual!r}, but for cached_tokens it must be {expected}"
)
def _cached_details(choice: Choice) -> Iterator[Row]:
    """Yield a row for each cached_tokens_details.

    The field must be null without cached tokens, and otherwise have a count. A server that does not
    distinguish tiers counts all cached tokens for the device.
    """
    for emission, tiers in details(choice.delivered, "cached_tokens_details"):
        cached = emission.counter("cached_tokens")
        if cached is not None:
            counted = not isinstance(tiers, Mapping) or any(count != 0 for count in tiers.values())
            holds = tiers is None if cached == 0 else tiers is not None and counted
            due = "a count above 0" if cached > 0 else "null"
            yield emission, "cached_tokens_details", holds, due, tiers


def _budget_of(stream: Stream, choice: int = 0) -> int | None:
    """Return the token budget of a choice. None if neither the request nor its dialect defines it."""
    budget = stream.asked.budget(choice)
    if budget is None or budget < 0:
        return None
    is_one = budget > 0 or policy_of(stream).zero_budget != "unspecified"
    return budget if is_one else None


def _count_in_words(stream: Stream, choice: Choice, count: int) -> tuple[str, Place]:
    """Describe the number of tokens of a choice, naming the field that reports it. Also return the place of
    this field.
    """
    last = choice.emissions[-1]
    if choice.output_ids is not None:
        return f"choice {choice.index} has {count} output ids", last.at("output_ids")
    counting = [emission for emission in choice.emissions if "completion_tokens" in emission.counters]
    if counting or stream.usage_place is None:
        place = (counting or [last])[-1].at("completion_tokens")
    elif has_items(stream):  # endpoints with items name the counters differently
        return f"{_dotted(stream.usage_place.pointer)} counts {count} tokens", stream.usage_place
    else:
        place = stream.usage_place.at(f"{stream.usage_place.pointer}/completion_tokens")
    return f"{_dotted(place.pointer)} is {count}", place


def _dotted(pointer: str) -> str:
    """Return a JSON pointer with dots instead of slashes, as documentation writes it."""
    return pointer.strip("/").replace("/", ".")


def _budget_in_words(stream: Stream, budget: int) -> str:
    """Return the budget of a choice, with the name of its request field."""
    stated = stream.asked.sent.get("max_new_tokens")
    return f"{stated.wire_name if stated else 'a budget of'} {budget}"


@check("budget-is-kept", ANSWERED)
def _budget_is_kept(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a choice does not have more output ids than the request allowed."""
    for choice in stream.choices:
        budget, count = _budget_of(stream, choice.index), count_of(stream, choice)
        if budget is None or count is None or is_error(choice.finish):
            continue
        words, place = _count_in_words(stream, choice, count)
        over = next((emission for emission in choice.delivered if emission.after > budget), None)
        if over is not None and over.output_ids is not None:
            place = over.at("output_ids")
        message = f"{words} for {_budget_in_words(stream, budget)}"
        yield expect(place, f"at most {budget}", count, message, holds=count <= budget)


@check_finished("length-means-budget")
def _length_means_budget(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a choice that finished with length has used its whole budget."""
    budget, count = _budget_of(stream, choice.index), count_of(stream, choice)
    if choice.finish is None or choice.finish.type != "length" or budget is None or count is None:
        return
    words, place = _count_in_words(stream, choice, count)
    message = f"{words} for {_budget_in_words(stream, budget)}, but it finished with length"
    yield expect(choice.last_at("finish"), budget, count, message, related=(place,))


_RESERVED = 8
"""The most ids at the end of the context that a server may reserve."""


@check_choices("unnamed-budget-is-the-room")
def _unnamed_budget_is_the_room(choice: Choice, stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a choice goes beyond the defaults of engines if its request names no budget.

    A client that disconnects later has seen enough ids.
    """
    least, count = policy_of(stream).default_budget_exceeds, count_of(stream, choice)
    if least is None or count is None or "max_new_tokens" in stream.asked.sent:
        return
    context, prompt = target.advertised.context_length, _prompt_length(stream, choice)
    spent = choice.finish is not None and choice.finish.type == "length"
    is_cut = spent and context is not None and prompt is not None and prompt + least + _RESERVED < context
    if count > least or is_cut:
        words, place = _count_in_words(stream, choice, count)
        message = f"{words}, and it finished with length, although the request names no budget"
        yield expect(place, f"more than {least}", count, message, holds=count > least)


def _prompt_length(stream: Stream, choice: Choice) -> int | None:
    """Return the number of ids of a choice's prompt; None if it is unknown."""
    ids = prompt_of(stream, choice.index)
    if ids is not None:
        return len(ids)
    counted = choice.counter("prompt_tokens")
    return usage_count(stream, "prompt_tokens") if counted is None else counted


@check("zero-budget-has-no-ids")
def _zero_budget_has_no_ids(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a request for zero tokens is answered without ids and entries."""
    if stream.asked.max_new_tokens != 0 or _budget_of(stream) is None:
        return
    if was_refused(stream):
        yield expect(start_place(stream), "a refusal", stream.exchange.status, holds=True)
    for choice in finished_choices(stream):
        last = choice.emissions[-1]
        parts: dict[str, Any] = {"output_ids": choice.output_ids}
        if not stream.asked.echo:  # with an echo, the text contains the prompt
            parts["text"] = choice.text
        parts |= {name: choice.series(name) for name in sorted(choice.series_names)}
        for name, part in parts.items():
            if part is not None:
                message = f"{name} is not empty for a budget of zero tokens"
                yield expect(last.at(name), "empty", part, message, holds=not part)
        if choice.output_ids is None and (count := count_of(stream, choice)):
            words, place = _count_in_words(stream, choice, count)
            yield expect(place, 0, count, f"{words} for a budget of zero tokens", holds=False)
        if choice.finish is not None:
            yield expect(last.at("finish"), "length", choice.finish.type)


@check("request-id-is-the-clients")
def _request_id_is_the_clients(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that an answer has the request id that its client chose."""
    asked = stream.asked
    single = asked.request_id is not None and asked.prompts * asked.n == 1 and not asked.batch
    chosen = known_as(stream) if single else None
    first = next(iter(stream.emissions()), None) if chosen is not None else None
    if first is not None:
        reported = first.details.get("request_id")
        if reported == asked.request_id and policy_of(stream).request_id_prefix_is_optional:
            chosen = asked.request_id
        message = f"the request id is {reported!r}, not {chosen!r}"
        yield expect(first.at("request_id"), chosen, reported, message)


@fact(Stream)
def _request_id(stream: Stream) -> tuple[Place, str] | None:
    """Return the first request id in an answer, and its place."""
    for emission in stream.emissions():
        name = emission.details.get("request_id")
        if isinstance(name, str):
            return emission.at("request_id"), name
    return None


@check_run("request-ids-are-unique")
def _request_ids_are_unique(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that no two answers have the same request id, if the server generated the id."""
    first: dict[tuple[str, Any], Place] = {}
    for stream in streams:
        if stream.asked.request_id is not None or "request_id" in stream.asked.sent or not stream.answered:
            continue
        place, reported = _request_id(stream) or (None, "")
        if place is None:
            continue
        other = first.setdefault((stream.dialect, reported), place)
        message = f"the answer has the request id {reported!r}, like {other.exchange}"
        related = () if other is place else (other,)
        yield expect(place, "an id of its own", reported, message, holds=other is place, related=related)


@check_finished("finish-length-counts-the-ids")
def _finish_length_counts_the_ids(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the length in the finish reason equals the number of ids."""
    ids, finish = choice.output_ids, choice.finish
    if finish is not None and finish.length is not None and ids is not None:
        message = f"choice {choice.index} has {len(ids)} output ids, and its finish says {finish.length}"
        yield expect(choice.last_at("finish"), len(ids), finish.length, message)


@check("answer-names-its-model", ANSWERED)
def _answer_names_its_model(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that an answer names the requested model, a version of it, or a model that the server lists."""
    names, asked = target.advertised.models, stream.asked.model
    models = (emission.details["model"] for emission in stream.emissions() if "model" in emission.details)
    reported = next(models, None) if asked else None
    if reported is None:
        return
    holds = isinstance(reported, str) and (reported in names or reported.startswith(asked))
    expected = f"{asked!r}" + (f", or one of {sorted(names)[:4]}" if names else "")
    message = f"the answer names the model {reported!r}, but the request names {asked!r}"
    place = stream.emissions()[0].at("model")
    yield expect(place, expected, reported, message, holds=holds)


@check_run("cached-tokens-are-told-alike")
def _cached_tokens_are_told_alike(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that whole answers report cached_tokens if streams do.

    Each whole answer is compared with a stream before it and a stream after it.
    """
    for before, whole, after in _answered_between(streams):
        there = whole.choices[0].counter("cached_tokens")
        beside = [stream.choices[0].counter("cached_tokens") for stream in (before, after)]
        if None not in beside:
            message = "the whole answer lacks cached_tokens, but streams of the same prompt have it"
            place = whole.choices[0].last_at("cached_tokens")
            yield expect(place, "cached_tokens", there, message, holds=there is not None)


def _answered_between(streams: tuple[Answer, ...]) -> Iterator[tuple[Answer, Answer, Answer]]:
    """Yield each whole answer between two streams of the same prompt: stream, whole answer, stream."""
    alike: dict[tuple[str, str], list[Answer]] = {}
    for stream in streams:
        if stream.asked.prompt_key and ended(stream) and len(stream.choices) == 1:
            alike.setdefault((stream.dialect, stream.asked.prompt_key), []).append(stream)
    for answers in alike.values():
        for before, whole, after in zip(answers, answers[1:], answers[2:], strict=False):
            if before.asked.stream and after.asked.stream and not whole.asked.stream:
                yield before, whole, after
