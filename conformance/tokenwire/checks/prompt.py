"""Checks of the chapter on prompt-side arrays: prompt logprobs, and the text and entries of an echo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

from tokenwire.checks.about import about, ended, finished_choices, streamed
from tokenwire.checks.chat_logprobs import FIELD, parallel_lists
from tokenwire.checks.check import Target, check, check_run, compare, select
from tokenwire.checks.difference import observe_sequence, observe_text
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.chance import DRIFT, goes_apart, sampled_logprobs
from tokenwire.checks.reading.fields import (
    count_of,
    first_of_prompt,
    names_of_prompt,
    prompt_of,
    told_prompt,
    usage_count,
)
from tokenwire.checks.reading.prompt_scores import SCORES, entries_elsewhere, fault_at, prompt_scores
from tokenwire.checks.round_trips import Ids, Whole, related_streams
from tokenwire.dialects.dialect import is_chat, policy_of
from tokenwire.dialects.logprobs import (
    NAMED,
    NAMED_TOP,
    PROMPT,
    PROMPT_TOP,
    RANKED,
    Logprob,
    Logprobs,
    is_legal,
    number_of,
    prompt_series,
)
from tokenwire.record import Answer, Choice, ChoiceFacts, Delivery, Emission, Place, Stream, as_list, integer
from tokenwire.requirement import Level, tolerance
from tokenwire.target.alike import ROUNDING, alike
from tokenwire.target.determinism import Comparison
from tokenwire.typed_table import counted


def _prompt_ids(stream: Answer, choice: ChoiceFacts) -> list[Any] | None:
    """Return the ids of a choice's prompt: the ids in the request, or the ids that the answer reports for a
    text.
    """
    reported = told_prompt(choice)
    return prompt_of(stream, choice.index) or (reported[1] if reported else None)


# Checks of the top logprobs of the prompt.


def _fault_in_prompt_top(sampled: Logprob, entries: Logprobs | None, k: int) -> str:
    """Describe the error of the alternatives at one prompt position. Empty if they are correct."""
    if entries is None:
        return "is not a list of entries"
    if len(entries) != k:
        return f"holds {counted(len(entries), 'entry')} instead of {k}"
    numbers = [entry.value for entry in entries]
    if not _legal_and_falling(entries):
        return f"holds {numbers}, which are not logprobs in falling order"
    same = next((entry for entry in entries if entry.id == sampled.id), None)
    if same is not None and not alike(same.value, sampled.value):
        return f"gives the prompt id {sampled.id} {same.value!r}, but {PROMPT} {sampled.value!r}"
    head, mine = number_of(numbers[0]), sampled.number
    if same is None and head is not None and mine is not None and mine > head + ROUNDING:
        return f"begins with {numbers[0]!r}, although the prompt id has the higher {sampled.value!r}"
    return ""


def _legal_and_falling(entries: Logprobs) -> bool:
    """True if all entries have logprobs in descending order."""
    if not all(is_legal(entry.value) for entry in entries):
        return False
    return not any(after.value > before.value for before, after in pairwise(entries))


def _fault_in_ranked(token: object, entries: Logprobs | None, k: int) -> str:
    """Describe the error of the alternatives at one prompt position, keyed by id. Empty if they are correct.

    The alternatives include the prompt's own id.
    """
    if entries is None:
        return "is not an object of entries by id"
    if type(token) is int and all(entry.id != token for entry in entries):
        return f"lacks the prompt id {token}"
    if not k <= len(entries) <= k + 1:
        return f"holds {counted(len(entries), 'entry')} for {k} and the prompt id's own"
    if not _legal_and_falling(entries):
        numbers = [entry.value for entry in entries]
        return f"holds {numbers}, which are not logprobs that fall with their ranks"
    return ""


def _fault_by_text(sampled: Logprob, entries: Logprobs | None, k: int) -> str:
    """Describe the error of the alternatives at a position of an echoed prompt, keyed by text. Empty if they
    are correct.

    Tokens with equal text share an entry. So do incomplete characters.
    """
    if entries is None:
        return "is not an object of logprobs by text"
    if not 1 <= len(entries) <= k + 1:
        return f"holds {counted(len(entries), 'entry')} for {k} and the prompt token's own"
    numbers = [entry.value for entry in entries]
    if not all(is_legal(entry.value) for entry in entries):
        return f"holds {numbers}, which are not logprobs"
    text, mine = sampled.whole_text, sampled.number
    same = next((entry for entry in entries if text and entry.text == text), None)
    if same is not None and not alike(same.value, sampled.value):
        return f"gives the prompt token {text!r} {same.value!r}, but {NAMED} {sampled.value!r}"
    if same is None and mine is not None and mine > max(numbers) + ROUNDING:
        return f"has at most {max(numbers)!r}, although the prompt token has the higher {sampled.value!r}"
    return ""


def _count_by_rank(stream: Stream) -> int:
    """Return the number of alternatives that a request enables at each prompt position."""
    stated = stream.asked.sent.get("logprob_start")
    stated_count = integer(stated.values[0]) if stated and stated.values else None
    return stream.asked.top_logprobs if stated_count is None else stated_count


_BESIDE = ((PROMPT, PROMPT_TOP, _fault_in_prompt_top), (NAMED, NAMED_TOP, _fault_by_text))
"""For each format: the prompt's series, the series of its alternatives, and the function that finds errors in
them.
"""


def _faults_in_prompt(stream: Stream, choice: Choice) -> tuple[Emission, str, list[tuple[int, str]]] | None:
    """Return the emission, the series, and the errors of the alternatives at each prompt position.

    None if the answer has no alternatives.
    """
    k = stream.asked.top_logprobs
    for own_name, top_name, fault_in in _BESIDE:
        prompt, top = prompt_series(choice, own_name), prompt_series(choice, top_name)
        if prompt is not None and top is not None:
            if own_name == PROMPT and len(prompt[1].values) != len(top[1].values):
                continue
            both = enumerate(zip(prompt[1].tokens, top[1].positions, strict=False))
            faults = [
                (position, fault_in(entry, entries, k))
                for position, (entry, entries) in both
                if entry is not None and entry.value is not None
            ]
            return top[0], top_name, faults
    ranked, ids = prompt_series(choice, RANKED), _prompt_ids(stream, choice)
    if ranked is None or ids is None or len(ids) != len(ranked[1].values):
        return None
    k, positions = _count_by_rank(stream), ranked[1].positions
    faults = [
        (position, _fault_in_ranked(ids[position], positions[position], k)) for position in range(1, len(ids))
    ]
    return ranked[0], RANKED, faults


@check("prompt-top-logprobs-belong-to-position", about("top_logprobs", finished=True))
def _prompt_top_logprobs_belong_to_position(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check the alternatives of each prompt position: their number, their order, and the logprob of the
    prompt's own id.
    """
    k = stream.asked.top_logprobs
    for choice in finished_choices(stream) if k > 0 and stream.asked.uniform else ():
        emission, name, faults = _faults_in_prompt(stream, choice) or (None, "", [])
        if emission is None or not faults:
            continue
        fault = next((f"position {position} of {name} {words}" for position, words in faults if words), "")
        expected = f"{k} entries in falling order that agree with the prompt's own"
        place = emission.at(name)
        yield expect(place, expected, fault or expected, fault, holds=not fault)


