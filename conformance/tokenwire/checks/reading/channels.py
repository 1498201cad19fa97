"""The channels of a choice, and the channels into which its tokens should be split."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, takewhile
from operator import eq
from typing import Any

from tokenwire.checks.reading.fields import count_of, usage_count
from tokenwire.dialects.dialect import dialect_of, is_chat, policy_of
from tokenwire.dialects.logprobs import CONTENT, joined_series
from tokenwire.dialects.markup import (
    BEHIND,
    Form,
    Markup,
    Reading,
    as_object,
    begun,
    behind_space,
    load_markup,
    read_markup,
)
from tokenwire.record import BROKEN, Answer, CallPiece, Choice, Emission, Place, Stream, ToolCall
from tokenwire.target.tokenizer import Tokenizer
from tokenwire.wire.joined_text import join_text

CALLED = "tool_calls"
"""The finish reason of a choice that ends with tool calls."""
SPENT = "length"
CHANNEL_WORDS = {"reasoning": "reasoning", "text": "content", CALLED: "tool calls", "finish": "finish"}
"""Names of the channels and of the finish reason in messages."""

_END = re.compile(r"<\|[^|]*\|>|</s>|<eos>|<end_of_turn>")
"""Matches the text of a token that ends an answer."""


def piece_place(emission: Emission, piece: CallPiece) -> Place:
    """Return the place of a piece of a tool call."""
    return emission.event.at(piece.pointer)


@dataclass(frozen=True)
class Channels:
    """The content that a choice delivered in each channel."""

    choice: Choice
    input_is_object: bool = False
    """True if whole answers write the arguments of a call as an object. A call that was cut off then has no
    arguments.
    """

    @classmethod
    def of(cls, stream: Stream, choice: Choice) -> Channels:
        return cls(choice, policy_of(stream).input_is_object)

    @cached_property
    def reasoning(self) -> str:
        return self.choice.reasoning or ""

    @cached_property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.choice.calls

    @cached_property
    def contents(self) -> tuple[str, ...]:
        """The content, split at the tool calls. A whole answer has one part, because it does not show where
        the calls were.
        """
        parts = [""]
        for emission in self.choice.emissions if self.choice.text_is_incremental else ():
            parts[-1] += emission.text or ""
            if emission.calls and parts[-1]:
                parts.append("")
        return tuple(parts) if self.choice.text_is_incremental else (self.choice.text or "",)

    @property
    def content(self) -> str:
        return join_text(self.contents)

    @property
    def called(self) -> bool:
        finish = self.choice.finish
        return finish is not None and finish.type == CALLED

    @property
    def ends_within_arguments(self) -> bool:
        """True if the choice ends within a call, so that its arguments are incomplete."""
        return any(as_object(call.arguments) is None for call in self.calls[-1:])

    def place(self, channel: str) -> Place:
        """Return the place of the last emission with a channel, or of the last emission if the channel is
        empty.
        """
        if channel == CALLED and self.calls:
            return piece_place(*self.calls[-1].pieces[-1])
        carrying = [e for e in self.choice.emissions if getattr(e, channel, None)]
        return (carrying or self.choice.emissions)[-1].at(channel)


@dataclass(frozen=True)
class ChannelDifference:
    """A difference between two answers in one channel."""

    channel: str
    """The channel's field in an emission: `reasoning`, `text` or `tool_calls`. `finish` if only one answer
    finished with calls.
    """
    expected: Any
    actual: Any

    def message(self, source: str) -> str:
        verb = "are" if self.channel == CALLED else "is"
        what = CHANNEL_WORDS[self.channel]
        return f"the {what} {verb} {_short(self.actual)}, {source} {_short(self.expected)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 90 else f"{text[:44]}…{text[-44:]}"


def differences(ours: Channels, theirs: Channels) -> Iterator[ChannelDifference]:
    """Yield the differences between the channels of two answers. White space at the edges and the spelling of
    JSON do not count.
    """
    if ours.reasoning.strip() != theirs.reasoning.strip():
        yield ChannelDifference("reasoning", ours.reasoning, theirs.reasoning)
    # Only a stream shows between which parts of the content the calls were.
    cut = max(ours, theirs, key=lambda channels: len(channels.contents))
    if not fits(cut.contents, (theirs if cut is ours else ours).content):
        yield ChannelDifference("text", ours.content, theirs.content)
    calls = [[_name_and_arguments(call) for call in channels.calls] for channels in (ours, theirs)]
    cut_within = ours.ends_within_arguments or theirs.ends_within_arguments
    if cut_within and (ours.input_is_object or theirs.input_is_object):
        # An object cannot be incomplete, so only the name of the call is compared.
        calls = [[*series[:-1], *((name, None) for name, _ in series[-1:])] for series in calls]
    if calls[0] != calls[1]:
        yield ChannelDifference(CALLED, written(ours), written(theirs))
    if ours.called != theirs.called:
        finishes = ours.choice.finish, theirs.choice.finish
        yield ChannelDifference("finish", *(finish.type if finish else None for finish in finishes))


def written(channels: Channels) -> list[list[Any]]:
    """Return the names and arguments of the calls, for a message."""
    return [[call.name, call.arguments] for call in channels.calls]


def _name_and_arguments(call: ToolCall) -> tuple[Any, Any]:
    """Return the name and the parsed arguments of a call, so that the spelling of the JSON does
    not matter.
    """
    reported = as_object(call.arguments)
    return call.name, call.arguments.strip() if reported is None else reported


def fits(contents: tuple[str, ...], content: str, *, behind: bool = False) -> bool:
    """True if a content consists of these parts in order, with any white space between them.

    `behind`: True if parts after the first may be missing.
    """
    rest = content.strip()
    ends = {0}
    """The positions at which the parts so far may end, with or without white space."""
    for nth, part in enumerate(map(str.strip, contents)):
        reached = {behind_space(rest, end + len(part)) for end in ends if rest.startswith(part, end)}
        ends = reached | ends if behind and nth else reached
    return len(rest) in ends


@dataclass(frozen=True)
class MarkedText:
    """The text of a choice's tokens with its markup, and the rules to parse it."""

    text: str
    markup: Markup
    tools: tuple[str, ...] | None
    spent: bool
    """True if the budget ended the text."""
    stopped: bool
    """True if a stop string ended the text."""
    unfound: bool
    """True if the text contains a stop string that did not end it."""
    alone: bool
    """True if the request allows at most one tool call."""

    @cached_property
    def reading(self) -> Reading:
        return self._read(self.markup)

    @property
    def disputed(self) -> str:
        """The reason why the markup is disputed; empty if it is not."""
        return self.reading.disputed

    def explains(self, channels: Channels) -> bool:
        """True if the markup of all channels that the choice may use is known. Otherwise an unknown parser
        may exist.
        """
        thoughts, form = self.markup.thoughts is not None, self.markup.form is not None
        known = (thoughts or not channels.reasoning) and (form or not channels.calls)
        return known and not _says_markup(self.text, thoughts=not thoughts, calls=not form)

    @property
    def settled(self) -> bool:
        """True if the markup defines the content of each channel. Text after a call may be kept
        or removed.
        """
        return self.disputed in ("", BEHIND)

    def _read(self, markup: Markup) -> Reading:
        reading = read_markup(self.text, markup, self.tools)
        inside = reading.cut is not None
        if inside and self.stopped:
            return replace(reading, disputed="a stop string matched within reasoning or a tool call")
        if self.unfound:
            return replace(reading, disputed="the text contains a stop string that did not end it")
        if self.alone and len(reading.calls) > 1:
            return replace(reading, disputed="the request allows at most one tool call")
        if inside and not self.spent:
            return replace(reading, disputed="reasoning or a tool call is not closed")
        return reading

    def _readings(self) -> Iterator[tuple[Markup, Reading]]:
        """Yield the possible parses of the text: with all parsers, and without some of them.

        A request may disable a parser, or offer no tools. If the text has no marker of reasoning, the prompt
        may have opened the reasoning. Then the reasoning ends at the first call, or at the end of the text.
        """
        marked = any(marker in self.text for marker in self.markup.markers(thoughts=True, calls=False))
        for thoughts in dict.fromkeys((self.markup.thoughts, None)):
            for form in dict.fromkeys((self.markup.form, None)):
                markup = Markup(thoughts, form)
                reading = self._read(markup)
                yield markup, reading
                if not marked:
                    first, *behind = reading.contents
                    yield markup, replace(reading, reasoning=first, contents=("", *behind))

    def held_by(self, channels: Channels) -> bool:
        """True if the channels contain the whole text."""
        return any(self._holds(markup.form, reading, channels) for markup, reading in self._readings())

    def nearest(self, channels: Channels) -> Reading:
        """Return the parse that is most similar to the channels: most equal channels, then most equal
        characters.
        """

        def nearness(reading: Reading) -> tuple[int, int]:
            pairs = ((reading.reasoning, channels.reasoning), ("".join(reading.contents), channels.content))
            alike = sum(due.strip() == reported.strip() for due, reported in pairs)
            return alike, sum(sum(takewhile(bool, map(eq, *pair))) for pair in pairs)

        return max((reading for _, reading in self._readings()), key=nearness)

    def _holds(self, form: Form | None, reading: Reading, channels: Channels) -> bool:
        reported, due = channels.calls, reading.calls
        if not self._same(reading.reasoning, channels.reasoning):
            return False
        if not all(
            call.name == candidate.name and candidate.is_told_by(call.arguments)
            for candidate, call in zip(due, reported, strict=False)
        ):
            return False
        as_text = len(reported) == len(due)
        if reading.cut and form is not None:
            if as_text and fits((*reading.contents, reading.cut), channels.content):
                return True
            if len(reported) < len(due) or not _is_begun(reading, form, reported[len(due) :]):
                return False
        elif not as_text:
            return False
        contents = [reading.contents, (*reading.contents[:-1], self._unbegun(reading.contents[-1]))]
        behind = reading.disputed == BEHIND
        return any(fits(candidate, channels.content, behind=behind) for candidate in contents)

    def _same(self, due: str, reported: str) -> bool:
        return reported.strip() in {due.strip(), self._unbegun(due).strip()}

    def _unbegun(self, text: str) -> str:
        """Return a text without an incomplete marker at its end, if the budget ended the text."""
        markers = self.markup.markers(thoughts=True, calls=True) if self.spent else []
        parts = [m[:size] for m in markers for size in range(1, len(m)) if text.endswith(m[:size])]
        return text.removesuffix(max(parts, key=len, default=""))


