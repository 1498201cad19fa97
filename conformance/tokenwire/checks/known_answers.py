"""Checks of answers against the right answer, which can be computed for a known model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from tokenwire.checks.about import ANSWERED, STREAMED, about, is_error
from tokenwire.checks.check import Target, check
from tokenwire.checks.difference import first_difference, observe_legal_text, observe_sequence
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.channels import taken_apart
from tokenwire.checks.reading.fields import bringing, end_place, running_texts
from tokenwire.dialects.dialect import dialect_of, policy_of
from tokenwire.parrot.recognition import Ids, KnownModel
from tokenwire.parrot.script import Truth, deaf_to_stops, truth
from tokenwire.parrot.vocabulary import Words
from tokenwire.record import BROKEN, Choice, Emission, Place, Stream
from tokenwire.requirement import Level
from tokenwire.typed_table import counted

SOURCE = "the right answer"


@dataclass(frozen=True)
class KnownAnswer:
    """A choice, and the right answers that it may have."""

    choice: Choice
    prompt: Ids
    readings: tuple[Truth, ...]
    """The possible right answers.

    There are two if the prompt ends within a character, because the output may or may not complete the
    character. There are more if the server may or may not search for stops in the first ids.
    """
    finished: bool
    """True if the choice finished normally, and not by an abort or a disconnect."""
    echoed: tuple[str, ...] = ("",)
    """The texts that may precede the output if the request enables an echo."""

    @property
    def right(self) -> Truth:
        """The possible answer that agrees with the choice's ids."""
        ids = self.choice.output_ids
        return next((known for known in self.readings if ids == list(known.ids)), self.readings[0])

    @property
    def legal(self) -> list[str]:
        """The texts with which the choice may end.

        If the choice names a stop, these are only the texts that end with this stop.
        """
        finish = self.choice.finish
        named = finish.matched if finish is not None else None
        of_named = [text for right in self.readings for text in right.texts_of(named)]
        texts = of_named or [text for right in self.readings for text in right.legal]
        return [head + text for head in self.echoed for text in texts]


def known_choices(stream: Stream, target: Target) -> tuple[KnownAnswer, ...]:
    """Return the choices of an answer whose right answers are known. They are cached, because every check
    here uses them.
    """
    model = target.model
    if model is None or not stream.answered:
        return ()
    cached = stream.cache.get(known_choices)
    if cached is None or cached[0] is not model:
        cached = stream.cache[known_choices] = (model, tuple(_computed(stream, target, model)))
    known: tuple[KnownAnswer, ...] = cached[1]
    return known


def _computed(stream: Stream, target: Target, model: KnownModel) -> Iterator[KnownAnswer]:
    asked = stream.asked
    if not asked.likeliest:
        return
    limits = (target.advertised.context_length, model.longest)
    longest = min((limit for limit in limits if limit is not None), default=inf)
    prompts, size = model.prompts(stream), len(model.words.pieces)
    for choice in stream.choices:
        position, wants = choice.index // max(asked.n, 1), asked.of(choice.index)
        prompt = prompts[position] if 0 <= position < len(prompts) else None
        budget, kind = wants.max_new_tokens, choice.finish.type if choice.finish is not None else None
        if prompt is None or budget is None or is_error(choice.finish):
            continue
        if len(prompt) + budget > longest:
            continue  # a server may refuse such a request, or return fewer tokens
        if _has_an_end_of_its_own(stream, kind) or not all(0 <= token < size for token in prompt):
            continue
        heads = dict.fromkeys((b"", model.words.unfinished(prompt, skip=wants.skip_special_tokens)))
        readings = [
            truth(model.law, model.words, prompt, wants, head=head, unheeded=count)
            for head in heads
            for count in deaf_to_stops(wants)
        ]
        reported = tuple(
            known for i, known in enumerate(readings) if known is not None and known not in readings[:i]
        )
        finished = kind in {"stop", "length"} and stream.error is None
        if reported:
            yield KnownAnswer(
                choice, prompt, reported, finished, _echoed(stream, position, prompt, model.words)
            )


