"""The exchanges that the chapters show: each is legal, or violates the requirement that its caption names.

A block of a chapter is written as on the wire, without what every exchange has alike:

    ```text title="violation of counter-follows-ids"
    POST /generate {"input_ids": [34, 35], "stream": true}
    data: {"text": " a", "output_ids": [257], …}
    data: [DONE]
    ```

A request is one line. A line that begins with `data:` is one event, with the name that a line `event:` before
it says; other lines are the document of a whole
answer, behind its status where that is not 200. A request to `http://worker` comes with a twin to
`http://gateway`. A block below a line `<!-- recorded: FILE NAME… -->` shows these exchanges of a fixture:

    python tests/spec/worked_examples.py        writes these anew
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tokenwire.wire.capture import exchanges_of
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire.wire.foreign_capture import any_chunks

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r'^```text title="(?P<caption>[^"\n]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
_RECORDED = re.compile(
    r"^<!-- recorded: (?P<file>\S+) (?P<names>[^\n]+?) -->\n\n"
    r'```text title="(?P<caption>[^"\n]+)"\n.*?^```$',
    re.MULTILINE | re.DOTALL,
)
_REQUEST = re.compile(r"^(?P<method>POST|PUT|GET) (?:http://(?P<side>\w+))?(?P<path>/\S*)(?: (?P<body>.+))?$")
_ANSWER = re.compile(r"(?:(?P<status>[1-5]\d\d) )?(?P<body>.*)", re.DOTALL)
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_APART, _UNDER_WAY = timedelta(seconds=10), timedelta(seconds=0.5)
_WIDTH = 110
VIOLATION = "violation of "


@dataclass(frozen=True)
class WorkedExample:
    """One block of a chapter."""

    caption: str
    exchanges: tuple[Exchange, ...]

    @property
    def violated(self) -> str | None:
        """The requirement that it violates; None for what is legal."""
        return self.caption.removeprefix(VIOLATION) if self.caption.startswith(VIOLATION) else None


def examples(page: str) -> Iterator[WorkedExample]:
    """Yield the marked blocks of a page. Raises ValueError for one whose caption says neither."""
    for match in _BLOCK.finditer(page):
        caption = match["caption"]
        if not caption.startswith((VIOLATION, "legal")):
            raise ValueError(f"a block is called {caption!r}; call it 'legal: …' or '{VIOLATION}ID'")
        yield WorkedExample(caption, tuple(_exchanges(match["text"])))


def _exchanges(text: str) -> Iterator[Exchange]:
    """Yield the exchanges of a block, one after another; an abort is sent while the one before it
    is under way.
    """
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _REQUEST.match(line)]
    labels: Counter[str] = Counter()
    moment = _FIRST
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        request = _REQUEST.match(lines[start])
        assert request is not None  # it is a start
        scenario = request["side"] or "example"
        labels[scenario] += 1
        moment += _UNDER_WAY if "abort" in request["path"] else _APART
        name = f"{scenario}/{labels[scenario]}"
        yield _exchange(request, [*filter(None, lines[start + 1 : end])], scenario, name, moment)


def _exchange(
    request: re.Match[str], answer: Sequence[str], scenario: str, name: str, started: datetime
) -> Exchange:
    streamed = any(line.startswith("data:") for line in answer)
    events = (f"{line}\n" if line.startswith("event:") else f"{line}\n\n" for line in answer)
    found = _ANSWER.fullmatch("".join(events) if streamed else "\n".join(answer))
    assert found is not None  # the pattern takes all
    return Exchange(
        name,
        HttpRequest(request["method"], request["path"], json.loads(request["body"] or "null")),
        scenario,
        int(found["status"] or 200),
        (("content-type", "text/event-stream" if streamed else "application/json"),),
        (Read(0.1, found["body"].encode()),),
        Ending.COMPLETE,
        duration=1.0,
        started=started.isoformat(),
    )


def shown(exchange: Exchange) -> str:
    """Return an exchange as a block shows it."""
    request, body = exchange.request, exchange.body.decode()
    asked = f"{request.method} {request.path} {json.dumps(request.body, ensure_ascii=False)}"
    if body.startswith(("data:", "event:")):
        return "\n".join([asked, *filter(None, body.splitlines())])
    status = "" if exchange.status == 200 else f"{exchange.status} "
    return f"{asked}\n{status}{_wrapped(json.loads(body))}"


def _wrapped(value: object, indent: str = "") -> str:
    """JSON in as few lines as fit the width."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= _WIDTH or not isinstance(value, dict | list):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_wrapped(item, inner)}" for key, item in value.items()]
    else:
        parts = [_wrapped(item, inner) for item in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + "\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{end}"


def with_recorded(page: str) -> str:
    """Return a page whose recorded blocks show what the fixtures hold. Raises KeyError for an
    unknown exchange.
    """

    def written(match: re.Match[str]) -> str:
        capture = ROOT / "fixtures" / match["file"]
        found = {exchange.name: exchange for exchange in exchanges_of(any_chunks(capture))}
        head = f"<!-- recorded: {match['file']} {match['names']} -->\n\n"
        blocks = "\n".join(shown(found[name]) for name in match["names"].split())
        return f'{head}```text title="{match["caption"]}"\n{blocks}\n```'

    return _RECORDED.sub(written, page)


def chapters() -> Iterator[Path]:
    """Return the pages of the specification that may show exchanges."""
    return (path for path in sorted((ROOT / "spec").glob("*.md")) if path.name != "TRACEABILITY.md")


if __name__ == "__main__":
    for chapter in chapters():
        chapter.write_text(with_recorded(chapter.read_text("utf-8")), "utf-8")
