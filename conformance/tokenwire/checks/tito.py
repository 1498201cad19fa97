"""Checks of token-in-token-out in a single answer: the server runs exactly the ids that it reports as the
prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokenwire.checks.about import FINISHED, about, finished_choices, streamed
from tokenwire.checks.check import Target, check, check_finished
from tokenwire.checks.difference import observe_sequence
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import (
    count_of,
    end_place,
    first_prompt_ids,
    prompt_of,
    prompt_sent,
    start_place,
    told_prompt,
    usage_count,
)
from tokenwire.checks.reading.refusals import was_refused, words_of
from tokenwire.dialects.dialect import policy_of
from tokenwire.record import Answer, Choice, Stream

FIELD = "prompt_token_ids"
REQUEST = "the input_ids of the request"


def _ran(stream: Stream, choice: Choice) -> bool:
    """True if the prompt of a choice was run. A request that was aborted in the queue may report
    no tokens.
    """
    aborted = choice.finish is not None and choice.finish.type == "abort"
    return not aborted or count_of(stream, choice) != 0


def told_once_for_all(stream: Answer) -> bool:
    """True if a stream reports the prompt's ids once for all choices of the prompt, as some dialects do."""
    once = streamed(stream) and policy_of(stream).prompt_ids_once
    return once and any(told_prompt(choice) is not None for choice in stream.choices)


def _as_sent(stream: Stream) -> Iterator[Observation]:
    """Observe that each choice reports the ids of its own prompt, if the request sent ids."""
    for choice in finished_choices(stream):
        reported, sent = first_prompt_ids(choice), prompt_of(stream, choice.index)
        if reported is not None and sent is not None:
            emission, ids = reported
            yield observe_sequence(emission.at(FIELD), "prompt id", expected=sent, actual=ids, source=REQUEST)


