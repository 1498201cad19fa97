"""Checks of usage: the token counts that an answer reports for itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenwire.checks.about import ANSWERED, ANY, FINISHED, about, ended
from tokenwire.checks.check import Relation, Target, check, check_finished, check_rows, compare
from tokenwire.checks.evidence import Observation, equal, expect, expect_each, in_wire_order
from tokenwire.checks.reading.channels import hides_reasoning
from tokenwire.checks.reading.fields import count_of, counters, end_place
from tokenwire.checks.same_answers import same_usage
from tokenwire.dialects.dialect import dialect_of, gives_results, has_items, policy_of
from tokenwire.record import Choice, Delivery, Detail, Emission, Place, Stream, as_list, integer
from tokenwire.requirement import Level
from tokenwire.target.determinism import Comparison
from tokenwire.typed_table import counted

_COUNTS = ("prompt_tokens", "completion_tokens")


@check("usage-adds-up", ANSWERED)
def _usage_adds_up(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that total_tokens is the sum of prompt_tokens and completion_tokens."""
    for usage in stream.usages:
        if "total_tokens" not in usage.counts:
            continue
        stated = usage.counts["total_tokens"]
        nothing = {"completion_tokens": 0} if gives_results(stream) else {}
        parts = [integer(usage.counts.get(name, nothing.get(name))) for name in _COUNTS]
        total = sum(part for part in parts if part is not None)
        holds = None not in parts and integer(stated) == total
        message = f"total_tokens is {stated!r}, but its parts add up to {total}"
        yield expect(usage.place, total, stated, message, holds=holds)