_OF_CALLS = frozenset({"tool_calls", "function_call"})
_ENDS = frozenset({"stop", "length", "abort", None})


def _has_an_end_of_its_own(stream: Stream, kind: str | None) -> bool:
    """True for a finish reason that cannot be computed from the prompt of a known model: tool calls, or a
    type that only this server has. A content filter does not count, because a parrot never generates harmful
    text.
    """
    policy = policy_of(stream)
    own_word = policy.other_finish_types and kind not in policy.finish_types
    return kind not in _ENDS and (kind in _OF_CALLS or own_word)


def _echoed(stream: Stream, position: int, prompt: Ids, words: Words) -> tuple[str, ...]:
    """Return the texts that an echo may put before the output.

    These are the text that was sent, or the text of the ids with or without special tokens. The result is
    empty if the answer reports the prompt's ids instead of the echo.
    """
    if not stream.asked.echo:
        return ("",)
    shown = (prompt, tuple(token for token in prompt if token not in words.special))
    spelled = (b"".join(words.pieces[token] for token in ids).decode("utf-8", "replace") for ids in shown)
    told_by_ids = not policy_of(stream).echo_repeats_text_beside_ids
    none = ("",) if told_by_ids and stream.asked.return_prompt_token_ids else ()
    return tuple(dict.fromkeys((*stream.asked.texts[position : position + 1], *spelled, *none)))


# Checks of ids, finish reasons and counts.


def ids_due(stream: Stream, right: Truth) -> Ids:
    """Return the ids that an answer must report. Some servers omit the id that ended a choice."""
    left_out = _ends_by_id(right) and not policy_of(stream).stop_id_in_output_ids
    return right.ids[:-1] if left_out else right.ids


def _ends_by_id(right: Truth) -> bool:
    return right.finish == "stop" and not any(isinstance(known, str) for known in right.matched)


def _may_not_count_its_end(stream: Stream, known: KnownAnswer) -> bool:
    """True if the id that ended a choice may or may not be counted, because servers that report no ids
    differ.
    """
    dialect = dialect_of(stream)
    return dialect is not None and not dialect.tells_ids and _ends_by_id(known.right)


