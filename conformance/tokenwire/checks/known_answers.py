"""Checks of answers against the right one, where the model is known and so the right answer is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import finalize

from tokenwire.checks.difference import first_difference, observe_sequence
from tokenwire.checks.logprob_entry import (
    CHOSEN,
    CONTENT,
    NAMED,
    NAMED_TOP,
    NAMES,
    PROMPT_CHOSEN,
    PROMPT_TOP,
    SAMPLED,
    TOP,
    LogprobEntry,
    id_in_text,
    number_of,
    read_by_text,
    read_entry,
    read_position,
)
from tokenwire.checks.prompt import prompt_logprobs
from tokenwire.checks.walk import (
    as_list,
    end_place,
    ended,
    integer,
    is_error,
    joined_ids,
    joined_text,
    running_texts,
    steps_of,
    streamed,
    thoughts_of,
)
from tokenwire.dialects.dialect import policy_of
from tokenwire.judging.alike import ROUNDING
from tokenwire.judging.check import Observation, Target, check, demand, observe
from tokenwire.parrot.law import EXACT_ABOVE, Parrot
from tokenwire.parrot.recognition import Ids, KnownModel
from tokenwire.parrot.script import Truth, truth
from tokenwire.record import Choice, Emission, Place, Stream
from tokenwire.requirement import Level

_SOURCE = "the right answer"
_BROKEN = "\ufffd"
_WINDOW = 12
"""Characters that are shown before a difference."""
_MOST_RANKED = 20
"""So many of the likeliest are known in their order, whatever the type of the weights."""
_COARSE = 0.02
"""How far a logprob that is no more exact than the weights may lie from the right one, as a share of it."""


@dataclass(frozen=True)
class Known:
    """A choice, and what it should be."""

    choice: Choice
    prompt: Ids
    readings: tuple[Truth, ...]
    """Two where the prompt ends within a character, which the output may complete or not."""
    finished: bool
    """It came to its own end: by an abort or a hang-up it is cut off."""

    @property
    def right(self) -> Truth:
        """The reading that the ids of the choice agree with."""
        ids = joined_ids(self.choice)
        return next((one for one in self.readings if ids == list(one.ids)), self.readings[0])

    @property
    def legal(self) -> list[str]:
        """The texts that it may end with: all, or those of the stop that it names."""
        finish = self.choice.finish
        named = finish.matched if finish is not None else None
        every = [(stop, text) for right in self.readings for stop, text in right.endings.items()]
        of_named = [text for stop, text in every if stop == named]
        return of_named or [text for right in self.readings for text in right.legal]


_known: dict[int, tuple[KnownModel, tuple[Known, ...]]] = {}
"""The right answers of each stream that is alive, by its identity: every check here asks for them."""


def known_choices(stream: Stream, target: Target) -> tuple[Known, ...]:
    """The choices of an answer whose right answer is known."""
    model = target.model
    if model is None or not stream.answered:
        return ()
    seen = _known.get(id(stream))
    if seen is None or seen[0] is not model:
        if seen is None:
            finalize(stream, _known.pop, id(stream)).atexit = False
        seen = _known[id(stream)] = (model, tuple(_computed(stream, target, model)))
    return seen[1]


def _computed(stream: Stream, target: Target, model: KnownModel) -> Iterator[Known]:
    asked = stream.asked
    longest = min(
        (one for one in (target.advertised.context_length, model.longest) if one is not None), default=None
    )
    if not asked.likeliest or asked.echo:
        return
    prompts, size = model.prompts(stream), len(model.words.pieces)
    for choice in stream.choices:
        at, wants = choice.index // max(asked.n, 1), asked.of(choice.index)
        prompt = prompts[at] if 0 <= at < len(prompts) else None
        budget, kind = wants.max_new_tokens, choice.finish.type if choice.finish is not None else None
        if prompt is None or budget is None or is_error(choice.finish):
            continue
        if longest is not None and len(prompt) + budget > longest:
            continue  # a server may refuse that, or give less
        if kind not in {"stop", "length", "abort", None} or not all(0 <= token < size for token in prompt):
            continue
        heads = dict.fromkeys((b"", model.words.unfinished(prompt, skip=wants.skip_special_tokens)))
        readings = [truth(model.law, model.words, prompt, wants, head=head) for head in heads]
        told = tuple(one for one in readings if one is not None)
        if told:
            yield Known(choice, prompt, told, kind in {"stop", "length"} and stream.error is None)


# Ids, the finish, the counts.


def _ids_due(stream: Stream, right: Truth) -> Ids:
    """The ids that are told: some families leave out the one that ended a choice."""
    by_id = right.finish == "stop" and not any(isinstance(one, str) for one in right.matched)
    left_out = by_id and not policy_of(stream).get("stop_id_in_output_ids", True)
    return right.ids[:-1] if left_out else right.ids


def _carrying(choice: Choice, position: int | None) -> Emission:
    """The emission that brings the output id at a position; the last one where none does."""
    steps = list(steps_of(choice))
    if position is not None:
        return next(
            (step.emission for step in steps if step.ids and step.after > position), steps[-1].emission
        )
    return next((step.emission for step in reversed(steps) if step.ids), steps[-1].emission)


@check("script-ids-are-said")
def script_ids_are_said(stream: Stream, target: Target) -> Iterator[Observation]:
    """The output ids are those of the right answer; those of a choice that was cut off, its beginning."""
    for one in known_choices(stream, target):
        ids = joined_ids(one.choice)
        if ids is None:
            continue
        due = _ids_due(stream, one.right)
        due = due if one.finished else due[: len(ids)]
        place = _carrying(one.choice, first_difference(due, ids)).at("output_ids")
        yield observe_sequence(place, "output id", expected=due, actual=ids, source=_SOURCE)


@check("script-finish-is-right")
def script_finish_is_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """A stop before the budget is over, or with its last token; else the budget."""
    for one in known_choices(stream, target):
        if one.finished and one.choice.finish is not None:
            due, right = one.right.finish, one.right
            words = f"the right answer ends with {due} after {len(right.ids)} ids"
            actual = one.choice.finish.type
            message = f"choice {one.choice.index} finished with {actual}; {words}"
            place = _last_finish(one.choice).at("finish")
            yield observe(place, expected=due, actual=actual, message=message)


def _last_finish(choice: Choice) -> Emission:
    return next((e for e in reversed(choice.emissions) if e.finish is not None), choice.emissions[-1])


@check("script-match-is-right")
def script_match_is_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """The stop that is named is one that is complete where the right answer ends."""
    for one in known_choices(stream, target):
        finish = one.choice.finish
        if one.finished and finish is not None and finish.matched is not None:
            legal = frozenset().union(*(right.matched for right in one.readings))
            named = finish.matched if isinstance(finish.matched, (int, str)) else repr(finish.matched)
            expected = sorted(legal, key=str) or "no stop"
            message = (
                f"choice {one.choice.index} was ended by {named!r}, says the server; by {expected} it is"
            )
            place = _last_finish(one.choice).at("finish")
            yield demand(place, named in legal, expected=expected, actual=named, message=message)


@check("script-counts-are-right")
def script_counts_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Tokens are counted as the right answer has them, in each choice and in the usage."""
    every = known_choices(stream, target)
    if not ended(stream) or not every or not all(one.finished for one in every):
        return
    for one in every:
        last = one.choice.emissions[-1]
        due = {"completion_tokens": len(_ids_due(stream, one.right)), "prompt_tokens": len(one.prompt)}
        for name, number in due.items():
            said = last.counters.get(name)
            if said is not None:
                yield _counted(last.at(name), name, number, said)
    usage = stream.usage
    if (
        isinstance(usage, Mapping)
        and len(every) == len(stream.choices) == stream.asked.n * stream.asked.prompts
    ):
        total = {
            "completion_tokens": sum(len(_ids_due(stream, one.right)) for one in every),
            "prompt_tokens": sum(len(one.prompt) for one in every) // max(stream.asked.n, 1),
        }
        for name, number in total.items():
            if name in usage:
                yield _counted(stream.usage_place or end_place(stream), name, number, usage[name])