def _is_begun(reading: Reading, form: Form, more: tuple[ToolCall, ...]) -> bool:
    """True if the additional calls are only a beginning of the call that was cut off."""
    if reading.unclosed is not None:
        due = reading.unclosed
        return len(more) == 1 and more[0].name == due.name and due.is_told_by(more[0].arguments)
    known = begun(reading.cut or "", form)
    if known is None:
        return not more
    name, arguments = known
    so_far = len(more) == 1 and more[0].name == name
    return so_far and (arguments is None or arguments.startswith(more[0].arguments.rstrip()))


def tokens_of(choice: Choice) -> list[bytes] | None:
    """Return the bytes of a choice's tokens from its logprobs. None if a token is missing."""
    content = joined_series(choice, CONTENT)
    reported = [entry.bytes if entry else None for entry in content.tokens] if content else []
    known = [token for token in reported if token is not None]
    return known if known and len(known) == len(reported) else None


def token_spans(choice: Choice, tokenizer: Tokenizer | None) -> list[tuple[bytes, int, int]] | None:
    """Return each token of a choice with the bytes of its text, their begin and their end; None if they are
    unknown.
    """
    tokens = tokens_of(choice)
    if tokens is None and tokenizer is not None:
        texts = [
            tokenizer.decode((token,), skip_special_tokens=False, spaces_between_special_tokens=False)
            for token in choice.output_ids or ()
        ]
        tokens = [text.encode() for text in texts if text is not None]
        tokens = tokens if len(tokens) == len(texts) else None
    ends = list(accumulate(map(len, tokens or ())))
    return [*zip(tokens, (0, *ends), ends, strict=False)] if tokens else None


