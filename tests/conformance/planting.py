"""Faults that are planted into a recorded capture: what a report describes and nobody has recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

Line = dict[str, Any]
Document = dict[str, Any]
Edit = Callable[[list[Document]], list[Document]]
"""Turns the events of a stream, or the document of a whole answer, into those of a faulty server."""


def planted(lines: list[Line], edit: Edit, asks: Mapping[str, Any], *, streams: bool = False) -> list[Line]:
    """Return a capture whose answers are edited, and whose requests have more fields.

    With `streams`, whole answers are not edited.
    """
    edited: list[Line] = []
    streamed, reads = False, list[Line]()
    for line in deepcopy(lines):
        if line["kind"] == "request":
            line["body"] |= asks
            streamed, reads = bool(line["body"].get("stream")), []
        if line["kind"] == "read":
            reads.append(line)
            continue
        if line["kind"] == "end" and reads:
            edited += list(_edited(reads, edit, streamed=streamed)) if streamed or not streams else reads
        if line["kind"] == "response":
            # an edited body has another length
            line["headers"] = [pair for pair in line["headers"] if pair[0] != "content-length"]
        edited.append(line)
    return edited


def _edited(reads: list[Line], edit: Edit, *, streamed: bool) -> Iterator[Line]:
    text = "".join(line["text"] for line in reads)
    if not streamed:
        yield {**reads[0], "text": json.dumps(edit([json.loads(text)])[0])}
        return
    data = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    documents = edit([json.loads(event) for event in data if event != "[DONE]"])
    events = [*map(json.dumps, documents), *(event for event in data if event == "[DONE]")]
    yield {**reads[-1], "text": "".join(f"data: {event}\n\n" for event in events)}


def choices(documents: list[Document]) -> Iterator[Document]:
    """Yield each choice of the documents."""
    for document in documents:
        yield from document.get("choices", ())


def unchanged(documents: list[Document]) -> list[Document]:
    """Return what was recorded: the fault is that a field of the request is ignored."""
    return documents


def tokens_named_by_ids(documents: list[Document]) -> list[Document]:
    """Name the tokens of logprobs by their ids, as `return_tokens_as_token_ids` asks."""
    return _named(documents, lambda name, data: data)


def bytes_of_names(documents: list[Document]) -> list[Document]:
    """Name the tokens by their ids, and give the bytes of these names."""
    return _named(documents, lambda name, data: list(name.encode()))


def tokens_named_by_next_ids(documents: list[Document]) -> list[Document]:
    """Name each token by the id behind its own."""
    return _named(documents, lambda name, data: data, shift=1)


def _named(documents: list[Document], data_of: Callable[[str, Any], Any], shift: int = 0) -> list[Document]:
    for choice in choices(documents):
        entries = (choice.get("logprobs") or {}).get("content") or ()
        for token_id, entry in zip(choice.get("token_ids") or (), entries, strict=False):
            name = f"token_id:{token_id + shift}"
            for one in (entry, entry["top_logprobs"][0]):
                one |= {"token": name, "bytes": data_of(name, one["bytes"])}
    return documents


def ids_come_again(documents: list[Document]) -> list[Document]:
    """Give the last id of the event before again, at the beginning of each event."""
    before: list[int] = []
    for choice in choices(documents):
        own = choice.get("token_ids") or []
        if own:
            choice["token_ids"] = [*before[-1:], *own]
            before = own
    return documents


def text_comes_late(documents: list[Document]) -> list[Document]:
    """Give the text of each event in the next one, so that the last text is lost."""
    held = ""
    for choice in choices(documents):
        delta = choice.get("delta")
        if delta and "content" in delta:
            held, delta["content"] = delta["content"], held
    return documents


def events_are_lost(documents: list[Document]) -> list[Document]:
    """Leave out every second event with tokens, but not the last one."""
    tokens = [document for document in documents if any(one.get("token_ids") for one in choices([document]))]
    lost = {id(document) for document in tokens[1:-1:2]}
    return [document for document in documents if id(document) not in lost]


EDITS: Mapping[str, Edit] = {
    edit.__name__: edit
    for edit in (
        bytes_of_names,
        events_are_lost,
        ids_come_again,
        text_comes_late,
        tokens_named_by_ids,
        tokens_named_by_next_ids,
        unchanged,
    )
}
