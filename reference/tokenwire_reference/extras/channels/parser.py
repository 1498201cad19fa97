"""A text taken apart into channels, character by character.

A parse is a generator that is resumed once for each character and writes deltas as soon as they are settled.
Nothing else goes in: wherever a text is cut, each character meets the same state. And a whole answer is the
join of the deltas that its stream carries. So neither chunks nor intervals can move text between channels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any, NoReturn, TypeVar

import orjson

_Result = TypeVar("_Result")
Parse = Generator[None, None, _Result]
"""Yields when it is done with `ChannelParser.here`."""
Format = Callable[["ChannelParser"], Parse[None]]
"""A format of channels: reads a text to its end."""

_DIGITS_OF_64_BITS = 19
WHITE_SPACE = " \t\r\n"


class Channel(Enum):
    """Channels for the text of a choice."""

    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"


@dataclass(frozen=True)
class Delta:
    """A new part of one channel."""

    channel: Channel
    text: str
    """Of a call, its arguments."""
    call: int = 0
    """The number of the call in the choice, counted from 0."""
    name: str | None = None
    """The function of a call, in the call's first delta only."""


@dataclass
class Call:
    """One tool call."""

    name: str
    arguments: str = ""

    @property
    def whole(self) -> bool:
        """True if its arguments are JSON; they are not if it was cut or malformed."""
        return is_json(self.arguments)

    @property
    def value(self) -> Any:
        """The arguments as a value; an empty object unless they are JSON that an answer can carry.

        A number beyond a double is infinite, which an answer writes as null.
        """
        try:
            value = json.loads(self.arguments, parse_int=_bounded) if self.whole else {}
            orjson.dumps(value)
        except (TypeError, RecursionError):  # a text with half a surrogate pair, or nested very deep
            return {}
        return value


def is_json(text: str) -> bool:
    """True if a text is a word of the grammar of JSON, which bounds no number, as a constraint does not."""
    try:
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _bounded(digits: str) -> float:
    """Return an integer; as a float, if 64 bits do not hold it."""
    return int(digits) if len(digits) < _DIGITS_OF_64_BITS else float(digits)


def _refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinity, which Python reads."""
    raise ValueError(f"{name} is not JSON")


@dataclass
class Message:
    """Deltas, joined."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            if delta.name is not None:
                self.calls.append(Call(delta.name))
            match delta.channel:
                case Channel.REASONING:
                    self.reasoning += delta.text
                case Channel.CONTENT:
                    self.content += delta.text
                case Channel.CALL:
                    self.calls[delta.call].arguments += delta.text

    @property
    def calls_tools(self) -> bool:
        """True if there are calls, and each can be made."""
        return bool(self.calls) and all(call.whole for call in self.calls)


class NotACallError(Exception):
    """The text is not a call, or not any more."""


class ChannelParser:
    """Splits one text. `push` and `finish` give what became settled."""

    def __init__(self, format: Format) -> None:  # noqa: A002
        self.here = ""
        """The character that is to be read; "" before the first and behind the last."""
        self.position = 0
        """The number of characters before it."""
        self.markup = ""
        """What was read as markup, for as long as it may turn out to be none."""
        self.calls = 0
        """The number of calls that have opened."""
        self.reasoning: tuple[int, int | None] | None = None
        """Where the reasoning begins and ends in the text; it has no end while it is open."""
        self._written: list[Delta] = []
        self._parse = self._from_first(format)
        next(self._parse)

    def push(self, text: str) -> list[Delta]:
        """Read on."""
        for character in text:
            self.here = character
            next(self._parse)
            self.position += 1
        return self._settled()

    def finish(self) -> list[Delta]:
        """Read the end of the text."""
        self.here = ""
        for _ in self._parse:
            raise AssertionError("a format reads on behind the end of its text")
        return self._settled()

    def _from_first(self, format: Format) -> Parse[None]:  # noqa: A002
        yield
        yield from format(self)

    def _settled(self) -> list[Delta]:
        written, self._written = self._written, []
        runs = [list(run) for _, run in groupby(written, lambda delta: (delta.channel, delta.call))]
        return [
            Delta(run[0].channel, "".join(delta.text for delta in run), run[0].call, run[0].name)
            for run in runs
        ]

    # What formats write.

    def give(self, channel: Channel, text: str) -> None:
        """Give text to reasoning or to content."""
        if text:
            self._written.append(Delta(channel, text))

    def open_call(self, name: str) -> None:
        """Begin a call; what was read of it so far is markup for good."""
        self._written.append(Delta(Channel.CALL, "", self.calls, name))
        self.calls += 1
        self.markup = ""

    def argue(self, text: str) -> None:
        """Give text to the arguments of the latest call."""
        if text:
            self._written.append(Delta(Channel.CALL, text, self.calls - 1))

    def mark(self, text: str) -> None:
        """Take text for markup."""
        self.markup += text

    # What formats read with.

    def skip(self) -> Parse[None]:
        """Pass a character of markup."""
        self.mark(self.here)
        yield

    def skip_space(self) -> Parse[None]:
        while self.here and self.here in WHITE_SPACE:
            yield from self.skip()

    def expect(self, *words: str) -> Parse[str]:
        """Pass the next word, which must be one of `words`; none begins another. Raises NotACallError for
        other text.
        """
        read = ""
        while read not in words:
            read += self.here
            if not self.here or not any(word.startswith(read) for word in words):
                raise NotACallError
            yield from self.skip()
        return read

    def text_until(
        self,
        markers: Sequence[str],
        give: Callable[[str], None],
        *,
        first: Sequence[str] = (),
        trim: bool = True,
    ) -> Parse[str]:
        """Give text up to a marker, which is passed as markup and returned; "" if the text ended.

        A marker in `first` counts only before all text. With `trim`, white space before a marker is markup.
        """
        spaces = begun = ""
        wanted = (*markers, *first)
        while self.here:
            begun += self.here
            if begun in wanted:
                self.markup = spaces + begun
                yield
                return begun
            while begun and not any(marker.startswith(begun) for marker in wanted):
                character, begun = begun[0], begun[1:]
                if trim and wanted and character in WHITE_SPACE:
                    spaces += character
                else:
                    give(spaces + character)
                    spaces, wanted = "", tuple(markers)
            yield
        give(spaces + begun)
        return ""

    def read_again(self, parse: Parse[None]) -> Parse[None]:
        """Let a parse that has not begun read the markup as text, and what follows it."""
        here, text, self.markup = self.here, self.markup, ""
        for character in text:
            self.here = character
            next(parse)
        self.here = here
        yield from parse
