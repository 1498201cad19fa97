"""Checks of sampling: sampling fields take effect, or the request is refused.

A server that ignores such a field answers as if the field were not set. So each check looks for answers that
neither chance nor another order of computation can explain.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.ask import Asked
from tokenwire.checks.about import about, finished_choices
from tokenwire.checks.check import Target, check, check_choices, check_finished, check_run, select
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import SHOWN, STOPS, asked_alike, stated_by_both
from tokenwire.dialects.logprobs import Position, reported_along, sampled_entries
from tokenwire.parrot.encoding import Encode
from tokenwire.record import Answer, Choice, ChoiceFacts, Stream, fact, integer
from tokenwire.requirement import tolerance
from tokenwire.target.determinism import completed
from tokenwire.target.tokenizer import LocalTokenizer
from tokenwire.typed_table import counted

FORCES = tolerance("forcing_bias")
"""The minimum bias that forces or excludes an id. The logits of all models are closer together."""
_AHEAD = tolerance("penalty_excess")
"""A difference between two logits that exceeds the difference in any model."""
_RARE = math.log(tolerance("rare"))
"""The log-probability below which an event is not chance.

Such an event happens less than once in a billion times.
"""
_TIED = tolerance("truncation_tie")
"""The difference of logprobs below which two ids may have had the opposite order when an id was sampled."""
_CERTAIN = tolerance("truncation_share")
"""The allowed error of a sum of probabilities."""
_SHOWN = 12
"""The maximum number of characters or ids of an output in a message."""
_LONG_ENOUGH = 4
"""The minimum length of a text that shows a repetition. Shorter texts may repeat by chance."""


def _repeats(text: str) -> bool:
    """True if a text repeats one piece, like the text of one id that is sampled again and again."""
    return len(text) >= _LONG_ENOUGH and text in (text + text)[1:-1]


def _question(stream: Answer) -> tuple[Hashable, ...]:
    """Return a key of everything in a request that influences its answer, except the sampling fields."""
    return asked_alike(stream, "prompt_key", "max_new_tokens", *STOPS, *SHOWN)


@select
def _biased_far(stream: Stream) -> bool:
    """Select the answers to requests whose biases force or exclude ids, without other sampling fields."""
    asked = stream.asked
    shaped = asked.constrained or asked.min_new_tokens or asked.frequency_penalty
    return not shaped and any(abs(bias) >= FORCES for bias in asked.logit_bias.values())


def _natural(
    streams: tuple[Answer, ...], wanted: set[tuple[Hashable, ...]]
) -> dict[tuple[Hashable, ...], ChoiceFacts]:
    """Return the greedy choices of plain requests that otherwise equal the wanted requests."""
    natural: dict[tuple[Hashable, ...], ChoiceFacts] = {}
    for stream in streams if wanted else ():
        asked = stream.asked
        known = asked.prompt_key and asked.greedy and not asked.other_sampling
        if known and (question := _question(stream)) in wanted:
            natural.update((question, choice) for choice in finished_choices(stream)[:1])
    return natural


@check_run("logit-bias-is-kept", alone=True)
def _logit_bias_is_kept(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that only ids with a bias of 100 appear if there are any, and that ids with a bias of -100 never
    appear. Without ids, the text is compared. The text must differ from the text of the same request without
    biases, unless this text also repeats one piece.
    """
    natural = _natural(streams, set(map(_question, _biased_far(streams))))
    for stream in _biased_far(streams):
        asked = stream.asked
        forced = {token for token, bias in asked.logit_bias.items() if bias >= FORCES}
        banned = {token for token, bias in asked.logit_bias.items() if bias <= -FORCES}
        unbiased = natural.get(_question(stream))
        for choice in finished_choices(stream):
            yield from _biased(choice, forced, banned, unbiased)


def _biased(
    choice: ChoiceFacts, forced: set[int], banned: set[int], unbiased: ChoiceFacts | None
) -> Iterator[Observation]:
    """Check that the ids or the text of one choice agree with the biases of its request."""
    ids, text = choice.output_ids, choice.text
    if ids:
        foreign = [token for token in ids if (forced and token not in forced) or token in banned]
        missed = unbiased.output_ids or [] if unbiased is not None else []
        if foreign or forced or any(integer(token) in banned for token in missed):
            wanted = f"only {sorted(forced)}" if forced else f"none of {sorted(banned)}"
            came = foreign[0] if foreign else None
            message = f"output id {came!r} was sampled, but the biases of the request allow {wanted}"
            place = choice.last_at("output_ids")
            yield expect(place, wanted, foreign[:4] or ids[:4], message, holds=not foreign)
    elif forced and text and unbiased is not None and len(text) >= _LONG_ENOUGH:
        same = text == unbiased.text
        if _repeats(text) is not same:
            place = choice.last_at("text")
            message = f"the text is the same with biases of 100 for {sorted(forced)} and without them"
            yield expect(place, "one token, repeated", text[:40], message, holds=not same)