def _text(choice: Choice, tokenizer: Tokenizer | None, *, spent: bool, by_id: bool) -> str | None:
    """Return the sampled text without the token that ended it. None if the text is unknown."""
    tokens = tokens_of(choice)
    if tokens is not None:
        last = tokens[-1].decode("utf-8", "replace") if tokens else ""
        kept = tokens[:-1] if not spent and (by_id or _END.fullmatch(last)) else tokens
        text = b"".join(kept).decode("utf-8", "replace")
        if all(kept) and BROKEN not in text:  # some servers do not report the bytes of incomplete characters
            return text
    ids = choice.output_ids
    if tokenizer is None or not ids or not all(type(token) is int for token in ids):
        return None
    last = tokenizer.decode((ids[-1],), skip_special_tokens=False, spaces_between_special_tokens=False) or ""
    kept_ids = tuple(ids[:-1] if not spent and (by_id or _END.fullmatch(last)) else ids)
    return tokenizer.decode(kept_ids, skip_special_tokens=False, spaces_between_special_tokens=False)


def offered(stream: Stream) -> tuple[str, ...] | None:
    """Return the names of the tools that a request offers. None if it has no list of tools."""
    dialect = dialect_of(stream)
    tool = dialect.request.tool if dialect is not None else None
    return tool.names(stream.exchange.request.body) if tool is not None else None


