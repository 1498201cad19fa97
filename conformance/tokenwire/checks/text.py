"""Checks that compare the text of a choice, and the place of its stop, with its ids.

These checks need a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tokenwire.ask import Asked
from tokenwire.checks.about import about, is_error
from tokenwire.checks.check import Relation, Target, check, check_rows
from tokenwire.checks.difference import observe_legal_text
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.channels import offered
from tokenwire.checks.reading.fields import bringing, running_texts
from tokenwire.checks.reading.legal_text import Decoded, compiled, decoded, legal_texts, uncut_texts
from tokenwire.parrot.script import ANCHORED
from tokenwire.record import BROKEN, Emission, Stream

_DECODED = about(finished=True, unasked=("echo",))


def _observed(
    decoding: Decoded, emission: Emission, text: str, legal: Iterable[str], *, holds: bool
) -> Observation:
    what = f"the text of choice {decoding.choice.index} differs from its decoded ids"
    return observe_legal_text(emission.at("text"), legal, text, what, holds=holds)


def _without_tail(text: str) -> str:
    """Return a text without U+FFFD, the mark of an incomplete character, at its end."""
    return text.rstrip(BROKEN)


@check("text-is-what-its-ids-say", _DECODED)
def _text_is_what_its_ids_say(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the text of a choice is the decoded text of its ids. An incomplete character at its end is
    ignored.
    """
    for decoding in decoded(stream, target.tokenizer):
        legal = legal_texts(decoding)
        if any(legal):
            tailless = _without_tail(decoding.text)
            holds = any(decoding.alike(tailless, _without_tail(candidate)) for candidate in legal)
            yield _observed(decoding, decoding.choice.emissions[-1], decoding.text, legal, holds=holds)