@check("script-ids-are-said", ANSWERED)
def _script_ids_are_said(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the output ids equal the ids of the right answer.

    If the choice was cut off, its ids must be a beginning of these ids.
    """
    for known in known_choices(stream, target):
        ids = known.choice.output_ids
        if ids is None:
            continue
        due = ids_due(stream, known.right)
        due = due if known.finished else due[: len(ids)]
        place = bringing(known.choice, "output_ids", first_difference(due, ids))
        yield observe_sequence(place, "output id", expected=due, actual=ids, source=SOURCE)


@check("script-finish-is-right", ANSWERED)
def _script_finish_is_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the finish reason is `stop` if a stop comes within the budget, and `length` otherwise."""
    for known in known_choices(stream, target):
        if _came_to_an_end(known.choice, stream):
            due, right = known.right.finish, known.right
            words = f"the right answer ends with {due} after {counted(len(right.ids), 'id')}"
            actual = _type_of(known.choice)
            message = f"choice {known.choice.index} finished with {actual}; {words}"
            place = _last_finish(known.choice).at("finish")
            yield expect(place, due, actual, message)


def _type_of(choice: Choice) -> str | None:
    return choice.finish.type if choice.finish is not None else None


def _came_to_an_end(choice: Choice, stream: Stream) -> bool:
    """True if a choice has a finish reason other than an abort, even a wrong one."""
    return _type_of(choice) not in {None, "abort"} and stream.error is None


def _last_finish(choice: Choice) -> Emission:
    return next((e for e in reversed(choice.emissions) if e.finish is not None), choice.emissions[-1])


@check("script-match-is-right", ANSWERED)
def _script_match_is_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the stop that the choice names is complete at the end of the right answer."""
    for known in known_choices(stream, target):
        finish = known.choice.finish
        if known.finished and finish is not None and finish.matched is not None:
            legal = frozenset().union(*(right.matched for right in known.readings))
            named = finish.matched if isinstance(finish.matched, (int, str)) else repr(finish.matched)
            expected, index = sorted(legal, key=str) or "no stop", known.choice.index
            message = f"choice {index} reports the stop {named!r}; the right answer ends with {expected}"
            place = _last_finish(known.choice).at("finish")
            yield expect(place, expected, named, message, holds=named in legal)


@check("script-counts-are-right", about(answered=True, ended=True))
def _script_counts_are_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that each choice and the usage report the right number of tokens."""
    every = known_choices(stream, target)
    if not every or not all(known.finished for known in every):
        return
    for known in every:
        last = known.choice.emissions[-1]
        due = {"completion_tokens": len(ids_due(stream, known.right)), "prompt_tokens": len(known.prompt)}
        for name, number in due.items():
            stated = last.counters.get(name)
            if stated is not None:
                yield _compare_count(last.at(name), name, number, stated)
    uncounted = sum(_may_not_count_its_end(stream, known) for known in every)
    usage = stream.usage or {}
    if len(every) == len(stream.choices) == stream.asked.n * stream.asked.prompts:
        total = {
            "completion_tokens": sum(len(ids_due(stream, known.right)) for known in every),
            "prompt_tokens": sum(len(known.prompt) for known in every) // max(stream.asked.n, 1),
        }
        for name, number in total.items():
            if name in usage:
                fewer = uncounted if name == "completion_tokens" else 0
                place = stream.usage_place or end_place(stream)
                yield _compare_count(place, name, number, usage[name], number - fewer)


def _compare_count(
    place: Place, name: str, due: int, stated: object, least: int | None = None
) -> Observation:
    message = f"{name} is {stated!r}; {SOURCE} has {due}"
    holds = None if least is None or type(stated) is not int else least <= stated <= due
    return expect(place, due, stated, message, holds=holds)


# Checks of the text.


@check("script-text-is-right", ANSWERED)
def _script_text_is_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the final text equals the text of the right answer, up to the stop."""
    for known in known_choices(stream, target):
        text = known.choice.text
        if text is None or not known.finished or taken_apart(stream, known.choice):
            continue
        holds = text in known.legal
        cut = any(text.startswith(bare) for right in known.readings for bare in right.bare)
        cut = cut and any(legal.startswith(text) for legal in known.legal)
        carrying = next(e for e in reversed(known.choice.emissions) if isinstance(e.text, str))
        what = f"the text of choice {known.choice.index} differs from {SOURCE}"
        seen = observe_legal_text(carrying.at("text"), known.legal, text, what, holds=holds)
        yield seen._replace(level=Level.SHOULD if cut and not holds else None)


@check("script-text-so-far-is-right", STREAMED)
def _script_text_so_far_is_right(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that each emission shows a beginning of the right text, and no text whose ids were not
    delivered.
    """
    for known in known_choices(stream, target):
        if taken_apart(stream, known.choice):
            continue
        shown_so_far = list(running_texts(known.choice))
        # If text comes with a count of zero, the count is wrong, and the text is not early.
        counts = known.choice.output_ids is not None or any(e.after for e in known.choice.emissions)
        for emission, held in shown_so_far:
            last = emission.last or emission.finish is not None
            legal = known.legal
            # Chat sends the finish in a separate chunk, after the end of the text.
            cut_off = not known.finished and held == shown_so_far[-1][1]
            shown = held.rstrip(BROKEN) if cut_off else held
            if not shown:
                continue
            begins = any(text.startswith(shown) for text in legal)
            what = f"the text of choice {known.choice.index} so far differs from {SOURCE}"
            if begins and counts and emission.counted and not last and emission.after < len(known.right.ids):
                stated = [
                    head + (right.texts[emission.after - 1] if emission.after else "")
                    for right in known.readings
                    for head in known.echoed
                    if emission.after <= len(right.ids)
                ]
                begins = any(len(shown) <= len(text) for text in stated)
                legal = legal if begins else stated
                what = f"the text of choice {known.choice.index} is ahead of its {emission.after} ids"
            yield observe_legal_text(emission.at("text"), legal, shown, what, holds=begins)