def _all_is_told(stream: Stream, choice: Choice) -> bool:
    """True if each token has a logprob entry or an id.

    Some servers omit hidden tokens. If one token is missing, the remaining tokens form a different text.
    """
    reported, count = len(tokens_of(choice) or choice.output_ids or ()), usage_count(stream)
    # The usage counts the tokens of all choices together.
    if len(stream.choices) == 1 and count is not None:
        return reported == count
    return reported == count_of(stream, choice) or policy_of(stream).hidden_in_logprobs


def hides_reasoning(stream: Stream) -> bool:
    """True if a request asks the server to leave reasoning out of its answer."""
    dialect = dialect_of(stream)
    return dialect is not None and dialect.request.reasoning.are_hidden(stream.exchange.request.body)


def say(
    stream: Stream, choice: Choice, markup: Markup, tokenizer: Tokenizer | None = None
) -> MarkedText | None:
    """Return the text of a choice's tokens. None if it is unknown, or if the choice did not end normally."""
    finish = choice.finish
    if not is_chat(stream) or stream.asked.echo or finish is None or finish.type == "abort":
        return None
    if hides_reasoning(stream):
        return None
    count, budget = len(choice.output_ids or tokens_of(choice) or ()), stream.asked.budget(choice.index)
    # A server may report tool_calls for a call that its budget ended. The requirement `spent-budget-is-told`
    # judges that.
    spent = finish.type == SPENT or (finish.type == CALLED and budget is not None and 0 < budget <= count)
    # SGLang removes the token of a stop id from the text, and so from every channel.
    ended_by = choice.output_ids[-1] if choice.output_ids else finish.matched
    by_id = ended_by in stream.asked.stop_token_ids and not stream.asked.no_stop_trim
    text = _text(choice, tokenizer, spent=spent, by_id=by_id)
    if not text or _END.search(text) or not _all_is_told(stream, choice):
        return None
    stop = finish.matched if isinstance(finish.matched, str) and finish.matched in text else ""
    stops = [string for string in stream.asked.stop if string and string in text]
    # The ids include the token that completed the stop string. The text ends before the stop string, or with
    # it.
    if stop:
        text = text[: text.find(stop) + len(stop) * stream.asked.no_stop_trim]
    alone = stream.asked.tools is not None and stream.asked.tools.alone
    return MarkedText(text, markup, offered(stream), spent, bool(stop), bool(stops) and not stop, alone)


