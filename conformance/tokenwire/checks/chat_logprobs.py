"""Checks of logprobs in OpenAI's shapes: `content` of chat, and the parallel lists of completions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenwire.checks.about import about, finished_choices
from tokenwire.checks.check import Target, check, check_choices, check_finished
from tokenwire.checks.difference import first_difference
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.channels import hides_reasoning, taken_apart
from tokenwire.checks.reading.fields import details, end_place, total_count, usage_count
from tokenwire.checks.usage import reasoning_tokens
from tokenwire.dialects.dialect import has_items, is_chat, policy_of
from tokenwire.dialects.logprobs import (
    CONTENT,
    LISTS,
    NAMED,
    NAMED_TOP,
    NAMES,
    OFFSETS,
    Logprob,
    id_in_text,
    joined_series,
)
from tokenwire.dialects.markup import load_markup
from tokenwire.record import Choice, Stream, integer

FIELD = "logprobs"
_BROKEN = re.compile("�+")
_BYTE = range(256)


def _tells(stream: Stream) -> bool:
    """True if any choice has logprobs objects."""
    return any(FIELD in emission.details for choice in stream.choices for emission in choice.emissions)


def _fault_in_bytes(value: object) -> str:
    fits = value is None or (isinstance(value, list) and all(integer(byte) in _BYTE for byte in value))
    return "" if fits else f"has the bytes {value!r}"


def _fault_in_entry(value: object) -> str:
    """Describe why a value is not a token with its logprob. Empty if it is one."""
    if not isinstance(value, Mapping):
        return f"is {value!r}, not an object"
    if not isinstance(value.get("token"), str):
        return f"has the token {value.get('token')!r}"
    number = value.get("logprob")
    if integer(number) is None and not isinstance(number, float):
        return f"has the logprob {number!r}"
    return _fault_in_bytes(value.get("bytes"))


def _fault_in_content(reported: object) -> str:
    """Describe why a value is not the logprobs object of a chat choice. Empty if it is one."""
    if not isinstance(reported, Mapping):
        return f"is {reported!r}, not an object"
    if "content" not in reported:
        return f"has the keys {sorted(reported)} and no content"
    content = reported["content"]
    if content is None:
        return ""
    if not isinstance(content, list):
        return f"has the content {content!r}, not a list"
    for position, entry in enumerate(content):
        fault = _fault_in_entry(entry)
        if fault:
            return f"{position} of content {fault}"
        top = entry.get(NAMED_TOP, [])
        if not isinstance(top, list):
            return f"{position} of content has the top_logprobs {top!r}"
        inner = next((words for words in map(_fault_in_entry, top) if words), "")
        if inner:
            return f"{position} of content has a top logprob that {inner}"
    return ""


@check("chat-logprobs-have-content", about("logprobs", chat=True))
def _chat_logprobs_have_content(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that chat logprobs have `content` with one object for each token, and not the lists of
    completions.
    """
    for emission in stream.emissions() if _tells(stream) else ():
        reported = emission.details.get(FIELD)
        if reported is not None:
            fault = _fault_in_content(reported)
            expected = "null, or content with token, logprob, bytes and top_logprobs"
            message = f"{FIELD} {fault}"
            yield expect(emission.at(FIELD), expected, fault or expected, message, holds=not fault)


def _entries(choice: Choice) -> int:
    """Count the tokens with an entry in the logprobs of a choice, including reasoning."""
    thoughts = choice.details("reasoning_logprobs")
    content = joined_series(choice, CONTENT)
    entries = len(content.values) if content else 0
    return entries + sum(len(thought) for thought in thoughts if isinstance(thought, list))


def _unlisted(stream: Stream) -> int:
    """Count the tokens that need no entry in a dialect that promises entries only for visible content.

    These are the tokens of a stop string (at least one byte each) and of reasoning.
    """
    if policy_of(stream).hidden_in_logprobs:
        return 0
    longest = max((len(stop.encode(errors="surrogatepass")) for stop in stream.asked.stop), default=0)
    stopped = sum(1 for choice in stream.choices if choice.finish and choice.finish.type != "length")
    thoughts = reasoning_tokens(stream)
    if thoughts is None and any(choice.reasoning for choice in stream.choices):
        thoughts = usage_count(stream)  # the number is unlimited if the server does not count them
    return max(1, longest) * stopped + (thoughts or 0)