# Checks of the logprobs of chosen ids along the prompt.


@check("prompt-chosen-logprobs-are-the-asked-ids")
def _prompt_chosen_logprobs_are_the_asked_ids(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that each position of the prompt has a logprob for each id that the request chose there."""
    for choice in finished_choices(stream):
        scores = prompt_scores(stream, choice)
        if scores is None or not (scores.fault or scores.positions):
            continue
        field, is_array = scores.field, scores.field == SCORES
        faults = ((scored, fault_at(scored, is_array=is_array)) for scored in scores.positions)
        wrong = next((f"position {at.position} of {field} {words}" for at, words in faults if words), "")
        message = f"{field} {scores.fault}" if scores.fault else wrong
        expected = "a logprob for each chosen id, at each position"
        place = scores.emission.at(field)
        yield expect(place, expected, message or expected, message, holds=not message)


@check("prompt-chosen-logprobs-agree")
def _prompt_chosen_logprobs_agree(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a chosen id has the logprob that the prompt logprobs give it at the same position."""
    for choice in finished_choices(stream):
        scores = prompt_scores(stream, choice)
        if scores is None:
            continue
        compared, message = 0, ""
        elsewhere = entries_elsewhere(choice, stream.asked.logprob_start or 0)
        for scored in scores.positions:
            for entry in scored.entries or ():
                other = elsewhere.get(scored.position, {}).get(entry.id)
                mine, theirs = entry.number, other.number if other is not None else None
                if mine is None or theirs is None:
                    continue
                compared += 1
                if not message and not alike(mine, theirs):
                    where = f"id {entry.id} at position {scored.position}"
                    message = f"{scores.field} has {mine!r} for {where}, and the prompt logprobs {theirs!r}"
        if compared:
            place, expected = scores.emission.at(scores.field), "the logprobs of the prompt logprobs"
            yield expect(place, expected, message or expected, message, holds=not message)


# Checks of one prompt in several answers.


def _undisturbed(stream: Stream) -> dict[int, Choice]:
    if not stream.answered or not ended(stream):
        return {}
    return {choice.index: choice for choice in finished_choices(stream)}


def _reported_of_prompt(stream: Stream) -> tuple[object, ...]:
    """Return the options of a request that decide which values of the prompt are reported."""
    asked = stream.asked
    return (asked.logprob_start, asked.top_logprobs, asked.chosen_ids, asked.echo, asked.uniform)


@compare("stream-prompt-series-equal-whole")
def _stream_prompt_series_equal_whole(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """Check that a prompt-side series has the same values in a stream as in the whole answer."""
    whole, stream = comparison.baseline, comparison.other
    if whole.delivery is not Delivery.WHOLE or not streamed(stream):
        return
    if _reported_of_prompt(whole) != _reported_of_prompt(stream):
        return
    ours, theirs = _undisturbed(whole), _undisturbed(stream)
    for index in sorted(ours.keys() & theirs.keys()):
        for name in sorted(names_of_prompt(ours[index])):
            expected = first_of_prompt(ours[index], name)
            emissions = theirs[index].emissions
            carrying = [e for e in emissions if as_list(e.prompt_series.get(name)) is not None]
            if expected is None or not carrying:
                continue
            last = carrying[-1]
            entries = as_list(last.prompt_series[name]) or []
            yield observe_sequence(
                last.at(name),
                f"{name} entry",
                expected=expected[1],
                actual=entries,
                source="the whole answer",
                same=partial(alike, tolerance=target.noise.rounding(comparison.other, name)),
                related=(expected[0].at(name),),
                by_chance=alike(expected[1], entries, DRIFT),
            )


def prompt_logprobs(stream: Answer, facts: ChoiceFacts) -> tuple[Place, dict[int, Any]] | None:
    """Return the logprobs of a prompt's tokens by position. None if the answer has no prompt logprobs.

    The first position is left out, because it has no logprob.
    """
    choice, start = facts.load(), stream.asked.logprob_start
    first = start or 0
    if start is not None and (carried := prompt_series(choice, PROMPT)) is not None:
        tokens = carried[1].tokens
        if tokens and tokens[0] is not None and tokens[0].value is None:
            tokens[0] = None
    elif (carried := prompt_series(choice, RANKED)) is not None:
        first, ids = 0, _prompt_ids(stream, choice) or ()
        every = zip(carried[1].positions, ids, strict=False)
        tokens = [next((e for e in entries or () if e.id == token), None) for entries, token in every]
    elif (carried := prompt_series(choice, NAMED)) is not None:
        first, tokens = 0, carried[1].tokens
    else:
        return None
    emission, series = carried
    known = ((position, entry) for position, entry in enumerate(tokens, first) if position and entry)
    return emission.at(series.name), {position: entry.value for position, entry in known}


# Two computations of one logprob differ slightly, because of kernels, batches and rounding. Errors cause
# large differences. A low-precision model may give a large difference at a single position without an error.
# So the check limits the share of such positions, not the largest difference.

TOLERANCE = tolerance("rescoring")
"""The tolerance in nats. Half-precision models with a quantised cache stay below it at nearly all
positions.
"""
OUTLIERS = tolerance("rescoring_outliers")
"""The share of positions whose difference may exceed the tolerance."""


@dataclass(frozen=True)
class Pair:
    """The logprobs of one position in two computations."""

    position: int
    first: Any
    second: Any

    @property
    def agrees(self) -> bool:
        first, second = number_of(self.first), number_of(self.second)
        return first is not None and second is not None and abs(first - second) <= TOLERANCE


def observe_agreement(
    place: Place,
    pairs: Sequence[Pair],
    *,
    what: str,
    source: str,
    related: tuple[Place, ...] = (),
    sure: int = 0,
) -> Observation:
    """Return the observation that two computations agree except for outliers, or their first difference.

    `what` names the logprob without its position. `source` names the other computation. The first `sure`
    positions must agree.
    """
    apart = [pair for pair in pairs if not pair.agrees]
    holds = len(apart) <= OUTLIERS * len(pairs) and not any(pair.position < sure for pair in apart)
    if holds:
        size = f"{len(pairs)} logprobs within {TOLERANCE}"
        return expect(place, size, size, holds=True, related=related)
    pair = apart[0]
    message = (
        f"{what} {pair.position} is {pair.first!r}, but {pair.second!r} {source}; "
        f"{len(apart)} of {len(pairs)} positions differ"
    )
    return expect(place, pair.second, pair.first, message, holds=False, related=related)


_SOME_PROMPTS = 3
"""The minimum number of prompts after which an output position must differ to count as a violation."""


def _scored(streams: tuple[Answer, ...]) -> Iterator[Whole]:
    """Return the greedy answers that have logprobs of their prompts."""
    series = {PROMPT, RANKED, NAMED}
    return (
        answer
        for answer in related_streams(streams)
        if answer.prompt and series & names_of_prompt(answer.choice)
    )


@check_run("prompt-logprobs-independent-of-start")
def _prompt_logprobs_independent_of_start(
    streams: tuple[Answer, ...], _target: Target
) -> Iterator[Observation]:
    """Check that prompt logprobs do not depend on the position at which the series starts."""
    first: dict[tuple[str, Ids | None], tuple[int | None, Whole]] = {}
    for whole in _scored(streams):
        prompt, start = (whole.stream.dialect, whole.prompt), whole.stream.asked.logprob_start
        base_start, base = first.get(prompt, (None, whole))
        if base is not whole and base_start == start:
            continue
        reported, told_by_base = (prompt_logprobs(answer.stream, answer.choice) for answer in (whole, base))
        if reported is None or told_by_base is None or not reported[1]:
            continue
        first.setdefault(prompt, (start, whole))
        if base is whole:
            continue
        (place, logprobs), (base_place, known) = reported, told_by_base
        pairs = [
            Pair(position, logprobs[position], known[position])
            for position in sorted(logprobs.keys() & known.keys())
        ]
        if pairs:
            yield observe_agreement(
                place,
                pairs,
                what="the logprob of prompt position",
                source=f"from start {base_start}",
                related=(base_place,),
            )


@check_run("prompt-logprobs-rescore-the-output")
def _prompt_logprobs_rescore_the_output(
    streams: tuple[Answer, ...], _target: Target
) -> Iterator[Observation]:
    """Check that generated ids have the same logprobs when they are sent back as a prompt.

    A position that differs after every prompt is not an outlier. To save work, the first of several equal
    answers is compared with all others, and the others only with the first.
    """
    # A batch may compute a prompt differently from single steps, so that one position differs by chance. A
    # position that differs after several prompts, and agrees after none, is not chance. So positions are also
    # counted across prompts.
    off: dict[tuple[str, int], dict[Ids, Observation]] = {}
    right: set[tuple[str, int]] = set()
    scored: dict[tuple[str, int], dict[int, list[tuple[int, Whole]]]] = {}
    sizes: set[int] = set()
    known: set[int] = set()
    for index, scoring in enumerate(_scored(streams)):
        if scoring.sent_ids and scoring.prompt:
            same = scored.setdefault((scoring.stream.dialect, hash(scoring.prompt)), {})
            same.setdefault(scoring.content_group, []).append((index, scoring))
            sizes.add(len(scoring.prompt))
    for whole in related_streams(streams) if scored else ():
        prompt, ids = whole.prompt or (), whole.ids or ()
        if not prompt or not ids or whole.sampling:
            continue
        # Trying every beginning of every answer would take quadratic time, so only the lengths of scored
        # prompts are tried.
        longer = [prompt + ids[: size - len(prompt)] for size in sizes if 0 < size - len(prompt) <= len(ids)]
        found = [
            (index, scoring)
            for sent in longer
            for same in scored.get((whole.stream.dialect, hash(sent)), {}).values()
            for index, scoring in (same[:1] if whole.content_group in known else same)
            if scoring.prompt == sent
        ]
        sampled = sampled_logprobs(whole.choice) if found else []
        if len(sampled) != len(ids):
            continue
        known.add(whole.content_group)
        for _, scoring in sorted(found, key=itemgetter(0)):
            reported = prompt_logprobs(scoring.stream, scoring.choice)
            if reported is None:
                continue
            place, logprobs = reported
            common = len(scoring.prompt or ()) - len(prompt)
            pairs = [
                Pair(index, logprobs[len(prompt) + index], sampled[index])
                for index in range(common)
                if len(prompt) + index in logprobs
            ]
            related = (whole.choice.last_at("output_ids"),)
            what, source = "the prompt logprob of output id", "when it was sampled"
            if pairs:
                yield observe_agreement(place, pairs, what=what, source=source, related=related, sure=1)
            for pair in pairs:
                position = (whole.stream.dialect, pair.position)
                if pair.agrees:
                    right.add(position)
                else:
                    alone = observe_agreement(place, [pair], what=what, source=source, related=related)
                    off.setdefault(position, {})[prompt] = alone
    for position, prompts in off.items():
        if len(prompts) >= _SOME_PROMPTS and position not in right:
            yield next(iter(prompts.values()))


# Checks of an echo.


def _prompt_text(stream: Answer, choice: int) -> str | None:
    """Return the text that was sent as the prompt of a choice. None if ids or messages were sent."""
    texts, prompt = stream.asked.texts, choice // max(stream.asked.n, 1)
    return texts[prompt] if prompt < len(texts) else None


def _echoes_text(stream: Answer) -> bool:
    """True if an echo contains the prompt's text. Some servers return only the prompt's ids if the request
    enables ids.
    """
    beside_ids = policy_of(stream).echo_repeats_text_beside_ids
    return stream.asked.echo and (beside_ids or not stream.asked.return_token_ids)


@check("echo-begins-with-the-prompt")
def _echo_begins_with_the_prompt(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the text of an echo begins with the prompt's text."""
    if not _echoes_text(stream):
        return
    for choice in finished_choices(stream):
        prompt, text = _prompt_text(stream, choice.index), choice.text
        if prompt and text is not None:
            place = choice.emissions[0].at("text")
            head = text[: len(prompt)]
            yield observe_text(place, expected=prompt, actual=head, source="the prompt")


def _without_echo(whole: Whole) -> tuple[object, ...]:
    """Return a key of everything in a request that influences its answer, except the echo."""
    asked = whole.stream.asked
    return (whole.stream.dialect, asked.prompt_key, *whole.limits, whole.sampling, asked.no_stop_trim)


@select
def _echoes(stream: Stream) -> bool:
    return stream.asked.echo


@check_run("echo-adds-only-the-prompt")
def _echo_adds_only_the_prompt(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that an echo adds the prompt exactly once, and does not change the output."""
    every = related_streams(streams) if _echoes(streams) else []
    wholes = [answer for answer in every if answer.stream.asked.prompt_key]
    plain: dict[tuple[object, ...], Whole] = {}
    for whole in wholes:
        if not whole.stream.asked.echo:
            plain.setdefault(_without_echo(whole), whole)
    heads: dict[str, str] = {}
    for whole in wholes:
        twin = plain.get(_without_echo(whole)) if whole.stream.asked.echo else None
        ours, theirs = (side.choice.text if side else None for side in (twin, whole))
        if twin is None or ours is None or theirs is None:
            continue
        place = whole.choice.last_at("text")
        related = (twin.choice.last_at("text"),)
        if not _echoes_text(whole.stream):
            message = "the text lacks the echoed prompt: only the ids contain it"
            due, holds = "the prompt's text", theirs != ours
            silent = expect(place, due, "none", message, holds=holds, related=related)
            yield silent._replace(level=Level.SHOULD)
            continue
        head = _prompt_text(whole.stream, 0)
        # The text of a prompt of ids is unknown. The first echo shows this text, before the output.
        if head is None:
            shown = theirs.removesuffix(ours) if theirs.endswith(ours) else ""
            head = heads.setdefault(whole.stream.asked.prompt_key, shown)
        source = "the prompt and the output without an echo"
        yield observe_text(
            place,
            expected=head + ours,
            actual=theirs,
            source=source,
            related=related,
            by_chance=head + ours != theirs
            and theirs.startswith(head)
            and not _begins_again(whole.choice.load(), head)
            and goes_apart((twin.choice, whole.choice)),
        )


def _begins_again(choice: Choice, head: str) -> bool:
    """True if several events of a choice begin with its prompt. One token of a model cannot contain the whole
    prompt.
    """
    begun = sum((emission.text or "").startswith(head) for emission in choice.emissions)
    return bool(head) and choice.delivery is Delivery.INCREMENTAL and begun > 1


@check("echo-logprobs-cover-the-prompt")
def _echo_logprobs_cover_the_prompt(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that an echo with logprobs has an entry for each prompt token, followed by the entries of the
    output.
    """
    asked = stream.asked
    if is_chat(stream) or not (asked.echo and asked.logprobs and asked.top_logprobs > 0 and ended(stream)):
        return
    for choice in finished_choices(stream):
        prompt, made = _prompt_ids(stream, choice), count_of(stream, choice)
        size = len(prompt) if prompt is not None else usage_count(stream, "prompt_tokens")
        if size is None or made is None or (prompt is None and asked.prompts > 1):
            continue
        entries = sum(len(parallel_lists(part).get(NAMED, ())) for part in choice.details(FIELD))
        place = choice.emissions[0].at(NAMED)
        message = f"{NAMED} has {entries} entries for {size} prompt tokens and {made} output ids"
        # A server may hide a token that it generated despite a budget of zero. Another requirement covers
        # this error.
        expected = size if asked.max_new_tokens == 0 and entries == size else size + made
        yield expect(place, expected, entries, message)