@check("prompt-ids-are-the-input-ids", FINISHED)
def _prompt_ids_are_the_input_ids(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the prompt ids in the answer equal the ids in the request."""
    yield from _as_sent(stream)


@check("prompt-tokens-count-the-input-ids", about("input_ids", unasked=("media",)))
def _prompt_tokens_count_the_input_ids(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that prompt_tokens equals the number of ids in the request, so that nothing was added or removed.

    Requests with media are skipped, because placeholders may be counted as they are run.
    """
    counted = False
    if stream.asked.n < 1 or not all(_ran(stream, choice) for choice in stream.choices):
        return
    if stream.asked.truncate is not None:
        return
    for choice in finished_choices(stream):
        sent = prompt_of(stream, choice.index)
        counting = next((e for e in choice.emissions if "prompt_tokens" in e.counters), None)
        if sent is not None and counting is not None:
            counted = True
            count, place = counting.counters["prompt_tokens"], counting.at("prompt_tokens")
            message = f"prompt_tokens is {count!r} for {len(sent)} input_ids"
            yield expect(place, len(sent), count, message)
    prompts, usage = stream.asked.input_ids, stream.usage or {}
    if counted or not prompts or not all(prompts):
        return  # an empty prompt must be refused, so its count is not judged
    # The usage in the middle of a stream may count a single choice.
    if stream.answered and stream.error is None and "prompt_tokens" in usage:
        total = sum(map(len, prompts))
        message = f"usage counts {usage['prompt_tokens']!r} prompt_tokens for {total} input_ids"
        place = stream.usage_place or end_place(stream)
        yield expect(place, total, usage["prompt_tokens"], message)


@check_finished("prompt-ids-match-their-count")
def _prompt_ids_match_their_count(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the number of prompt ids equals prompt_tokens."""
    if stream.asked.n < 1:
        return
    reported = first_prompt_ids(choice)
    count = choice.counter("prompt_tokens")
    if count is None and stream.asked.prompts == 1:
        count = usage_count(stream, "prompt_tokens")
    if reported is not None and count is not None and _ran(stream, choice):
        emission, ids = reported
        if list(ids) == list(prompt_of(stream, choice.index) or ()) and len(ids) != count:
            # the ids are right, so the count is wrong, and another requirement reports it
            return
        message = f"choice {choice.index} has {len(ids)} prompt ids, but prompt_tokens is {count}"
        yield expect(emission.at(FIELD), count, len(ids), message)


@check("prompt-ids-in-every-choice", about("return_prompt_token_ids", ended=True))
def _prompt_ids_in_every_choice(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that every choice has the ids of its prompt, in batches and in requests for several choices."""
    asked = stream.asked
    if asked.prompts * asked.n <= 1:
        return
    of_prompt: dict[int, list[Any]] = {}
    for choice in finished_choices(stream):
        reported, prompt = first_prompt_ids(choice), choice.index // max(asked.n, 1)
        if reported is None and told_once_for_all(stream):
            continue
        if reported is None:
            place = choice.last_at(FIELD)
            message = f"choice {choice.index} has no {FIELD}"
            yield expect(place, "the ids of its prompt", None, message, holds=False)
            continue
        emission, ids = reported
        sent = prompt_of(stream, choice.index)
        due = of_prompt.setdefault(prompt, ids) if sent is None else list(sent)
        source = "the first sample of its prompt" if sent is None else "its own prompt"
        yield observe_sequence(emission.at(FIELD), "prompt id", expected=due, actual=ids, source=source)


@check_finished("prompt-ids-only-on-request")
def _prompt_ids_only_on_request(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the prompt ids are a list if the request enables them, and absent otherwise."""
    keyed = [e for e in choice.emissions if FIELD in e.pointers or e.prompt_token_ids is not None]
    if stream.asked.return_prompt_token_ids:
        null = next((emission for emission in keyed if emission.prompt_token_ids is None), None)
        if keyed:
            place = (keyed[0] if null is None else null).at(FIELD)
            message = f"{FIELD} is present, but not a list of ids"
            actual = "a list" if null is None else None
            yield expect(place, "a list of ids", actual, message, holds=null is None)
    else:
        place = (keyed or choice.emissions)[0].at(FIELD)
        message = f"{FIELD} is in an answer whose request did not ask for it"
        actual = "a key" if keyed else "no key"
        yield expect(place, "no key", actual, message, holds=not keyed)


@check("prompt-ids-come-first", about("return_prompt_token_ids", streamed=True))
def _prompt_ids_come_first(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a stream reports the ids of the prompt in its first emission."""
    for choice in stream.choices:
        reported = first_prompt_ids(choice)
        if reported is not None:
            late = [emission is reported[0] for emission in choice.emissions].index(True)
            message = f"{FIELD} of choice {choice.index} are in emission {late}, not in the first"
            yield expect(reported[0].at(FIELD), 0, late, message)


@check("prompt-ids-need-no-output", about("return_prompt_token_ids", finished=True, ended=True))
def _prompt_ids_need_no_output(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a choice without output ids reports the ids of its prompt."""
    for choice in finished_choices(stream):
        count = count_of(stream, choice)
        if choice.output_ids or choice.text or count or (choice.output_ids is None and count is None):
            continue
        holds = first_prompt_ids(choice) is not None or told_once_for_all(stream)
        message = f"choice {choice.index} ended without output ids, and has no {FIELD}"
        actual = "there" if holds else "absent"
        yield expect(choice.last_at(FIELD), "the ids of the prompt", actual, message, holds=holds)


@check("input-ids-beat-text", about("input_ids", "text_prompt"))
def _input_ids_beat_text(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a request with both text and ids runs the ids, or is refused."""
    asked = stream.asked
    if not (asked.text_prompt and asked.input_ids and all(asked.input_ids)):
        return
    if was_refused(stream):
        # A refusal for another reason proves nothing, so the message must name input_ids.
        if "input_ids" in words_of(stream.error):
            yield expect(start_place(stream), "a refusal", stream.exchange.status, holds=True)
        return
    yield from _as_sent(stream)


def _sent_text(stream: Stream) -> str | None:
    """Return the text of a single prompt, or of the last message. None if it is not plain ASCII."""
    sent = prompt_sent(stream)
    if sent is None:
        return None
    prompt = sent[1]
    try:
        text = prompt["text"] if "text" in prompt else prompt["messages"][-1]["content"]
    except (KeyError, IndexError, TypeError):
        return None
    return text.strip() if isinstance(text, str) and text.isascii() and text.strip() else None


@check_finished("prompt-ids-spell-the-text", about(unasked=("input_ids",)))
def _prompt_ids_spell_the_text(choice: Choice, stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the decoded ids of a prompt contain the text of the request unchanged.

    Only ASCII text is judged, because a tokenizer may normalise other text.
    """
    tokenizer, text = target.tokenizer, _sent_text(stream)
    if tokenizer is None or text is None:
        return
    reported = first_prompt_ids(choice)
    ids = tuple(reported[1]) if reported is not None else ()
    if reported is None or not all(type(decoded) is int for decoded in ids):
        return
    read = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False)]
    known = [decoded for decoded in read if decoded is not None]
    if known:
        message = f"the prompt ids decode to {known[0][-60:]!r}, but the prompt is {text[-60:]!r}"
        holds = any(text in decoded for decoded in known)
        yield expect(reported[0].at(FIELD), text, known[0], message, holds=holds)
