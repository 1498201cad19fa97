"""Fuzz the parser of event streams: `python -m proofs.fuzz_event_stream [libFuzzer's options]`, with atheris.

The tests check the same properties with inputs from hypothesis.
"""

from __future__ import annotations

import importlib
import sys

from tokenwire.wire.event_stream import EventStreamParser, parse_event_stream


def examine(data: bytes) -> None:
    """Check the properties of the parser on some bytes. Raises AssertionError.

    - It never raises an exception, and its result does not depend on how the bytes are divided.
    - Events lie in the body one after another.
    - Its text is no longer than the bytes, except for U+FFFD in place of invalid bytes.
    """
    events, rest, undecodable_at = parse_event_stream(data)
    for cut in {0, 1, len(data) // 2, len(data) - 1} if data else ():
        parser = EventStreamParser()
        again = [*parser.feed(data[:cut]), *parser.feed(data[cut:])]
        assert (again, parser.close(), parser.undecodable_at) == (events, rest, undecodable_at), cut
    behind = 0
    for event in events:
        assert behind <= event.start < event.end <= len(data)
        assert len(event.data) <= event.end - event.start
        behind = event.end
    assert rest == b"" or (data.endswith(rest) and behind <= len(data) - len(rest))
    assert (undecodable_at is None) == (data.decode(errors="replace").encode() == data)


def main() -> None:
    atheris = importlib.import_module("atheris")
    atheris.instrument_func(EventStreamParser.feed)
    atheris.Setup(sys.argv, examine)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
