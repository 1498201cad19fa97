"""Checks of isolation: what a request gives does not depend on who runs beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from tokenwire.checks.about import ended, finished_choices
from tokenwire.checks.agreement import Side, agree, as_declared, choice_pairs, same_beginning
from tokenwire.checks.check import Target, check_run, once_per_run, select
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import end_place
from tokenwire.checks.reading.times import Timeline, began
from tokenwire.record import Answer, Stream
from tokenwire.target.determinism import known_by
from tokenwire.wire.exchange import ExchangeHead

CROWD = 4
"""So many requests with other prompts make a crowd."""


def undisturbed(stream: Answer) -> bool:
    """Whether an answer is complete, and may be compared with another to the same request."""
    choices = finished_choices(stream)
    return (
        ended(stream)
        and len(choices) == len(stream.choices) > 0
        and all(choice.finish is not None and choice.finish.type != "abort" for choice in choices)
    )


def _company(streams: Iterable[Answer]) -> Callable[[ExchangeHead, str], int]:
    """Tells how many answered requests with another prompt were under way beside one with a prompt."""
    by_prompt: dict[str, list[ExchangeHead]] = {}
    for stream in streams:
        if stream.answered:
            by_prompt.setdefault(stream.asked.prompt_key, []).append(stream.exchange)
    everyone = Timeline(chain.from_iterable(by_prompt.values()))
    alike = {prompt: Timeline(exchanges) for prompt, exchanges in by_prompt.items()}

    def beside(exchange: ExchangeHead, prompt: str) -> int:
        return everyone.beside(exchange) - alike[prompt].beside(exchange)

    return beside


def repeated(group: list[Answer]) -> Answer | None:
    """The first of two answers of a group that are alike: what shows that the target repeats itself."""
    results = [known_by(tuple((c.index, c.output_ids, c.text) for c in stream.choices)) for stream in group]
    times = Counter(results)
    return next((s for s, result in zip(group, results, strict=True) if times[result] > 1), None)


@once_per_run
def beginnings(streams: tuple[Answer, ...]) -> list[list[Answer]]:
    """The complete answers of a run that begin alike, those together that do."""
    groups: dict[tuple[object, ...], list[Answer]] = {}
    for stream in streams:
        key = same_beginning(stream)
        if key is not None and undisturbed(stream):
            groups.setdefault(key, []).append(stream)
    return [group for group in groups.values() if len(group) > 1]


@check_run("neighbours-change-nothing")
def _neighbours_change_nothing(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """What was answered twice alike alone is answered so in a crowd."""
    beside = _company(streams)
    for group in beginnings(streams):
        if len(group) < 3:
            continue
        prompt, asked = group[0].asked.prompt_key, [stream.exchange for stream in group]
        crowds = {one.name: beside(one, prompt) for one in asked if began(one) is not None}
        alone = repeated([stream for stream in group if crowds.get(stream.exchange.name) == 0])
        for stream in group:
            crowd = crowds.get(stream.exchange.name, 0)
            if crowd >= CROWD and alone is None:
                yield left_out(end_place(stream), "its request was not answered twice alike without others")
            elif alone is not None and crowd >= CROWD:
                alone = alone.load()  # read once for all that are held against it
                for one, other in choice_pairs(alone, stream):
                    source = f"the answer without the {crowd} others beside it"
                    yield from as_declared(agree(one, other, source), target)


@select
def _in_batches(stream: Stream) -> bool:
    """The answers to batches of prompts, one sample of each."""
    asked = stream.asked
    return bool(asked.greedy and asked.batch and asked.n == 1 and (asked.input_ids or asked.texts))


@check_run("batch-items-stand-alone")
def _batch_items_stand_alone(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """A prompt in a batch is answered as by itself."""
    alone: dict[tuple[object, ...], list[Answer]] = {}
    for stream in streams if _in_batches(streams) else ():
        asked = stream.asked
        prompts = asked.input_ids or asked.texts
        if prompts and asked.greedy and not asked.batch and undisturbed(stream):
            alone.setdefault((prompts[0], *_shape(stream)), []).append(stream)
    twins: dict[tuple[object, ...], Answer | None] = {}
    for stream in filter(undisturbed, _in_batches(streams)):
        prompts = stream.asked.input_ids or stream.asked.texts
        for place, choice in enumerate(stream.choices):
            if choice.index >= len(prompts):
                continue
            prompt = (prompts[choice.index], *_shape(stream))
            if prompt not in twins:
                twins[prompt] = repeated(alone.get(prompt, []))
            twin = twins[prompt]
            if twin is None:
                yield left_out(choice.last_at(), "its prompt was not answered twice alike by itself")
            else:
                one, other = twin.load(), stream.load()
                pair = (one, one.choices[0]), (other, other.choices[place])
                yield from as_declared(agree(*pair, "the same prompt by itself"), target)
                yield from _same_end(*pair)


def _same_end(baseline: Side, other: Side) -> Iterator[Observation]:
    """Look whether a choice ends where its prompt ends by itself, of which its ids are those so far."""
    ours, theirs = baseline[1].output_ids, other[1].output_ids
    budgets = [stream.asked.budget(choice.index) for stream, choice in (baseline, other)]
    if not ours or not theirs or budgets[0] != budgets[1] or ours[: len(theirs)] != theirs[: len(ours)]:
        return
    message = f"choice {other[1].index} has {len(theirs)} output ids, but its prompt by itself {len(ours)}"
    place, related = other[1].last_at("finish"), (baseline[1].last_at("finish"),)
    yield expect(place, len(ours), len(theirs), message, related=related)


def _shape(stream: Answer) -> tuple[object, ...]:
    """All that shapes a greedy result but for the prompt."""
    asked = stream.asked
    stops = (asked.stop, asked.stop_token_ids, asked.stop_regex, asked.no_stop_trim, asked.ignore_eos)
    text = (asked.skip_special_tokens, asked.spaces_between_special_tokens, asked.echo)
    return (stream.dialect, asked.form, asked.other_sampling, *stops, *text, asked.min_new_tokens, asked.n)