@check("incomplete-tail-is-shown", _DECODED)
def _incomplete_tail_is_shown(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the text ends with an incomplete character if the decoded ids end with one."""
    for decoding in decoded(stream, target.tokenizer):
        legal = legal_texts(decoding)
        tailless = _without_tail(decoding.text)
        full = [candidate for candidate in legal if decoding.alike(tailless, _without_tail(candidate))]
        if full and all(candidate.endswith(BROKEN) for candidate in full):
            holds = any(decoding.alike(decoding.text, candidate) for candidate in full)
            yield _observed(decoding, decoding.choice.emissions[-1], decoding.text, full, holds=holds)


@check("shown-text-stays", replace(_DECODED, streamed=True))
def _shown_text_stays(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the text that a client has after each emission is a beginning of the final text."""
    for decoding in decoded(stream, target.tokenizer):
        legal = legal_texts(decoding)
        for emission, shown in running_texts(decoding.choice) if legal else ():
            if shown:
                holds = any(decoding.begins(text, shown) for text in legal)
                yield _observed(decoding, emission, shown, legal, holds=holds)


@check("text-keeps-up-with-its-ids", replace(_DECODED, streamed=True))
def _text_keeps_up_with_its_ids(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that text is held back only for the rest of a character or of a stop string.

    Requests with tools are skipped, because a parser may also hold back a part of a marker.
    """
    if offered(stream) is not None:
        return
    for decoding in decoded(stream, target.tokenizer):
        held_back = max([len(stop) - 1 for stop in decoding.asked.stop if stop], default=0)
        for emission, text in running_texts(decoding.choice):
            after, inner = emission.after, emission.finish is None and emission.counted
            if not inner or not 0 < after <= len(decoding.ids):
                continue
            # If the finish comes in a separate event, this emission may lack the complete stop string, which
            # is never shown.
            complete = after == len(decoding.ids)
            by_id = complete and (
                type(decoding.stop) is int or decoding.ids[-1] in decoding.asked.stop_token_ids
            )
            may_wait = held_back + (complete and isinstance(decoding.stop, str))
            # The text may begin with an incomplete character that continues the prompt.
            stated = (decoding.decode(decoding.ids[: after - by_id]) or "").lstrip(BROKEN)
            if not stated or stated.endswith(BROKEN):
                continue
            least, actual = decoding.size(stated) - may_wait, decoding.size(text)
            message = (
                f"the text of choice {decoding.choice.index} lags: it ends with {text[-24:]!r}, but the "
                f"{after} delivered ids end with {stated[-24:]!r}"
            )
            expected = f"at least {least} characters after {after} ids"
            holds = actual >= least or (
                complete and text == decoding.text
            )  # a stop may cut the text within a token
            yield expect(emission.at("text"), expected, f"{actual} characters", message, holds=holds)


@check("text-waits-for-its-ids", replace(_DECODED, streamed=True))
def _text_waits_for_its_ids(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that an emission does not show more text than its delivered ids form."""
    for decoding in decoded(stream, target.tokenizer):
        legal = legal_texts(decoding)
        alone = decoding.size(decoding.decode(decoding.ids) or "")
        readings = decoding.readings(decoding.ids)
        for emission, text in running_texts(decoding.choice):
            after = emission.after
            inner = emission.counted and not is_error(emission.finish)
            if not text or not inner or not 0 < after < len(decoding.ids):
                continue
            stated = decoding.decode(decoding.ids[:after])
            if stated is not None and any(decoding.begins(right, text) for right in legal):
                # The prompt may decide about the first space of the output, or begin its first character. The
                # text may be longer by these characters only if it contains them.
                begun = [reading for reading in readings if decoding.begins(reading, text)]
                beyond = max((decoding.size(reading) - alone for reading in begun), default=0)
                most, actual = decoding.size(stated) + max(beyond, 0), decoding.size(text)
                message = (
                    f"the text of choice {decoding.choice.index} is ahead: it ends with {text[-24:]!r}, but "
                    f"the {after} delivered ids end with {stated[-24:]!r}"
                )
                place, expected = emission.at("text"), f"at most {most} characters after {after} ids"
                yield expect(place, expected, f"{actual} characters", message, holds=actual <= most)


@check("special-tokens-as-asked", _DECODED)
def _special_tokens_as_asked(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the text shows or hides special tokens as the request says."""
    for decoding in decoded(stream, target.tokenizer):
        if isinstance(decoding.stop, str):
            continue
        skip = decoding.asked.skip_special_tokens
        asked_for = set(map(_without_tail, uncut_texts(decoding)))
        others = set(map(_without_tail, uncut_texts(decoding, skip_special_tokens=not skip)))
        if not asked_for or not others or asked_for & others:
            continue
        text = _without_tail(decoding.text)
        what = "without" if skip else "with"
        message = (
            f"the text of choice {decoding.choice.index} is not {what} special tokens, as the request says"
        )
        expected = f"the text {what} special tokens"
        holds = not any(decoding.alike(text, other) for other in others)
        yield expect(decoding.choice.last_at("text"), expected, text[-80:], message, holds=holds)


def _spellings(decoding: Decoded, count: int) -> list[str]:
    """Return the texts of the first `count` ids, without and with special tokens. Unknown texts
    are left out.
    """
    texts = [decoding.decode(decoding.ids[:count], skip_special_tokens=skip) for skip in (True, False)]
    return [text for text in texts if text is not None]


@dataclass(frozen=True)
class _NothingFollows(Relation):
    """The ids before the last id of a choice must not form a stop of its request."""

    stops: Callable[[Asked], Iterable[tuple[str, re.Pattern[str] | None]]]
    """A function that returns each stop with its pattern. The pattern is None if Python cannot parse it."""


def _observe_stops(row: _NothingFollows, stream: Stream, target: Target) -> Iterator[Observation]:
    for decoding in decoded(stream, target.tokenizer):
        # The last id may turn a U+FFFD at the end into a character.
        before = [_without_tail(text) for text in _spellings(decoding, len(decoding.ids) - 1)]
        known = len(before) == 2 and not decoding.asked.min_new_tokens
        for stop, spells in row.stops(decoding.asked) if known else ():
            if spells is not None:
                message = (
                    f"the output ids of choice {decoding.choice.index} continue after {stop!r} is complete"
                )
                expected = f"no id after the one that completes {stop!r}"
                place, late = bringing(decoding.choice, "output_ids"), all(map(spells.search, before))
                yield expect(place, expected, before[0][-60:], message, holds=not late)


check_rows(
    _observe_stops,
    _NothingFollows(
        "nothing-follows-a-stop-string",
        _DECODED,  # each prompt of a batch has its own stops
        lambda asked: ((stop, re.compile(re.escape(stop))) for stop in asked.stop if stop),
    ),
    _NothingFollows(
        "nothing-follows-a-stop-pattern",
        _DECODED,
        lambda asked: ((p, compiled(p)) for p in asked.stop_regex if not ANCHORED.search(p)),
    ),
)


@check("named-stop-was-asked-and-spelled", about("input_ids", finished=True, unasked=("echo",)))
def _named_stop_was_asked_and_spelled(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that a string that a choice names as its stop is a stop of the request, and that the ids form it.

    Texts and messages are skipped, because their template may add stops.
    """
    for decoding in decoded(stream, target.tokenizer):
        if not isinstance(decoding.stop, str):
            continue
        asked = decoding.asked
        known = decoding.stop in (*asked.stop, *asked.stop_regex)
        texts = _spellings(decoding, len(decoding.ids))
        spells = compiled(decoding.stop if decoding.stop in asked.stop_regex else re.escape(decoding.stop))
        if len(texts) < 2 or spells is None:
            continue
        holds, index = known and any(map(spells.search, texts)), decoding.choice.index
        what = "is not in the text of the output ids" if known else "is not a stop of the request"
        message = f"choice {index} names the stop {decoding.stop!r}, which {what}"
        expected = f"one of {[*asked.stop, *asked.stop_regex]}, in the text of the output ids"
        yield expect(bringing(decoding.choice, "finish"), expected, decoding.stop, message, holds=holds)