def _counted(place: Place, name: str, due: int, said: object) -> Observation:
    message = f"{name} is {said!r}; {_SOURCE} has {due}"
    return observe(place, expected=due, actual=said, message=message)


# Text.


def _parsed(choice: Choice) -> bool:
    """Whether a parser put text elsewhere."""
    return bool(thoughts_of(choice)) or any(e.details.get("tool_calls") for e in choice.emissions)


def _observed(
    place: Place, legal: Sequence[str], text: str, what: str, *, holds: bool, level: Level | None = None
) -> Observation:
    """Show a text beside the right one that it agrees with for longest, from a little before they part."""
    nearest = max(legal, key=lambda each: _parting(each, text))
    at = _parting(nearest, text)
    window = slice(0, 4 * _WINDOW) if holds else slice(max(0, at - _WINDOW), at + 3 * _WINDOW)
    message = "" if holds else f"{what} at character {at}"
    seen = demand(place, holds, expected=nearest[window], actual=text[window], message=message)
    return replace(seen, level=level)


def _parting(one: str, other: str) -> int:
    position = first_difference(one, other)
    return len(one) if position is None else position


@check("script-text-is-right")
def script_text_is_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """The text at the end is that of the right answer, up to its stop."""
    for one in known_choices(stream, target):
        text = joined_text(one.choice)
        if text is None or not one.finished or _parsed(one.choice):
            continue
        holds = text in one.legal
        cut = any(text.startswith(bare) for right in one.readings for bare in right.bare)
        cut = cut and any(legal.startswith(text) for legal in one.legal)
        carrying = next(e for e in reversed(one.choice.emissions) if isinstance(e.text, str))
        yield _observed(
            carrying.at("text"),
            one.legal,
            text,
            f"the text of choice {one.choice.index} differs from {_SOURCE}",
            holds=holds,
            level=Level.SHOULD if cut and not holds else None,
        )