@select
def _allowing(stream: Stream) -> bool:
    """Select the answers to requests that name the ids that may be sampled."""
    return bool(stream.asked.allowed_token_ids)


@check_run("allowed-ids-are-kept", alone=True)
def _allowed_ids_are_kept(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that only allowed ids come, where an id that is not allowed comes without this field."""
    natural = _natural(streams, set(map(_question, _allowing(streams))))
    for stream in _allowing(streams):
        allowed = set(stream.asked.allowed_token_ids)
        plain = natural.get(_question(stream))
        missed = plain is not None and any(token not in allowed for token in plain.output_ids or ())
        for choice in finished_choices(stream):
            ids = choice.output_ids or []
            foreign = [token for token in ids if token not in allowed]
            if ids and (foreign or missed):
                came = foreign[0] if foreign else None
                message = f"output id {came!r} was sampled, and the request allows only {sorted(allowed)}"
                place = choice.last_at("output_ids")
                yield expect(place, sorted(allowed), foreign[:4] or ids[:4], message, holds=not foreign)


@select
def _banning(stream: Stream) -> bool:
    """Select the answers to requests that ban words."""
    return bool(stream.asked.bad_words)


def _encoded(words: Sequence[str], encode: Encode) -> list[tuple[int, ...]]:
    """Return the ids of each word alone and behind a space.

    As in vLLM, the form behind a space counts only if it begins with another id and has as many ids.
    """
    runs: list[tuple[int, ...]] = []
    for word in words:
        bare, spaced = (tuple(encode(before + word.lstrip())) for before in ("", " "))
        runs += [bare, spaced] if bare[:1] != spaced[:1] and len(bare) == len(spaced) else [bare]
    return [run for run in runs if run]


def _run_in(ids: Sequence[Any], runs: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the first of the runs that is a part of a list of ids."""
    found = (run for run in runs for start in range(len(ids)) if tuple(ids[start : start + len(run)]) == run)
    return next(found, None)


@check_run("bad-words-do-not-come")
def _bad_words_do_not_come(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the ids of a banned word do not come, where they come without the ban.

    The same text may come in other ids, which a server need not ban.
    """
    local = target.tokenizer
    encode = local.known.encode if isinstance(local, LocalTokenizer) else None
    encode = target.model.encode if target.model is not None else encode
    if encode is None:
        return
    natural = _natural(streams, set(map(_question, _banning(streams))))
    for stream in _banning(streams):
        words, plain = stream.asked.bad_words, natural.get(_question(stream))
        runs = _encoded(words, encode)
        missed = plain is not None and _run_in(plain.output_ids or (), runs)
        for choice in finished_choices(stream):
            ids = choice.output_ids or []
            came = _run_in(ids, runs)
            if ids and (came or missed):
                message = f"the ids {list(came or ())} were sampled, and the request bans {list(words)}"
                place = choice.last_at("output_ids")
                yield expect(place, f"none of {runs}", ids[:_SHOWN], message, holds=came is None)


@check_finished(
    "min-new-tokens-are-kept",
    about("min_new_tokens", "stop_token_ids", unasked=("ignore_eos", "stop", "stop_regex")),
)
def _min_new_tokens_are_kept(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a choice has at least min_new_tokens ids. Servers differ in how stop strings count, so these
    are skipped.
    """
    least = stream.asked.min_new_tokens or 0
    ids, finish = choice.output_ids, choice.finish
    if least < 1 or ids is None or finish is None or finish.type not in {"stop", "length"}:
        return
    message = f"choice {choice.index} ended with {finish.type} after {len(ids)} of at least {least} tokens"
    place = choice.last_at("finish")
    yield expect(place, f"at least {least}", len(ids), message, holds=len(ids) >= least)


def _tokens_reported(choice: ChoiceFacts) -> list[str]:
    """Return the texts of the tokens in a choice's logprobs. Incomplete characters are left out, because
    several ids share them.
    """
    sampled = sampled_entries(choice.load())
    return [text for entry in sampled if entry is not None and (text := entry.whole_text) is not None]


@select
def _penalised(stream: Stream) -> bool:
    """Select the answers to requests with a positive frequency penalty."""
    return stream.asked.frequency_penalty > 0 and not stream.asked.constrained


@check_run("frequency-penalty-is-kept", alone=True)
def _frequency_penalty_is_kept(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that an id forced by a bias stops repeating when the accumulated penalty exceeds the bias."""
    for stream in _penalised(streams):
        asked = stream.asked
        for choice in finished_choices(stream):
            ids: list[Any] = [token for token in choice.output_ids or [] if type(token) is int]
            tokens = ids or _tokens_reported(choice)
            if not tokens:
                continue
            token, times = Counter(tokens).most_common(1)[0]
            # Without ids, the token may be any id with a bias.
            bias = asked.logit_bias.get(token, 0.0) if ids else max(asked.logit_bias.values(), default=0.0)
            most = math.floor((bias + _AHEAD) / asked.frequency_penalty) + 1
            if times <= most and (bias <= 0 or len(tokens) <= most):
                continue
            what = (
                f"{'id' if ids else 'the token'} {token!r} was sampled {times} times in {len(tokens)} tokens"
            )
            message = f"{what}, and each time the penalty grew by {asked.frequency_penalty:g}"
            place = choice.last_at("output_ids")
            yield expect(place, f"at most {most} times", times, message, holds=times <= most)


@dataclass(frozen=True)
class _Drawn:
    """A sampled choice, with the values that checks compare."""

    choice: ChoiceFacts
    result: Hashable
    """The output ids of the choice, or its text if ids are not reported."""
    loglikelihood: float | None
    """The logarithm of the probability of the choice. None if its logprobs are incomplete."""


@fact(Choice)
def _loglikelihood(choice: Choice) -> float | None:
    numbers = [entry.number if entry else None for entry in sampled_entries(choice)]
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def _drawn(stream: Answer) -> list[_Drawn]:
    """Return the finished choices of an answer that have ids or a text to compare."""
    return [
        _Drawn(choice, result, _loglikelihood(choice))
        for choice in finished_choices(stream)
        if (result := tuple(map(repr, choice.output_ids or ())) or choice.text)
    ]


def _is_plainly_sampled(asked: Asked) -> bool:
    """True if the request samples from the model's own distribution: at temperature 1, without truncation and
    seed.
    """
    neutral = not (asked.truncated or asked.other_sampling or asked.greedy)
    return neutral and asked.temperature == 1.0 and asked.seed is None


@select
def _warm(stream: Stream) -> bool:
    """Select the answers to single prompts that sample from the model's own distribution."""
    asked = stream.asked
    return bool(asked.prompt_key) and asked.prompts == 1 and _is_plainly_sampled(asked)


@check_run("temperature-is-kept")
def _temperature_is_kept(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that answers at temperature 1 are not all equal to the greedy answer, if that would be very
    improbable.

    With a fixed seed, the answers of a server may depend on each other. So the probability of a single answer
    must be low.
    """
    greedy: dict[tuple[Hashable, ...], _Drawn] = {}
    warm: dict[tuple[Hashable, ...], list[_Drawn]] = defaultdict(list)
    for stream in _warm(streams):
        warm[_question(stream)] += _drawn(stream)
    for stream in streams if warm else ():
        asked = stream.asked
        if not asked.prompt_key or asked.prompts != 1 or not asked.greedy or asked.other_sampling:
            continue
        if not asked.truncated and _question(stream) in warm:
            greedy.update({_question(stream): draw for draw in _drawn(stream)[:1]})
    for question, drawn in warm.items():
        likeliest = greedy.get(question)
        if likeliest is None:
            continue
        alike = all(draw.result == likeliest.result for draw in drawn)
        known = [draw.loglikelihood for draw in (likeliest, *drawn) if draw.loglikelihood is not None]
        chance = max(known, default=0.0)
        if not drawn:
            continue
        if alike and chance >= _RARE:
            likely = f"as likely as e^{chance:.0f}" if known else "and its probability is not reported"
            why = f"all {len(drawn)} answers at temperature 1 are the greedy one, {likely}"
            yield left_out(drawn[-1].choice.last_at("text"), why)
            continue
        message = f"all {len(drawn)} answers at temperature 1 are the greedy one, as likely as e^{chance:.0f}"
        place = drawn[-1].choice.last_at("output_ids")
        related = (likeliest.choice.last_at("output_ids"),)
        yield expect(place, "another answer", "the greedy one", message, holds=not alike, related=related)


@select
def _seeded(stream: Stream) -> bool:
    """Select the sampled whole answers to requests with a seed."""
    asked = stream.asked
    return not asked.greedy and asked.seed is not None and bool(asked.key) and not asked.stream


def _without_that_seed(
    streams: tuple[Answer, ...], wanted: set[tuple[Hashable, ...]]
) -> dict[tuple[Hashable, ...], set[Hashable]]:
    """Return the outputs of greedy or unseeded requests that otherwise equal the wanted requests."""
    found: dict[tuple[Hashable, ...], set[Hashable]] = defaultdict(set)
    for stream in streams if wanted else ():
        drawn_freely = stream.asked.greedy or stream.asked.seed is None
        if drawn_freely and (question := _question(stream)) in wanted:
            found[question] |= {draw.result for draw in _drawn(stream)}
    return found


@check_run("seed-is-kept")
def _seed_is_kept(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a request with a seed always has the same output, on a server that repeats its greedy
    answers.
    """
    seeded = [stream for stream in _seeded(streams) if completed(stream)]
    greedy = (stream for stream in streams if stream.asked.greedy and stream.asked.key in target.contradicted)
    unsteady = {stream.dialect for stream in greedy} if seeded and target.contradicted else set()
    first: dict[str, Answer] = {}
    unseeded = _without_that_seed(streams, set(map(_question, seeded)))
    for stream in seeded:
        if stream.dialect in unsteady:
            why = f"{stream.dialect} answers one greedy request differently"
            yield left_out(stream.choices[0].last_at("output_ids"), why)
            continue
        asked = stream.asked
        others = unseeded.get(_question(stream), set())
        nothing_drawn = bool(others) and {draw.result for draw in _drawn(stream)} == others
        before = first.setdefault(asked.key, stream)
        earlier = before.choices if before is not stream else ()
        for choice_before, second in zip(earlier, stream.choices, strict=False):
            stated = stated_by_both(choice_before, second)
            if nothing_drawn and stated[0] == stated[1]:
                why = "the output is the same greedily or without the seed, so the seed had no effect"
                yield left_out(second.last_at("text"), why)
                continue
            yield expect(
                second.last_at("output_ids"),
                stated[0][:_SHOWN],
                stated[1][:_SHOWN],
                f"the request with seed {asked.seed} has a different output than before",
                holds=stated[0] == stated[1],
                related=(choice_before.last_at("output_ids"),),
            )


@check("samples-are-drawn-apart")
def _samples_are_drawn_apart(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that no two choices of a prompt are equal, if that would be very improbable."""
    asked = stream.asked
    if asked.n < 2 or not _is_plainly_sampled(asked):
        return
    for prompt in range(asked.prompts):
        drawn = [draw for draw in _drawn(stream) if draw.choice.index // asked.n == prompt]
        rare = [draw for draw in drawn if draw.loglikelihood is not None and draw.loglikelihood < _RARE]
        for position, draw in enumerate(rare[1:], 1):
            twin = next((other for other in rare[:position] if other.result == draw.result), None)
            message = f"choice {draw.choice.index} is a copy of choice {twin.choice.index}" if twin else ""
            place, expected = draw.choice.last_at("output_ids"), "samples that differ"
            yield expect(place, expected, message or expected, message, holds=twin is None)


def _left_out(position: Position, asked: Asked) -> str:
    """Describe why the request excludes the sampled id of a position. Empty if it does not exclude the id."""
    sampled = position.sampled.number if position.sampled else None
    numbers = [entry.number for entry in position.top or ()]
    if sampled is None or not numbers:
        return ""
    likelier = [number for number in numbers if number is not None and number > sampled + _TIED]
    if (asked.top_k or 0) > 0 and len(likelier) >= (asked.top_k or 0):
        return f"comes after {counted(len(likelier), 'id')}, with top_k {asked.top_k}"
    if asked.temperature != 1.0 or not likelier:
        return ""  # at another temperature, the probabilities differ from the reported ones
    mass = sum(map(math.exp, likelier))
    if (asked.top_p or 1.0) < 1.0 and mass > (asked.top_p or 1.0) + _CERTAIN:
        return f"comes after ids of probability {mass:.3f}, with top_p {asked.top_p}"
    share = math.exp(sampled - max(likelier))
    if share < (asked.min_p or 0.0) - _CERTAIN:
        return f"is {share:.3f} times as likely as the likeliest, with min_p {asked.min_p}"
    return ""


@check_choices("truncation-is-kept", about("truncated", "temperature", unasked=("other_sampling",)))
def _truncation_is_kept(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that ids which top_k, top_p or min_p exclude are not sampled, as far as the top logprobs show
    them.
    """
    asked = stream.asked
    expected = "an id that the request does not exclude"
    for emission, reported in reported_along(choice):
        if reported.top_series and reported.positions:
            reasons = (_left_out(position, asked) for position in reported.positions)
            first = ((index + emission.seen_entries, why) for index, why in enumerate(reasons) if why)
            index, why = next(first, (0, ""))
            fault = f"the sampled id at position {index} of {reported.series} {why}" if why else ""
            yield expect(emission.at(reported.series), expected, fault or expected, fault, holds=not fault)
