"""Parse event streams (WHATWG HTML, "Server-sent events") from bytes into events.

The parser reports every error and keeps every byte. It works on bytes and decodes whole lines, so the events
do not depend on how the network divided the stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS = 18
DATA = b"data: "
BLANK_LINE = b"\n\n"
"""The blank line that ends an event."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event that the parser dispatched."""

    data: str
    name: str
    """The value of the `event` field. Empty if the event has none."""
    id: str
    """The last event id. An id also applies to later events, until another id is sent."""
    retry: int | None
    """The last reconnection time that was sent, in milliseconds."""
    start: int
    """The offset of the event's first line.

    Comments directly before the event count as lines of the event.
    """
    end: int
    """The offset after the blank line that ends the event.

    If the blank line ends with CRLF, its LF is not counted, because the LF may never arrive.
    """


_FIELD = re.compile(rb"(?:data|event|id|retry)(?::|$)|:")
_LONGEST_QUOTED = 40


def stray_line(event: bytes) -> str:
    """Return the beginning of the first line after the event's data that is not a field.

    Empty if all lines are fields. Such lines come from servers that write text with line breaks as one `data`
    field. Clients ignore these lines.
    """
    lines = _LINE_END.split(event)
    begun = next((n for n, line in enumerate(lines) if line.startswith(b"data")), len(lines))
    stray = next((line for line in lines[begun:] if line and not _FIELD.match(line)), b"")
    return stray[:_LONGEST_QUOTED].decode("utf-8", "replace")


class EventStreamParser:
    """An incremental parser of an event stream.

    The caller passes bytes to `feed` as they arrive, and then calls `close`. `undecodable_at` is the offset
    of the first byte that is not UTF-8, or None. As the standard says, such bytes become U+FFFD.
    """

    def __init__(self) -> None:
        self.undecodable_at: int | None = None
        self._partial = bytearray()
        """The beginning of a line whose end has not arrived."""
        self._line_start = 0
        self._after_cr = False
        self._at_beginning = True
        self._block = bytearray()
        """The lines since the last blank line, with their line breaks."""
        self._block_start = 0
        self._block_has_fields = False
        self._data: list[str] = []
        self._name = ""
        self._id = ""
        self._retry: int | None = None

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add the next bytes and return the events that they complete."""
        events: list[ServerSentEvent] = []
        position = 0
        if self._after_cr and data:
            # The previous bytes ended with the CR of a CRLF.
            self._after_cr = False
            if data[0] == 0x0A:
                position = 1
                self._skip_line_feed()
        for match in _LINE_END.finditer(data, position):
            self._partial += data[position : match.start()]
            ending = match[0]
            if ending == b"\r" and match.end() == len(data):
                self._after_cr = True
            self._end_line(ending, events)
            position = match.end()
        self._partial += data[position:]
        return events

    def close(self, *, cut_off: bool = False) -> bytes:
        """End the stream, and return the bytes of an incomplete event.

        An incomplete event is not dispatched, because a part of the event may be missing. `cut_off`: True if
        the connection broke. In this case, an incomplete last character is not reported as an error.
        """
        partial = bytes(self._partial)
        if self._at_beginning and partial.startswith(_BOM):
            partial = partial[len(_BOM) :]
        try:
            partial.decode()
        except UnicodeDecodeError as error:
            # If the connection broke, an incomplete character is not an error in the text.
            if not (cut_off and error.reason == "unexpected end of data"):
                self._note_undecodable(self._line_start + len(self._partial) - len(partial) + error.start)
        # The remaining bytes are only comments, such as keep-alives, so no event has begun.
        if not self._block_has_fields and (not partial or partial.startswith(b":")):
            return b""
        return bytes(self._block) + bytes(self._partial)

    def _skip_line_feed(self) -> None:
        """Skip the LF of a CRLF whose CR was in the previous bytes."""
        self._line_start += 1
        if self._block:
            self._block += b"\n"
        else:
            self._block_start += 1

    def _end_line(self, ending: bytes, events: list[ServerSentEvent]) -> None:
        line = bytes(self._partial)
        self._partial.clear()
        line_start = self._line_start
        self._line_start += len(line) + len(ending)
        if self._at_beginning:
            self._at_beginning = False
            if line.startswith(_BOM):
                line = line[len(_BOM) :]
                line_start += len(_BOM)
        if line:
            self._block += line + ending
            self._take_field(line, line_start)
            return
        # The standard says that an event without a data line is not dispatched.
        if self._data:
            end = line_start + 1
            data = "\n".join(self._data)
            events.append(ServerSentEvent(data, self._name, self._id, self._retry, self._block_start, end))
        self._data.clear()
        self._name = ""
        self._block.clear()
        self._block_has_fields = False
        self._block_start = self._line_start

    def _take_field(self, line: bytes, line_start: int) -> None:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            self._note_undecodable(line_start + error.start)
            text = line.decode(errors="replace")
        if text.startswith(":"):
            return
        self._block_has_fields = True
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "data":
                self._data.append(value)
            case "event":
                self._name = value
            # The standard says to ignore an id with NUL, and a retry value with characters other than ASCII
            # digits.
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                self._retry = int(value)

    def _note_undecodable(self, offset: int) -> None:
        if self.undecodable_at is None:
            self.undecodable_at = offset


def parse_event_stream(
    body: bytes, *, cut_off: bool = False
) -> tuple[list[ServerSentEvent], bytes, int | None]:
    """Parse a whole body. Return its events, the bytes of an incomplete event, and the offset of the first
    byte that is not UTF-8.
    """
    events = _plain_events(body)
    if events is not None:
        return events, b"", None
    parser = EventStreamParser()
    events = parser.feed(body)
    rest = parser.close(cut_off=cut_off)
    return events, rest, parser.undecodable_at


def _plain_events(body: bytes) -> list[ServerSentEvent] | None:
    """Return the events of a UTF-8 body in which each event is one `data: …` line and a blank line, as
    servers usually write it. Return None for any other body. This function is a hundred times as fast as
    parsing each line.
    """
    # Comments, other fields and other line ends need the full parser.
    if not body.startswith(DATA) or not body.endswith(BLANK_LINE) or b"\r" in body:
        return None
    texts = body[len(DATA) : -len(BLANK_LINE)].split(BLANK_LINE + DATA)
    # A body with another number of line feeds has lines that are neither data lines nor blank.
    if body.count(b"\n") != len(BLANK_LINE) * len(texts) or not _decodable(body):
        return None
    ends = list(accumulate(len(DATA) + len(text) + len(BLANK_LINE) for text in texts))
    spans = zip(texts, [0, *ends], ends, strict=False)
    return [ServerSentEvent(text.decode(), "", "", None, start, end) for text, start, end in spans]


def _decodable(body: bytes) -> bool:
    """True if the bytes are valid UTF-8."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