@check("usage-counts-ids", about(answered=True, ended=True))
def _usage_counts_ids(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that completion_tokens in the usage counts the output ids of all choices.

    Without ids, the number is known if all of several choices used their whole budget.
    """
    usage, place = stream.usage, stream.usage_place or end_place(stream)
    if usage is None or "completion_tokens" not in usage:
        return
    with_choice = {emission.event.index for choice in stream.choices for emission in choice.emissions}
    if stream.asked.continuous_usage and len(stream.choices) > 1 and place.event in with_choice:
        return  # this usage counts the choice of the event (`continuous-usage-follows`)
    ids, budget = [choice.output_ids for choice in stream.choices], stream.asked.max_new_tokens
    spent = [choice.finish is not None and choice.finish.type == "length" for choice in stream.choices]
    if None not in ids:
        count = sum(len(choice_ids or ()) for choice_ids in ids)
        reported = f"the choices have {count} output ids"
    elif budget and budget > 0 and len(spent) > 1 and all(spent):
        count = budget * len(spent)
        reported = f"{counted(len(spent), 'choice')} that spent their budgets have {count} tokens"
    else:
        return
    stated = usage["completion_tokens"]
    message = f"usage counts {stated!r} completion_tokens, but {reported}"
    # The ids of hidden reasoning may be left out of the answer, and are counted.
    hides = hides_reasoning(stream) and type(stated) is int and stated >= count
    yield expect(place, count, stated, message, holds=hides or equal(count, stated))


def reasoning_tokens(stream: Stream) -> int | None:
    """Return the number of reasoning tokens in the usage of an answer."""
    return integer(_part_of(stream.usage or {}, "completion_tokens", "reasoning_tokens"))


def _part_of(counts: Mapping[str, Any], whole: str, part: str) -> object:
    """Return a part of a counter, from the counter's details or from beside it. None if the usage
    lacks it.
    """
    details = counts.get(f"{whole}_details")
    nested = details.get(part) if isinstance(details, Mapping) else None
    return counts.get(part) if nested is None else nested


@dataclass(frozen=True)
class _Within(Relation):
    """A part of a counter must not exceed the counter, in the usage and in the counters of a choice."""

    whole: str
    part: str


def _observe_within(row: _Within, stream: Stream, _target: Target) -> Iterator[Observation]:
    whole, part = row.whole, row.part

    def holds(count: object, most: int | None) -> bool:
        number = integer(count)
        return number is not None and number >= 0 and (most is None or number <= most)

    def expected(most: int | None) -> str:
        return "an integer from 0" if most is None else f"an integer from 0 to {most}"

    in_usage = []
    for usage in stream.usages if stream.answered else ():
        count, most = _part_of(usage.counts, whole, part), integer(usage.counts.get(whole))
        if count is not None:
            message = f"{part} is {count!r} and {whole} {most}"
            in_usage.append(expect(usage.place, expected(most), count, message, holds=holds(count, most)))
    rows = (
        (emission, part, holds(count, most), expected(most), count)
        for choice in stream.delivering
        for emission, count in counters(choice.delivered, part)
        for most in [emission.counter(whole)]
    )
    in_choices = expect_each(rows, "{field} is {actual!r}, not {expected}")
    yield from in_wire_order((*in_usage, *in_choices))


check_rows(
    _observe_within,
    _Within("cached-within-prompt", ANY, "prompt_tokens", "cached_tokens"),
    _Within("reasoning-within-output", ANY, "completion_tokens", "reasoning_tokens"),
)


class _Drafts(NamedTuple):
    """The counters of speculative decoding of a choice, by name."""

    counted: Mapping[str, Any]
    last: Emission | None
    """The emission that has the counters; None if they are beside the usage of a stream."""
    beside: Mapping[str, Detail] = {}
    """The counters beside the usage, with their places."""

    def place(self, name: str, choice: Choice) -> Place:
        if name in self.beside:
            return self.beside[name].place
        return (self.last or choice.emissions[-1]).at(name)


def _drafts_of(choice: Choice, stream: Stream) -> _Drafts | None:
    """Return the counters of a choice's drafts; None if there are none."""
    last = choice.emissions[-1]
    if integer(last.details.get("draft_rounds")) is not None:
        return _Drafts(last.details, last)
    beside = stream.usages[-1].details if stream.usages and len(stream.choices) == 1 else {}
    counted = {name: detail.value for name, detail in beside.items()}
    return _Drafts(counted, None, beside) if integer(counted.get("draft_rounds")) is not None else None


def _draft_rules(drafts: _Drafts, ids: int | None) -> Iterator[tuple[str, object, object]]:
    """Yield the name of each counter of speculative decoding, with its expected and its actual value.

    `ids`: the number of output ids. Without a counter of tokens, steps without drafts may not be counted, so
    only the least number of ids is known.
    """
    counted, last = drafts.counted, drafts.last
    tokens = last.counter("completion_tokens") if last is not None else None
    retractions = last.counter("num_retractions") if last is not None else None
    names = ("draft_rounds", "drafts_proposed", "drafts_right")
    rounds, proposed, right = (integer(counted.get(name)) for name in names)
    steps = [integer(count) or 0 for count in as_list(counted.get("drafts_right_by_round")) or ()]
    if right is not None and proposed is not None:
        yield "drafts_right", min(right, proposed), right
        if proposed and "drafts_right_rate" in counted:
            yield "drafts_right_rate", *_rounded(right / proposed, counted["drafts_right_rate"])
    if steps and right is not None:
        yield "drafts_right_by_round", right, sum(number * count for number, count in enumerate(steps))
    if steps and rounds is not None:
        yield "draft_rounds", sum(steps), rounds
    if rounds and right is not None and "drafts_per_round_and_one" in counted:
        per_round = _rounded(1 + right / rounds, counted["drafts_per_round_and_one"])
        yield "drafts_per_round_and_one", *per_round
    if rounds and right is not None and tokens is None and ids is not None:
        least = rounds + right - max((number for number, count in enumerate(steps) if count), default=right)
        yield "output_ids", max(ids, least), ids
    if rounds and tokens is not None:
        if "tokens_per_round" in counted:
            yield "tokens_per_round", *_rounded(tokens / rounds, counted["tokens_per_round"])
        if right is not None:
            most = rounds + right
            least = most - max((number for number, count in enumerate(steps) if count), default=most)
            most += 1 + (retractions or 0)  # each prefill samples one token
            yield "completion_tokens", min(max(tokens, least), most), tokens


def _rounded(due: float, actual: Any) -> tuple[float, Any]:
    """Round an expected ratio and the reported ratio to as many digits as reported, but at most four."""
    if not isinstance(actual, (int, float)):
        return due, actual
    digits = min(4, len(f"{actual:.4f}".rstrip("0").partition(".")[2]))
    return round(float(due), digits), round(float(actual), digits)


@check_finished("draft-counts-add-up", FINISHED)
def _draft_counts_add_up(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the counters of speculative decoding agree with each other and with the number of tokens."""
    drafts = _drafts_of(choice, stream)
    if drafts is None:
        return
    for name, due, actual in _draft_rules(drafts, count_of(stream, choice)):
        message = f"{name} is {actual!r}, but the other counters give {due!r}"
        yield expect(drafts.place(name, choice), due, actual, message)


@check_finished("draft-counts-come-once", about("stream", answered=True, ended=True))
def _draft_counts_come_once(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a stream reports the counters of drafts once, at the end of a choice or of the answer."""
    name = "draft_rounds"
    reported = [emission for emission in choice.emissions if emission.details.get(name) is not None]
    beside = [usage.details[name].place for usage in stream.usages if name in usage.details]
    places = [*(emission.at(name) for emission in reported), *beside]
    early = next((emission for emission in reported if emission.finish is None), None)
    if places:
        words = "before the finish" if early is not None else f"{len(places)} times"
        message = f"the stream reports the counters of drafts {words}"
        holds = len(places) == 1 and early is None
        place = early.at(name) if early is not None else places[-1]
        yield expect(place, "once, at the end", words, message, holds=holds)


@check("draft-counts-are-of-one-choice", about(answered=True, ended=True))
def _draft_counts_are_of_one_choice(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that an answer with several choices has no counters of drafts outside of the choices."""
    dialect, name = dialect_of(stream), "draft_rounds"
    if dialect is None or name not in dialect.outside or stream.asked.n * stream.asked.prompts < 2:
        return
    places = [usage.details[name].place for usage in stream.usages if name in usage.details]
    emissions = (emission for choice in stream.choices for emission in choice.emissions)
    places += [e.at(name) for e in emissions if e.details.get(name) is not None][:1]
    count = stream.asked.n * stream.asked.prompts
    message = f"the counters of drafts of an answer with {counted(count, 'choice')} say not whose they are"
    actual = "there" if places else "absent"
    yield expect((places or [end_place(stream)])[0], "absent", actual, message, holds=not places)


@check(
    "usage-only-on-request",
    about("stream", answered=True, items=False, unasked=("usage", "continuous_usage")),
)
def _usage_only_on_request(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a stream has no usage if the request does not enable it."""
    if target.advertised.usage_in_streams or "usage" not in target.capabilities:
        return
    place = stream.usages[0].place if stream.usages else end_place(stream)
    seen = expect(place, 0, len(stream.usages), "the stream has usage, but the request did not enable it")
    yield seen._replace(level=Level.MAY) if policy_of(stream).unasked_usage else seen


def _last_place(stream: Stream) -> Place | None:
    """Return the place of the last event before the end mark."""
    return next((event.place for event in reversed(stream.events) if not event.done), None)


@check("usage-comes-last", about("stream", "usage", answered=True, ended=True, items=False))
def _usage_comes_last(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the last event has the usage if the request enables it."""
    last, events = _last_place(stream), [usage.place.event for usage in stream.usages]
    message = "the request enables usage, but the last event has none"
    holds = last is not None and last.event in events
    yield expect(last or end_place(stream), "usage in the last event", events, message, holds=holds)


@check("usage-comes-once", about("stream", "usage", answered=True, ended=True, unasked=("continuous_usage",)))
def _usage_comes_once(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that only the last event has the usage, unless the request enables it for every event."""
    if not stream.usages:
        return
    last = _last_place(stream)
    early = [usage for usage in stream.usages if last is None or usage.place.event != last.event]
    message = f"{counted(len(early), 'event')} before the last one have usage"
    place = early[0].place if early else stream.usages[-1].place
    events = [usage.place.event for usage in stream.usages]
    seen = expect(place, "usage in the last event only", events, message, holds=not early)
    yield seen._replace(level=Level.MAY) if policy_of(stream).unasked_usage else seen


@check("continuous-usage-in-every-event", about("stream", "continuous_usage", answered=True))
def _continuous_usage_in_every_event(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that every event with text has a usage, if the request enables it for every event."""
    reported = {usage.place.event: usage for usage in stream.usages}
    for emission in stream.emissions():
        usage = reported.get(emission.event.index)
        if emission.text:
            message = "the event has text but no usage, although the request enables it for every event"
            place = usage.place if usage else emission.event.place
            yield expect(place, "usage", usage.counts if usage else "none", message, holds=usage is not None)


@check("continuous-usage-follows", about("stream", "continuous_usage", answered=True))
def _continuous_usage_follows(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the usage of an event counts the tokens so far, so that it grows with each event that brings
    text.

    It may stay the same if one token ends the reasoning and begins the content, or if the finish brings text
    that was held back.
    """
    reported = {usage.place.event: usage for usage in stream.usages}
    before: dict[int, tuple[int, Emission]] = {}
    for emission in stream.emissions():
        usage = reported.get(emission.event.index)
        count = integer(usage.counts.get("completion_tokens")) if usage else None
        if usage is None or count is None or not emission.text:
            continue
        if emission.choice in before:
            was, earlier = before[emission.choice]
            content_alone = not any(event.reasoning or event.calls for event in (earlier, emission))
            least = was + (emission.finish is None and len(stream.choices) == 1 and content_alone)
            message = (
                f"completion_tokens is {count} in an event with text, after {was} in the event before it"
            )
            yield expect(usage.place, f"at least {least}", count, message, holds=count >= least)
        before[emission.choice] = count, emission


@compare("stream-usage-equals-whole")
def _stream_usage_equals_whole(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Check that a stream reports the same usage as the whole answer to the same request."""
    ours, theirs = comparison.baseline, comparison.other
    if ours.delivery is not Delivery.WHOLE or not theirs.asked.stream:
        return
    if not (theirs.asked.usage or has_items(theirs)):  # streams of items always have the usage
        return
    if ours.usage is None or theirs.usage is None or not (ended(ours) and ended(theirs)):
        return
    pairs = list(zip(ours.choices, theirs.choices, strict=False))
    yield from same_usage(comparison, "the whole answer", pairs)