@check("chat-logprobs-count-the-tokens", about("logprobs", chat=True, ended=True))
def _chat_logprobs_count_the_tokens(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that every token has exactly one entry, even without visible text, and that a stream sends each
    entry once.
    """
    if stream.asked.max_new_tokens == 0:
        return
    choices = finished_choices(stream)
    if has_items(stream) and any(choice.parsed for choice in choices):
        return  # an item's list covers only the tokens of this item's text
    contents = [joined_series(choice, CONTENT) for choice in choices]
    if len(choices) < len(stream.choices) or all(content is None for content in contents):
        return
    entries, due = sum(map(_entries, choices)), total_count(stream, choices)
    if due is None:
        return
    place = stream.usage_place if "completion_tokens" in (stream.usage or {}) else None
    # The logprobs of hidden reasoning may be left out.
    least = 0 if hides_reasoning(stream) else due - _unlisted(stream)
    holds = least <= entries <= due
    message = f"the logprobs have {entries} entries for {due} completion tokens"
    yield expect(place or end_place(stream), due, entries, message, holds=holds)


def _bytes_of(entry: Logprob) -> bytes | None:
    """Return the bytes of the token of an entry; None if the entry does not have them."""
    token = entry.text
    if not isinstance(token, str) or type(entry.value) not in {int, float}:
        return None
    named = id_in_text(token) is not None
    if entry.data:
        # A server that writes `token_id:7` may also give the bytes of this name, which are not the token's.
        return None if named and entry.bytes == token.encode() else entry.bytes
    is_spelled = token and "�" not in token and not named
    return token.encode(errors="surrogatepass") if is_spelled else None


def _text_with_marks(data: bytes) -> str:
    """Decode bytes, and replace each run of broken characters by one U+FFFD, because their number varies."""
    return _BROKEN.sub("�", data.decode(errors="replace"))


def is_spelled(text: str, tokens: Iterable[bytes]) -> bool:
    """True if the tokens, in order, form a text.

    Whole tokens may be missing from the text, because special tokens are hidden. The end may be missing
    because of a stop. A space at the beginning may be missing as well.
    """
    known = list(tokens)
    wanted, whole = _BROKEN.sub("�", text), b"".join(known)
    if whole[:1] == b" " and wanted[:1] != " ":
        whole = whole[1:]
    # The joined tokens are compared first, because they usually are the text. Comparing token by token is
    # slow, because each step decodes all earlier tokens.
    return _text_with_marks(whole).startswith(wanted) or is_spelled_by_some(wanted, known)


def is_spelled_by_some(wanted: str, tokens: Iterable[bytes]) -> bool:
    """True if some of the tokens, in order, form a text. A run of broken characters counts as one U+FFFD."""
    kept = b""
    for token in tokens:
        at_start = not kept and token[:1] == b" " and wanted[:1] != " "
        longer = kept + (token[1:] if at_start else token)
        shown = _text_with_marks(longer).rstrip("�")
        if wanted.startswith(shown) or shown.startswith(wanted):
            kept = longer
    shown = _text_with_marks(kept)
    return shown.startswith(wanted) or shown.rstrip("�") == wanted.rstrip("�")


@check("chat-logprobs-spell-the-text", about("logprobs", chat=True, ended=True))
def _chat_logprobs_spell_the_text(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the tokens of the logprobs form the visible text."""
    for choice in finished_choices(stream):
        content, text = joined_series(choice, CONTENT), choice.text
        tokens = [_bytes_of(entry) if entry else None for entry in content.tokens] if content else []
        if not text or taken_apart(stream, choice) or not tokens or None in tokens:
            continue
        known = [token for token in tokens if token is not None]
        reported = _text_with_marks(b"".join(known))
        name = (
            FIELD if _tells(stream) else CONTENT
        )  # typed items have no logprobs object, only a list of entries
        carrying = next(e for e in reversed(choice.emissions) if e.details.get(name) or e.entries(name))
        holds = is_spelled(text, known)
        start = 0 if holds else max(0, (first_difference(text, reported) or 0) - _BEFORE)
        theirs, ours = (whole[start : start + _QUOTED] for whole in (reported, text))
        where = f"from character {start} on, " if start else ""
        message = f"{where}the tokens of the logprobs spell {theirs!r}, but the text is {ours!r}"
        yield expect(carrying.at(name), text, reported, message, holds=holds)


_QUOTED, _BEFORE = 60, 20
"""The maximum number of quoted characters of two texts, and of the quoted characters before their difference.
"""
_SPECIAL = re.compile(r"<[^<>]*>")
"""Matches special tokens and single-byte tokens."""


def _plain(text: str) -> str:
    """Return the visible ASCII characters of a text."""
    return "".join(character for character in text if "!" <= character <= "~")


def _without_thought_markers(text: str) -> str:
    """Return a text without the markers of reasoning, each of which may be several tokens."""
    for thoughts in load_markup()[0].values():
        text = text.replace(thoughts.opens, "").replace(thoughts.closes, "")
    return text


@check_finished("tokens-of-logprobs-are-shown")
def _tokens_of_logprobs_are_shown(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the text contains all visible ASCII characters of its tokens. Spaces and bytes depend on the
    tokenizer.
    """
    finish = choice.finish
    if finish is None or finish.type != "length" or stream.asked.echo or taken_apart(stream, choice):
        return
    names = [name for part in choice.details(FIELD) for name in parallel_lists(part).get(NAMES, [])]
    names = names or [
        entry.get("token") for entry in choice.series(CONTENT) or () if isinstance(entry, Mapping)
    ]
    texts = [name for name in names if isinstance(name, str) and not _is_escaped(name)]
    if not texts or choice.text is None or any(id_in_text(name) is not None for name in texts):
        return
    joined = "".join("" if _SPECIAL.fullmatch(name) else name for name in texts)
    spelled = _plain(_without_thought_markers(joined) if is_chat(stream) else joined)
    shown = iter(_plain(choice.text))
    message = f"the tokens of the logprobs spell more than the text, which is {choice.text[:60]!r}"
    holds = all(character in shown for character in spelled)
    yield expect(choice.last_at("text"), spelled, choice.text, message, holds=holds)


def parallel_lists(reported: Any) -> dict[str, list[Any]]:
    """Return the raw parallel lists of a completion's logprobs object, including an echo."""
    if not isinstance(reported, Mapping):
        return {}
    return {name: value for name, value in reported.items() if name in LISTS and isinstance(value, list)}


@check_choices("completion-logprobs-are-parallel", about(chat=False))
def _completion_logprobs_are_parallel(
    choice: Choice, _stream: Stream, _target: Target
) -> Iterator[Observation]:
    """Check that all lists of a completion's logprobs have one entry for each token.

    The list of alternatives is empty if the request did not enable it. Another requirement counts its
    entries.
    """
    for emission, logprobs in details(choice.delivered, FIELD):
        lists = parallel_lists(logprobs)
        if lists.get(NAMED):
            sizes = {name: len(lists[name]) for name in sorted(lists) if lists[name] or name != NAMED_TOP}
            wrong = next((name for name, size in sizes.items() if size != sizes[NAMED]), None)
            message = f"{wrong} has {sizes.get(wrong or '')} entries, but {NAMED} has {sizes[NAMED]}"
            yield expect(
                emission.at(wrong or FIELD), "lists of one length", sizes, message, holds=wrong is None
            )


def _is_escaped(token: object) -> bool:
    """True if a token is written as bytes, as some servers do.

    The length of such a token differs from the length of its text.
    """
    return isinstance(token, str) and token.startswith("bytes:")


def _ends(text: str | None, begin: int, name: str) -> list[int]:
    """Return the offsets at which a token that begins at `begin` may end.

    The token may end after its name. It may end one character later if the text has a blank before the name,
    because a tokenizer may omit this blank. It may end at `begin` if the text does not contain the name.
    """
    after = [begin + len(name)]
    if text is not None and text.startswith(f" {name}", begin):
        after.append(begin + 1 + len(name))
    elif text is not None and not text.startswith(name, begin):
        after.append(begin)
    return after


def _may_follow_a_part(text: str | None, begin: int, position: int | None, name: object) -> bool:
    """True if a token may have the offset `position`, after a part of a character that begins at `begin`.

    A server may count such a part as nothing, as the whole character, or as its visible marks (one or several
    U+FFFD). So the next token may be wherever the text shows it.
    """
    if position is None or position < begin:
        return False
    if position <= begin + 1 or text is None or not isinstance(name, str) or not name:
        return True
    return text.find(name, begin) < 0 or text.startswith((name, f" {name}"), position)


@check("text-offsets-add-up", about(chat=False))
def _text_offsets_add_up(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that each offset is the previous one plus the length of the token's visible text, across all
    events.
    """
    unknown = policy_of(stream).text_offsets == "unknown"
    for choice in stream.choices if _tells(stream) else ():
        text = choice.text
        first: int | None = None
        before: tuple[int, str] | None = None
        # The offset of an incomplete character. Only hidden tokens came since, so later tokens may complete
        # it.
        part: int | None = None
        for position, carried in enumerate(choice.details(FIELD)):
            lists = parallel_lists(carried)
            offsets, tokens = lists.get(OFFSETS, []), lists.get(NAMES, [])
            if unknown and all(offset == -1 for offset in offsets):
                continue
            for offset, token in zip(offsets, tokens, strict=False):
                reported = integer(offset)
                first = reported if first is None else first
                if before is not None and first is not None and not _is_escaped(before[1]):
                    begin, name = before
                    due = [first + end for end in _ends(text, begin - first, name)] if name else []
                    if not name:
                        part = begin
                    elif begin not in due:
                        part = None
                    shown = None if reported is None else reported - first
                    holds = offset in due or (
                        part is not None and _may_follow_a_part(text, part - first, shown, token)
                    )
                    if name:
                        expected = str(due[0])
                        message = f"the text offset of {token!r} is {offset!r}, but {name!r} ends at {due[0]}"
                    else:
                        expected = f"where the text shows {token!r}, from {begin} on"
                        message = f"the text offset of {token!r} is {offset!r}, which is not {expected}"
                    place = choice.emissions[position].at(OFFSETS)
                    yield expect(place, expected, offset, message, holds=holds)
                before = (reported, token) if reported is not None and isinstance(token, str) else None