def said_of(stream: Stream, choice: Choice, markup: Markup, tokenizer: Tokenizer | None) -> MarkedText | None:
    """Return the result of `say`.

    The result is cached with the stream, because several requirements need it.
    """
    known: dict[int, MarkedText | None] = stream.cache.setdefault(say, {})
    if choice.index not in known:
        known[choice.index] = say(stream, choice, markup, tokenizer)
    return known[choice.index]


def taken_apart(stream: Stream, choice: Choice) -> bool:
    """True if a parser may have split a choice: tools are offered, and its tokens contain a marker."""
    if hides_reasoning(stream):
        return True
    if choice.parsed or not is_chat(stream) or offered(stream) is None:
        return choice.parsed
    text = b"".join(tokens_of(choice) or ()).decode("utf-8", "replace")
    return _says_markup(text, thoughts=True, calls=True)


def has_markup(text: str) -> bool:
    """True if a text contains a marker of any known kind."""
    return _says_markup(text, thoughts=True, calls=True)


def _says_markup(text: str, *, thoughts: bool, calls: bool) -> bool:
    """True if a text contains a known marker, or the beginning of a call without markers."""
    wanted = zip((thoughts, calls), _every_marker(), strict=True)
    return any(is_wanted and markers.search(text) for is_wanted, markers in wanted)


@cache
def _every_marker() -> tuple[re.Pattern[str], re.Pattern[str]]:
    ways, forms = load_markup()
    of_thoughts = [re.escape(marker) for way in ways.values() for marker in (way.opens, way.closes)]
    of_calls = [
        pattern
        for form in forms.values()
        for pattern in (re.escape(form.opens), re.escape(form.closes), form.begins)
        if pattern
    ]
    return re.compile("|".join(of_thoughts)), re.compile("|".join(of_calls))


Right = Callable[[Stream, Choice, Markup], MarkedText | None]
"""A function that returns the text that a choice should have. None if it is unknown."""


def seen_markup(
    streams: Iterable[Answer], tokenizer: Tokenizer | None, form: str = "", right: Right | None = None
) -> Markup:
    """Infer the markup that the server's parsers remove.

    It is inferred from answers with reasoning or calls whose tokens, or right answers, contain the markup.
    `form` names the format of tool calls if it is known.
    """

    def is_shown(stream: Stream, choice: Choice, markup: Markup) -> bool:
        stated = say(stream, choice, markup, tokenizer)
        if stated is None and right is not None:
            stated = right(stream, choice, markup)
        return stated is not None and _is_shown(stated, choice)

    ways, forms = load_markup()
    seen = Markup(form=forms.get(form))
    for answer in streams:
        parsed = is_chat(answer) and any(choice.reasoning or choice.has_calls for choice in answer.choices)
        if not parsed or (seen.thoughts is not None and seen.form is not None):
            continue
        stream = answer.load()
        for choice in stream.choices:
            if seen.thoughts is None and choice.reasoning:
                shown = (way for way in ways.values() if is_shown(stream, choice, Markup(way)))
                seen = replace(seen, thoughts=next(shown, None))
            if seen.form is None and choice.calls:
                read = (Markup(seen.thoughts, markup) for markup in forms.values())
                reported = (markup.form for markup in read if is_shown(stream, choice, markup))
                seen = replace(seen, form=next(reported, None))
    return seen


def _is_shown(stated: MarkedText, choice: Choice) -> bool:
    """True if a choice has the reasoning, or the first call, that a markup finds in its text."""
    if stated.disputed:
        return False
    if stated.markup.form is None:
        thoughts = stated.reading.reasoning.strip()
        return bool(thoughts) and thoughts == (choice.reasoning or "").strip()
    pairs = list(zip(stated.reading.calls, choice.calls, strict=False))[:1]
    return any(due.name == call.name and due.is_told_by(call.arguments) for due, call in pairs)
