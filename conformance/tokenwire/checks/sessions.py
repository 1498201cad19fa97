"""Checks of sessions, in which the server stores the conversation: a turn follows its history, with the right
answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from tokenwire.checks.about import ended, was_aborted
from tokenwire.checks.check import Target, check_run, once_per_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import STOPS, asked_alike
from tokenwire.checks.reading.times import began, over
from tokenwire.dialects.control import Action
from tokenwire.dialects.dialect import known_as
from tokenwire.record import Answer, Stream, fact

Ids = tuple[int, ...]


@fact(Stream)
def _names(stream: Stream) -> frozenset[str]:
    """Return the request ids in an answer, by which a later turn may refer to it."""
    return frozenset(
        name
        for choice in stream.choices
        for emission in choice.emissions[:1]
        if isinstance(name := emission.details.get("request_id"), str)
    )


def _only_prompt(answer: Answer) -> Ids | None:
    """Return the ids of a request with one prompt and one choice. None for other requests."""
    ids = answer.asked.input_ids or ()
    return ids[0] if len(ids) == 1 and answer.asked.n == 1 and not answer.asked.batch else None


@once_per_run
def _turns(streams: tuple[Answer, ...]) -> list[tuple[Answer, Ids]]:
    """Return each turn whose whole prompt is known, with this prompt, in the order of the requests."""
    records: dict[str, Ids] = {}
    found: list[tuple[Answer, Ids]] = []
    for answer in streams:
        turn, prompt = answer.asked.turn, _only_prompt(answer)
        if turn is not None and (record := records.get(turn.after)) is not None:
            history = record[: turn.offset] if turn.offset else record
            # SGLang removes the beginning-of-sequence id from a turn, so such a prompt is unknown.
            prompt = (*history, *turn.input_ids) if turn.input_ids[:1] != history[:1] else None
            if prompt is not None and answer.answered and ended(answer) and len(answer.choices) == 1:
                found.append((answer, prompt))
        choice = answer.choices[0] if len(answer.choices) == 1 else None
        if prompt is None or choice is None or choice.output_ids is None:
            continue
        if (
            choice.finish is not None and choice.finish.type == "length"
        ):  # after another finish, the output may lack its last id
            names = filter(None, (*_names(answer), known_as(answer)))
            records |= dict.fromkeys(names, (*prompt, *choice.output_ids))
    return found


class _Appended(NamedTuple):
    """A turn that continues the latest turn of its session."""

    answer: Answer
    prompt: Ids
    """All ids before the output of this turn, without the ids of aborted turns."""
    is_behind_an_abort: bool


def _appended(streams: tuple[Answer, ...], target: Target) -> Iterator[_Appended]:
    """Yield the turns with a known prompt, from sessions in which each turn continues the latest one."""
    opened = [call for call in target.calls if call.action is Action.OPEN and call.appends and call.done]
    names = frozenset().union(*(call.ids for call in opened))
    turns: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in streams if names else ():
        turn = answer.asked.turn
        if turn is not None and not turn.after and turn.session in names:
            turns[turn.session].append(answer)
    for of_session in turns.values():
        yield from _followed(of_session)


def _followed(answers: list[Answer]) -> Iterator[_Appended]:
    """Yield the turns of one session in the order of time.

    Stop at the first turn whose whole prompt is unknown, for example because the turn began before the
    previous turn had ended.
    """
    record: Ids = ()
    last, is_behind = float("-inf"), False
    for answer in sorted(answers, key=lambda turn: began(turn.exchange) or 0.0):
        turn, start, end = answer.asked.turn, began(answer.exchange), over(answer.exchange)
        if turn is None or start is None or end is None or start < last:
            return
        last = end
        if answer.refused:
            continue  # a refused turn is not run, so the session is unchanged
        choice = answer.choices[0] if answer.answered and len(answer.choices) == 1 else None
        if choice is None:
            return
        if was_aborted(choice):
            is_behind = True
            continue
        if record and turn.input_ids[:1] == record[:1]:
            # SGLang removes the beginning-of-sequence id from a turn, so the whole prompt is unknown.
            return
        prompt = (*record, *turn.input_ids)
        if record and not is_behind and choice.counter("prompt_tokens") == len(turn.input_ids):
            return  # the server has no such sessions, so each turn begins a new conversation
        if record:
            yield _Appended(answer, prompt, is_behind)
        if choice.output_ids is None or choice.finish is None or choice.finish.type != "length":
            return
        record, is_behind = (*prompt, *choice.output_ids), False


def _counted(answer: Answer, prompt: Ids, why: str = "") -> Iterator[Observation]:
    """Check that a turn counts the tokens of its whole prompt."""
    choice, turn = answer.choices[0], answer.asked.turn
    if (count := choice.counter("prompt_tokens")) is not None and turn is not None:
        size = len(turn.input_ids)
        message = f"the turn has {size} ids after {len(prompt) - size}{why}, and counts {count} prompt tokens"
        yield expect(choice.last_at("prompt_tokens"), len(prompt), count, message)


@check_run("turns-carry-their-history")
def _turns_carry_their_history(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a turn's prompt_tokens counts the previous turn's prompt and output, and the turn's own
    prompt.
    """
    appended = (
        (turn.answer, turn.prompt) for turn in _appended(streams, target) if not turn.is_behind_an_abort
    )
    for answer, prompt in chain(_turns(streams), appended):
        yield from _counted(answer, prompt)


@check_run("aborted-turn-is-taken-back")
def _aborted_turn_is_taken_back(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the turn after an aborted turn continues the conversation as it was before the
    aborted turn.
    """
    shown = False
    for turn in _appended(streams, target):
        if turn.is_behind_an_abort and shown:
            yield from _counted(turn.answer, turn.prompt, " of the turns that ended")
        shown = shown or not turn.is_behind_an_abort


@check_run("turns-answer-as-their-history")
def _turns_answer_as_their_history(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that a greedy turn has the same ids as a request that sends the whole history."""
    alike = ("max_new_tokens", "other_sampling", *STOPS)
    turns = [(answer, prompt) for answer, prompt in _turns(streams) if answer.asked.greedy]
    wanted = {(prompt, asked_alike(answer, *alike)) for answer, prompt in turns}
    spelled: dict[object, Answer] = {}
    for answer in streams if wanted else ():
        prompt = _only_prompt(answer)
        key = (prompt, asked_alike(answer, *alike))
        if key in wanted and answer.asked.greedy and ended(answer) and len(answer.choices) == 1:
            spelled.setdefault(key, answer)
    for answer, prompt in turns:
        if (twin := spelled.get((prompt, asked_alike(answer, *alike)))) is not None:
            ours, theirs = twin.choices[0], answer.choices[0]
            message = "the turn has other ids than a request with its whole history"
            place, related = theirs.last_at("output_ids"), (ours.last_at("output_ids"),)
            expected, actual = ours.output_ids, theirs.output_ids
            yield expect(place, expected, actual, message, related=related, by_chance=True)
