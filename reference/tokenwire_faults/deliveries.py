"""Edits of the parts in which an output is delivered: rows of the output streamer, text, and emissions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tokenwire_faults.primitives import Change, changed
from tokenwire_reference.core.detokenizer import Detokenizer
from tokenwire_reference.core.output_streamer import WHOLE_INTERVAL
from tokenwire_reference.core.request import OWN_SERIES, Request, Row
from tokenwire_reference.doors.reader import Emission, Reader


@dataclass
class OutputRow:
    """One range of a record with its own lists, which cover exactly the tokens `start` to `end`."""

    start: int
    end: int
    output_ids: Sequence[int]
    series: Mapping[str, Sequence[Any]]
    prompt_series: Mapping[str, Sequence[Any]]
    prompt_tokens: int
    cached_tokens: int
    cached_tokens_details: Mapping[str, Any] | None

    @classmethod
    def of(cls, row: Row) -> OutputRow:
        record, tokens = row.record, slice(row.start, row.end)
        return cls(
            row.start,
            row.end,
            record.output_ids[tokens],
            {name: values[tokens] for name, values in row.series.items()},
            record.prompt_series,
            len(record.prompt_token_ids),
            record.cached_tokens,
            record.cached_tokens_details,
        )


class AlteredRecord:
    """A record with altered rows. Its other attributes are those of the original record."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.output_ids: list[int] = []
        self.series: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def append(self, row: OutputRow) -> None:
        self.output_ids += row.output_ids
        for name, entries in row.series.items():
            # A key that first occurs at a later token has null for all earlier tokens.
            self.series.setdefault(name, [None] * row.start).extend(entries)
        for values in self.series.values():
            values.extend([None] * (row.end - len(values)))
        if row.start == 0:
            self.prompt_series = row.prompt_series
        self.cached_tokens = row.cached_tokens
        self.cached_tokens_details = row.cached_tokens_details


Delivered = TypeVar("Delivered", OutputRow, Emission)

MOMENTS: Mapping[str, Any] = {
    "first": lambda emission: emission.first and emission.output_ids,
    "finish": lambda emission: emission.finish is not None,
    "stop": lambda emission: emission.finish is not None and emission.finish.type == "stop",
    "abort": lambda emission: emission.finish is not None and emission.finish.type == "abort",
    "several": lambda emission: len(emission.output_ids) > 1,
}
_FIELDS = {"output_ids", "text", "completion_tokens"}
_RECORD_FIELDS = {
    "prompt_series",
    "cached_tokens_device",
    "cached_tokens_host",
    "cached_tokens_storage",
}

CUTS = frozenset({"so_far", "sliced", "last_piece", "without_new"})
"""Changes that apply only to emissions. They imitate a wrong cursor; see `_cut`."""


def edited_emission(reader: Reader, emission: Emission, edits: Mapping[str, Any]) -> Emission:
    """Return an emission with fields and series changed by primitives, or cut as if by a wrong cursor.

    The name `series` means all series, `info` the series of customized_info, and `logprobs` all other series.
    `at` names the emissions to edit.
    """
    if "at" in edits and not MOMENTS[edits["at"]](emission):
        return emission
    fields: dict[str, Any] = {}
    of_the_record: dict[str, Any] = {}
    series = dict(emission.series)
    for name, change in edits.items():
        if name in _FIELDS:
            fields[name] = _cut(reader, emission, name, getattr(emission, name), change)
        elif name in _RECORD_FIELDS:
            of_the_record[name] = changed(getattr(emission.record, name), change)
        elif name != "at":
            for key in _named(name, emission):
                series[key] = _cut(reader, emission, key, series[key], change)
    if of_the_record:
        fields["record"] = replace(emission.record, **of_the_record)
    return replace(emission, series=series, **fields)


def info_keys(delivered: Emission | OutputRow) -> Collection[str]:
    """Return the series that a sampler backend wrote."""
    return delivered.series.keys() - OWN_SERIES


def _named(name: str, emission: Emission | OutputRow) -> Iterator[str]:
    """Yield the series of an emission that a name refers to."""
    for key in emission.series:
        if name in {key, "series", "logprobs" if key in OWN_SERIES else "info"}:
            yield key


def _cut(reader: Reader, emission: Emission, name: str, value: Any, change: Change) -> Any:
    """Return the changed value of a field or a series of an emission."""
    sent, end = reader.taken_ids, emission.completion_tokens
    match change:
        case "so_far" if name == "text":
            return reader.text
        case "so_far":
            return (reader.request.output_ids if name == "output_ids" else reader.request.series[name])[:end]
        case "sliced" if name == "completion_tokens":
            return end - sent
        case "sliced":
            return value[reader.taken_text if name == "text" else sent :]
        case "last_piece":
            return value[max(0, end - 1) // WHOLE_INTERVAL * WHOLE_INTERVAL :]
        case "without_new":
            return value[: len(value) - (end - sent)]
    return changed(value, change)


def edited_row(row: OutputRow, edits: Mapping[str, Change]) -> OutputRow:
    """Return a row with its series, or the prompt's (`input_…`), changed by primitives."""
    series, prompt = dict(row.series), dict(row.prompt_series)
    for name, change in edits.items():
        if name.startswith("input_"):
            if prompt.get(name):
                prompt[name] = changed(list(prompt[name]), change)
        else:
            for key in _named(name, row):
                series[key] = changed(list(series[key]), change)
    return replace(row, series=series, prompt_series=prompt)


def with_series(delivered: Delivered, **changes: Any) -> Delivered:
    """Return a row or an emission with some of its series replaced."""
    return replace(delivered, series={**delivered.series, **changes})


class EditedDetokenizer(Detokenizer):
    """A detokenizer whose text is changed by primitives, both in `push` and in `flush`."""

    def __init__(self, true: Detokenizer, push: Change = "same", flush: Change = "same") -> None:
        super().__init__(true.spelling)
        self._push, self._flush = push, flush

    def push(self, ids: Sequence[int]) -> str:
        text: str = changed(super().push(ids), self._push)
        return text

    def flush(self) -> str:
        text: str = changed(super().flush(), self._flush)
        return text