@check("script-text-so-far-is-right")
def script_text_so_far_is_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """What was shown by each emission begins the right text, and its ids were delivered before."""
    if not streamed(stream):
        return
    for one in known_choices(stream, target):
        if _parsed(one.choice):
            continue
        steps = {id(step.emission): step for step in steps_of(one.choice)}
        shown_so_far = list(running_texts(one.choice))
        for emission, held in shown_so_far:
            step = steps[id(emission)]
            last = emission is one.choice.emissions[-1] or emission.finish is not None
            legal = one.legal
            # Chat tells the finish in a chunk of its own, behind the last of the text.
            cut_off = not one.finished and held == shown_so_far[-1][1]
            shown = held.rstrip(_BROKEN) if cut_off else held
            if not shown:
                continue
            begins = any(text.startswith(shown) for text in legal)
            place, what = (
                emission.at("text"),
                f"the text of choice {one.choice.index} so far differs from {_SOURCE}",
            )
            if begins and step.counted and not last and step.after < len(one.right.ids):
                said = [right.texts[step.after - 1] if step.after else "" for right in one.readings]
                begins = any(len(shown) <= len(text) for text in said)
                legal = legal if begins else said
                what = f"the text of choice {one.choice.index} is ahead of its {step.after} ids"
            yield _observed(place, legal, shown, what, holds=begins)


# Logprobs.


def _right_number(told: object, due: float) -> bool:
    number = number_of(told)
    tolerance = ROUNDING if due > EXACT_ABOVE else _COARSE * -due
    return number is not None and abs(number - due) <= tolerance


Entry = list[Any]
"""A logprob and, where it is told, the id that it is of."""


def _same_entry(due: Entry, told: Entry) -> bool:
    return _right_number(told[0], due[0]) and (len(told) < 2 or told[1] == due[1])


def _told_entry(entry: LogprobEntry | None, written: object) -> Entry:
    """What an entry says; what is none says itself, which is never right."""
    if entry is None:
        return [written]
    return [entry.logprob] if entry.token_id is None else [entry.logprob, entry.token_id]


def _sampled(choice: Choice) -> Iterator[tuple[str, list[Entry]]]:
    """What each series of a choice says of its own ids."""
    for name in (SAMPLED, CONTENT):
        if (entries := choice.series(name)) is not None:
            yield name, [_told_entry(read_entry(entry), entry) for entry in entries]
    if (numbers := choice.series(NAMED)) is not None:
        texts = choice.series(NAMES) or []
        named = [id_in_text(text) for text in texts] if len(texts) == len(numbers) else [None] * len(numbers)
        yield NAMED, [[n] if token is None else [n, token] for n, token in zip(numbers, named, strict=True)]


def _numbers_of(target: Target) -> Parrot | None:
    """The law of the model, where its logprobs are known."""
    law = target.model.law if target.model is not None else None
    return law if isinstance(law, Parrot) else None


def _with_logprobs(stream: Stream, target: Target) -> Iterator[tuple[Known, Parrot]]:
    """The choices whose logprobs are known and complete; thoughts may have taken theirs along."""
    law = _numbers_of(target)
    if law is not None and stream.asked.uniform:
        yield from ((one, law) for one in known_choices(stream, target) if not _parsed(one.choice))


