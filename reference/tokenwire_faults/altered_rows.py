"""Rows that say something else than the record: what a fault of the way out sends in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.core.request import Request, Row


@dataclass
class OutputRow:
    """One range of a record, with lists of its own. Every list covers exactly the tokens `start` to `end`."""

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
    """A record that is made of altered rows; all else is as in the request's own."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.output_ids: list[int] = []
        self.series: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def append(self, row: OutputRow) -> None:
        self.output_ids += row.output_ids
        for name, entries in row.series.items():
            # A key that starts late has nulls for the tokens before it.
            self.series.setdefault(name, [None] * row.start).extend(entries)
        for values in self.series.values():
            values.extend([None] * (row.end - len(values)))
        if row.start == 0:
            self.prompt_series = row.prompt_series
        self.cached_tokens = row.cached_tokens
        self.cached_tokens_details = row.cached_tokens_details
