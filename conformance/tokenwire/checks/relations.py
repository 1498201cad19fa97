"""Checks that relate requests by what was sent and what came back: ids out, ids in, the same continuation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenwire.check import Observation, Target, check_run
from tokenwire.checks.difference import observe_sequence
from tokenwire.checks.sameness import same_ids, same_text
from tokenwire.checks.walk import as_list, ended, finished_choices, joined_ids
from tokenwire.record import Choice, Stream

Ids = tuple[Any, ...]


@dataclass(frozen=True)
class Whole:
    """One greedy answer to one prompt, complete, whatever way it travelled."""

    stream: Stream
    choice: Choice
    prompt: Ids | None
    """The ids that were sent, or that came back for a text; None where neither is known."""
    ids: Ids | None

    @property
    def sent_ids(self) -> bool:
        return self.stream.asked.input_ids is not None

    @property
    def sampling(self) -> str:
        return self.stream.asked.other_sampling

    @property
    def limits(self) -> tuple[object, ...]:
        """All that ends a result."""
        asked = self.stream.asked
        return (asked.max_new_tokens, asked.stop, asked.stop_token_ids, asked.ignore_eos)


def _hashable(values: list[Any] | None) -> Ids | None:
    """A list of ids as a tuple; None where it holds anything but integers."""
    return tuple(values) if values is not None and all(type(value) is int for value in values) else None


def related_streams(streams: tuple[Stream, ...]) -> list[Whole]:
    """The greedy answers of a run to one prompt and sample each, which reached their end undisturbed."""
    found: list[Whole] = []
    for stream in streams:
        asked, choices = stream.asked, finished_choices(stream)
        single = asked.prompts * asked.n == 1 and len(choices) == 1
        if not (asked.greedy and single and ended(stream)):
            continue
        choice = choices[0]
        if choice.finish is None or choice.finish.type == "abort":
            continue
        prompt: Ids | None = asked.input_ids[0] if asked.input_ids else None
        if asked.input_ids is None:
            told = (as_list(emission.prompt_token_ids) for emission in choice.emissions)
            prompt = _hashable(next((ids for ids in told if ids is not None), None))
        found.append(Whole(stream, choice, prompt, _hashable(joined_ids(choice))))
    return found


@check_run("text-prompt-ids-reproduce")
def text_prompt_ids_reproduce(streams: tuple[Stream, ...], _target: Target) -> Iterator[Observation]:
    """The ids that a text became, sent as ids, are answered as the text was."""
    wholes = [one for one in related_streams(streams) if one.prompt and one.ids is not None]
    from_ids = {(one.prompt, one.sampling, one.limits): one for one in reversed(wholes) if one.sent_ids}
    for one in wholes:
        twin = None if one.sent_ids else from_ids.get((one.prompt, one.sampling, one.limits))
        if twin is not None:
            yield from same_ids((one.choice, twin.choice), "the answer to the text")


@check_run("output-ids-continue")
def output_ids_continue(streams: tuple[Stream, ...], _target: Target) -> Iterator[Observation]:
    """Prompt and first output ids, sent as ids, are continued by the other output ids."""
    wholes = [one for one in related_streams(streams) if one.prompt and one.ids]
    by_prompt: dict[tuple[Ids, str], list[Whole]] = {}
    for one in wholes:
        if one.sent_ids and one.prompt:
            by_prompt.setdefault((one.prompt, one.sampling), []).append(one)
    for first in wholes:
        prompt, ids = first.prompt or (), first.ids or ()
        for k in range(1, len(ids)):
            for one in by_prompt.get((prompt + ids[:k], first.sampling), ()):
                rest = ids[k:]
                common = min(len(rest), len(one.ids or ()))
                yield observe_sequence(
                    one.choice.emissions[-1].at("output_ids"),
                    "output id",
                    expected=rest[:common],
                    actual=(one.ids or ())[:common],
                    source=f"the rest of the longer answer after {k} ids",
                    related=(first.choice.emissions[-1].at("output_ids"),),
                )


@check_run("same-ids-on-every-endpoint")
def same_ids_on_every_endpoint(streams: tuple[Stream, ...], _target: Target) -> Iterator[Observation]:
    """One prompt, one greedy answer, through whatever door."""
    first: dict[str, Whole] = {}
    for one in related_streams(streams):
        key = one.stream.asked.ids_key
        if not key:
            continue
        other = first.setdefault(key, one)
        if other.stream.dialect != one.stream.dialect:
            source = f"the answer of {other.stream.dialect}"
            yield from same_ids((other.choice, one.choice), source)
            yield from same_text((other.choice, one.choice), source)