def _due(stream: Stream, one: Known, told: int, name: str) -> Ids | None:
    """The ids that a series of so many entries is to tell of; None where that is left to the server.

    Where a dialect promises entries only for what the content shows, those of a stop need not be there.
    """
    ids = _ids_due(stream, one.right)
    if not one.finished:
        return ids[:told]
    if name == CONTENT and not policy_of(stream).get("hidden_in_logprobs", True) and told < len(ids):
        return ids[:told] if one.right.finish == "stop" and _shown(one) <= told else None
    return ids


def _shown(one: Known) -> int:
    """How many ids it takes to say the final text."""
    right = one.right
    return next((at for at, text in enumerate(right.texts, 1) if text.startswith(right.text)), len(right.ids))


def _place_in(choice: Choice, name: str, position: int | None) -> Place:
    """The emission that brings the entry of a series at a position; the last one that has the series."""
    carrying = [e for e in choice.emissions if as_list(e.series.get(name)) is not None]
    held = 0
    for emission in carrying:
        size = len(as_list(emission.series.get(name)) or [])
        held = held + size if choice.text_is_incremental else size
        if position is not None and position < held:
            return emission.at(name)
    return carrying[-1].at(name)


def _observed_series(
    choice: Choice, name: str, due: Sequence[Any], told: Sequence[Any], same: Callable[[Any, Any], bool]
) -> Observation:
    place = _place_in(choice, name, first_difference(due, told, same))
    return observe_sequence(place, f"{name} entry", expected=due, actual=told, source=_SOURCE, same=same)


@check("script-logprobs-are-right")
def script_logprobs_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Each id has an entry, and its logprob is the right one."""
    for one, law in _with_logprobs(stream, target):
        for name, told in _sampled(one.choice):
            ids = _due(stream, one, len(told), name)
            if ids:
                due = [[law.logprob(token, token), token] for token in ids]
                yield _observed_series(one.choice, name, due, told, _same_entry)


def _ranked(choice: Choice) -> Iterator[tuple[str, list[list[LogprobEntry] | None]]]:
    """What each series of a choice says of the likeliest at its ids."""
    if (rows := choice.series(TOP)) is not None:
        yield TOP, [read_position(row) for row in rows]
    if (entries := choice.series(CONTENT)) is not None:
        inner = [entry.get(NAMED_TOP) if isinstance(entry, Mapping) else None for entry in entries]
        yield CONTENT, [read_position(row) for row in inner]
    if (rows := choice.series(NAMED_TOP)) is not None:
        yield NAMED_TOP, [read_by_text(row) for row in rows]


@dataclass(frozen=True)
class _Position:
    """Where the likeliest are asked for: after a text, an id of which is said or stands there."""

    law: Parrot
    said: int
    own: int
    """The id that stands at the position: itself, but in a prompt."""
    count: int

    def is_told(self, entries: list[LogprobEntry] | None) -> bool:
        """Whether entries are the likeliest: by value, each with its own id where it has one."""
        law = self.law
        if entries is None:
            return False
        numbers = [number_of(entry.logprob) for entry in entries]
        known = sorted((number for number in numbers if number is not None), reverse=True)
        right = [logprob for _, logprob in law.top(self.said, self.count + 1)]
        own = law.logprob(self.said, self.own)
        for entry in entries:
            token = integer(entry.token_id)
            if token is not None and not (
                0 <= token < law.vocab_size and _right_number(entry.logprob, law.logprob(self.said, token))
            ):
                return False
        if len(known) < len(entries) or not known:
            return False
        if any(entry.token_id is None for entry in entries):
            # Those of one text may share an entry; the likeliest is there, and no other than they.
            among = [*right, own]
            return _right_number(known[0], right[0]) and all(
                any(_right_number(number, one) for one in among) for number in known
            )
        beside = [*right[: self.count], *([own] if len(known) > self.count else [])]
        due = sorted(beside, reverse=True)
        return len(known) == len(due) and all(map(_right_number, known, due))

    @property
    def shown(self) -> list[Entry]:
        """What is right, for a reader."""
        return [[round(logprob, 5), token] for token, logprob in self.law.top(self.said, self.count)]


def _same_ranked(due: _Position, told: list[LogprobEntry] | None) -> bool:
    return due.is_told(told)


def _observed_ranks(
    place: Place, name: str, due: Sequence[_Position], told: Sequence[list[LogprobEntry] | None]
) -> Observation:
    at = first_difference(due, told, _same_ranked)
    if at is None:
        words = f"the likeliest at each of {len(due)} positions"
        return demand(place, True, expected=words, actual=words)
    expected: Any = due[at].shown if at < len(due) else "nothing"
    entries = (told[at] or []) if at < len(told) else []
    actual = [_told_entry(entry, None) for entry in entries] or "nothing"
    message = f"{name} entry {at} is {actual}, but {expected} in {_SOURCE}"
    return demand(place, False, expected=expected, actual=actual, message=message)


@check("script-top-logprobs-are-right")
def script_top_logprobs_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """At each id the likeliest, compared by value."""
    count = stream.asked.top_logprobs
    for one, law in _with_logprobs(stream, target) if 1 <= count <= _MOST_RANKED else ():
        for name, told in _ranked(one.choice):
            ids = _due(stream, one, len(told), name)
            if ids:
                due = [_Position(law, token, token, count) for token in ids]
                place = _place_in(one.choice, name, first_difference(due, told, _same_ranked))
                yield _observed_ranks(place, name, due, told)


def _same_row(due: list[Entry], told: list[Entry]) -> bool:
    return len(due) == len(told) and all(map(_same_entry, due, told))


def _row(value: object) -> list[Entry]:
    return [_told_entry(entry, value) for entry in read_position(value) or []]


@check("script-chosen-logprobs-are-right")
def script_chosen_logprobs_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """At each id the logprobs of the asked ids, in the order in which they were asked for."""
    asked = stream.asked.chosen_ids
    for one, law in _with_logprobs(stream, target) if asked else ():
        rows = one.choice.series(CHOSEN)
        if rows is None or not all(0 <= token < law.vocab_size for token in asked):
            continue
        told = [_row(row) for row in rows]
        ids = _due(stream, one, len(told), CHOSEN)
        if ids:
            due = [_chosen_row(law, asked, token) for token in ids]
            yield _observed_series(one.choice, CHOSEN, due, told, _same_row)


@check("script-prompt-logprobs-are-right")
def script_prompt_logprobs_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Each id of the prompt has the logprob that it has after those before it."""
    for one, law in _with_logprobs(stream, target):
        carried = prompt_logprobs(stream, one.choice)
        if carried is not None and carried[1]:
            place, told = carried
            positions = sorted(at for at in told if 0 < at < len(one.prompt))
            due = [law.logprob(one.prompt[at - law.lag(at)], one.prompt[at]) for at in positions]
            actual = [told[at] for at in positions]
            what = f"logprob (counted from prompt position {positions[0]})" if positions else "logprob"
            yield observe_sequence(place, what, expected=due, actual=actual, source=_SOURCE, same=_right_due)
        yield from _beside_the_prompt(stream, one, law)


