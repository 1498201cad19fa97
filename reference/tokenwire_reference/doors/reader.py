"""Reads the record of a request for its consumer. The consumer takes everything that is pending as one slice
of ids, text and every series.

A row limits how far the record may be read. A consumer that wakes up late takes one longer range, so
coalescing is lossless by construction (sgl-project/sglang PR #27205); no emission shares a growing list.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tokenwire_reference.core.detokenizer import Detokenizer
from tokenwire_reference.core.request import FinishReason, Request, Row, SamplingParams


class Delivery(Enum):
    """The part of a record that each emission contains."""

    CUMULATIVE = "cumulative"
    """Each emission contains the record from its beginning. The last emission is the whole answer."""
    INCREMENTAL = "incremental"
    """Each emission contains only what no earlier emission contained."""


@dataclass(slots=True)
class Emission:
    """The part of a record that a consumer took. Its lists are not shared with other emissions, and all cover
    the same range of tokens.

    The class is not frozen, because a frozen dataclass takes three times as long to create, and each token
    may have an emission.
    """

    index: int
    record: Request
    first: bool
    output_ids: Sequence[int]
    text: str
    series: Mapping[str, Sequence[Any]]
    completion_tokens: int
    """The number of output tokens up to and including this emission, in both delivery modes."""
    finish: FinishReason | None
    seconds: float
    """The time from the arrival of the request to this emission, in seconds."""

    @property
    def weight_versions(self) -> list[dict[str, Any]]:
        """The spans of output tokens with one version of the weights each, up to and including this
        emission.
        """
        count = self.completion_tokens
        changes = [change for change in self.record.weight_changes if not change[1] or change[1] < count]
        return _spans(changes, count)

    @property
    def prompt_weight_versions(self) -> list[dict[str, Any]]:
        """The spans of prompt tokens that one version of the weights computed each; empty if not reported."""
        return _spans(self.record.prompt_weights, len(self.record.prompt_token_ids))


def _spans(changes: Sequence[tuple[str, int]], count: int) -> list[dict[str, Any]]:
    ends = [*(start for _, start in changes[1:]), count]
    return [
        {"version": version, "start": start, "end": end}
        for (version, start), end in zip(changes, ends[: len(changes)], strict=True)
    ]


@dataclass
class Reader:
    """The state of one request's record: the readable part, the part taken by its consumer, and the text of
    its ids.
    """

    index: int
    request: Request
    detokenizer: Detokenizer | None
    started: float = field(default_factory=time.monotonic)
    shown: list[str] = field(default_factory=list)
    """The text that was already taken, in parts. They are joined when the whole text is needed."""
    new: list[str] = field(default_factory=list)
    """The text that has not been taken yet, in parts."""
    row: Row | None = None
    """The last row."""
    grown: float = 0.0
    """The time of the last row."""
    taken_ids: int = 0
    taken_text: int = 0
    taken_finish: bool = False

    @property
    def finish(self) -> FinishReason | None:
        return self.row.finish if self.row else None

    @property
    def end(self) -> int:
        """The number of delivered tokens of the record."""
        return self.row.end if self.row else 0

    @property
    def text(self) -> str:
        if len(self.shown) > 1:
            self.shown = ["".join(self.shown)]
        return "".join([*self.shown, *self.new])

    def append(self, row: Row) -> None:
        """Add a row. Raises ValueError if the row does not begin at the end of the last row."""
        if row.start != self.end or self.finish is not None:
            raise ValueError(
                f"row {row.start}:{row.end} of request {self.request.rid!r} does not follow its "
                f"{self.end} tokens"
            )
        self.row, self.grown = row, time.monotonic()
        if self.detokenizer is not None:
            ids = row.record.output_ids[row.start : row.end]
            if row.finish is None:
                self.new.append(self.detokenizer.push(ids))
            else:
                text = finish_text(self.detokenizer, self.text, ids, row.finish, self.request.sampling)
                text = self.request.seams.text(self, text)
                self.shown, self.new = [text[: self.taken_text]], [text[self.taken_text :]]

    def fail(self, row: Row, error: Exception) -> None:
        """End the record after the delivered rows, with a finish reason that reports a
        failure of the server.
        """
        self.row = row._replace(end=self.end, finish=FinishReason.of_failure(error))
        self.grown = time.monotonic()

    @property
    def ready(self) -> int:
        """Return the number of ids that can be taken. The ids of an open run of byte tokens wait."""
        waiting = 0 if self.detokenizer is None or self.finish else self.detokenizer.waiting
        return self.end - waiting

    @property
    def pending(self) -> bool:
        return self.taken_ids < self.ready or (self.finish is not None and not self.taken_finish)

    def take(self, delivery: Delivery) -> Emission:
        """Take everything that is pending, as one emission."""
        row = self.row
        assert row is not None, "nothing is pending before the first row"
        incremental = delivery is Delivery.INCREMENTAL
        tokens = slice(self.taken_ids if incremental else 0, self.ready)
        emission = Emission(
            index=self.index,
            record=row.record,
            # An emission without ids has the finish, so it is the last emission.
            first=self.taken_ids == 0,
            output_ids=row.record.output_ids[tokens],
            text="".join(self.new) if incremental else self.text,
            series={name: values[tokens] for name, values in row.series.items()},
            completion_tokens=tokens.stop,
            finish=row.finish,
            seconds=(self.grown if row.finish else time.monotonic()) - self.started,
        )
        emission = self.request.seams.taken(self, emission)
        self.shown += self.new
        self.taken_text += sum(map(len, self.new))
        self.taken_ids, self.new = tokens.stop, []
        self.taken_finish = row.finish is not None
        return emission


def finish_text(
    detokenizer: Detokenizer, text: str, ids: Sequence[int], finish: FinishReason, sampling: SamplingParams
) -> str:
    """Return the whole text of a request, from the text so far and the ids of its last row.

    The text of a stop id is left out, and the text is cut before the stop string that ended the generation:
    at its first occurrence that the last id completed. An earlier occurrence, which the stop rules did not
    see, stays in the text. The match of a stop pattern also stays. With `no_stop_trim`, the text of the stop
    id and the stop string are kept, but not the text after the stop string.
    """
    matched, keep = finish.matched, sampling.no_stop_trim
    text += detokenizer.push(ids[:-1])
    before_last = len(text + detokenizer.tail)
    if isinstance(matched, int) and not keep:
        return text + detokenizer.flush()
    text += detokenizer.push(ids[-1:]) + detokenizer.flush()
    if isinstance(matched, str) and matched in sampling.stop:
        begin = text.find(matched, max(0, before_last - len(matched) + 1))
        return text if begin < 0 else text[: begin + len(matched) * keep]
    return text
