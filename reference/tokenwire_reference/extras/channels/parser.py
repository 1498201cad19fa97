"""Splits a text into channels, character by character.

A parse is a generator that is resumed once for each character, and writes deltas as soon as no later
character can change them. The characters are its only input, so the result does not depend on where the text
is cut. A whole answer is the join of the deltas of its stream. So neither chunks nor intervals can move text
between channels.
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
"""A parse that yields when it has processed `ChannelParser.here`."""
Format = Callable[["ChannelParser"], Parse[None]]
"""A format of channels, which parses a text to its end."""

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
    """The text; for a call, its arguments."""
    call: int = 0
    """The number of the call in the choice, counted from 0."""
    name: str | None = None
    """The name of the called function, in the call's first delta only."""


@dataclass
class Call:
    """One tool call."""

    name: str
    arguments: str = ""

    @property
    def whole(self) -> bool:
        """True if the arguments are JSON. After a cut or an error they are not."""
        return is_json(self.arguments)

    @property
    def value(self) -> Any:
        """The arguments as a parsed value; an empty object if they are not JSON that an answer can contain.

        A number that exceeds a double becomes infinite, which an answer writes as null.
        """
        try:
            value = json.loads(self.arguments, parse_int=_bounded) if self.whole else {}
            orjson.dumps(value)
        except (TypeError, RecursionError):  # The text contains a lone surrogate, or is nested too deep.
            return {}
        return value


def is_json(text: str) -> bool:
    """True if a text is JSON, with numbers of any size, as in a constraint."""
    try:
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _bounded(digits: str) -> float:
    """Return an integer, or a float if the number exceeds 64 bits."""
    return int(digits) if len(digits) < _DIGITS_OF_64_BITS else float(digits)


def _refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinity, which Python accepts."""
    raise ValueError(f"{name} is not JSON")


@dataclass
class Message:
    """The joined deltas of a choice."""

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
        """True if there are calls, all with valid arguments."""
        return bool(self.calls) and all(call.whole for call in self.calls)


class NotACallError(Exception):
    """The text is not a call, or the rest of the text does not continue a call."""


class ChannelParser:
    """Splits one text. `push` and `finish` return deltas that later text cannot change."""

    def __init__(self, format: Format) -> None:  # noqa: A002
        self.here = ""
        """The character to parse; "" before the first and after the last."""
        self.position = 0
        """The number of characters before `here`."""
        self.markup = ""
        """The text that was parsed as markup and may still turn out to be content."""
        self.calls = 0
        """The number of calls that have opened."""
        self.reasoning: tuple[int, int | None] | None = None
        """The beginning and end of the reasoning in the text; the end is None while it is open."""
        self._written: list[Delta] = []
        self._parse = self._from_first(format)
        next(self._parse)

    def push(self, text: str) -> list[Delta]:
        """Parse further text."""
        for character in text:
            self.here = character
            next(self._parse)
            self.position += 1
        return self._settled()

    def finish(self) -> list[Delta]:
        """Parse the end of the text."""
        self.here = ""
        for _ in self._parse:
            raise AssertionError("the format's parse did not stop at the end of the text")
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

    # Methods for writing deltas.

    def give(self, channel: Channel, text: str) -> None:
        """Add text to reasoning or to content."""
        if text:
            self._written.append(Delta(channel, text))

    def open_call(self, name: str) -> None:
        """Begin a call, which makes its markup final."""
        self._written.append(Delta(Channel.CALL, "", self.calls, name))
        self.calls += 1
        self.markup = ""

    def argue(self, text: str) -> None:
        """Add text to the arguments of the latest call."""
        if text:
            self._written.append(Delta(Channel.CALL, text, self.calls - 1))

    def mark(self, text: str) -> None:
        """Treat text as markup."""
        self.markup += text

    # Methods for parsing.

    def skip(self) -> Parse[None]:
        """Skip a character of markup."""
        self.mark(self.here)
        yield

    def skip_space(self) -> Parse[None]:
        while self.here and self.here in WHITE_SPACE:
            yield from self.skip()

    def expect(self, *words: str) -> Parse[str]:
        """Skip the next word, which must be one of `words`, and return the word.

        No word may be a prefix of another word. Raises NotACallError for other text.
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
        """Pass on text up to a marker.

        Skip the marker as markup and return it, or return "" if the text ended. A marker in `first` counts
        only at the beginning of the text. With `trim`, white space before a marker is markup.
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
        """Run another parse on the pending markup, which is treated as text, and on the following text."""
        here, text, self.markup = self.here, self.markup, ""
        for character in text:
            self.here = character
            next(parse)
        self.here = here
        yield from parse