def _right_due(due: float, told: object) -> bool:
    return _right_number(told, due)


def _beside_the_prompt(stream: Stream, one: Known, law: Parrot) -> Iterator[Observation]:
    """The likeliest and the chosen ids at each position of a prompt, in SGLang's shape."""
    asked, prompt = stream.asked, one.prompt
    start = asked.logprob_start
    for emission in one.choice.emissions[:1] if start is not None else ():
        ranks = as_list(emission.prompt_series.get(PROMPT_TOP))
        positions = range((start or 0) + 1, len(prompt))
        said = [prompt[at - law.lag(at)] for at in positions]
        if ranks is not None and 1 <= asked.top_logprobs <= _MOST_RANKED and positions:
            due = [
                _Position(law, token, prompt[at], asked.top_logprobs)
                for at, token in zip(positions, said, strict=True)
            ]
            told = [read_position(row) for row in ranks[1:]]
            yield _observed_ranks(emission.at(PROMPT_TOP), PROMPT_TOP, due, told)
        rows = as_list(emission.prompt_series.get(PROMPT_CHOSEN))
        known = all(0 <= token < law.vocab_size for token in asked.chosen_ids)
        if rows is not None and asked.chosen_ids and positions and known:
            yield observe_sequence(
                emission.at(PROMPT_CHOSEN),
                f"{PROMPT_CHOSEN} entry",
                expected=[_chosen_row(law, asked.chosen_ids, token) for token in said],
                actual=[_row(value) for value in rows[1:]],
                source=_SOURCE,
                same=_same_row,
            )


def _chosen_row(law: Parrot, chosen: Sequence[int], said: int) -> list[Entry]:
    return [[law.logprob(said, token), token] for token in chosen]
