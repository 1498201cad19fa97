"""The tensors of one step: every segment's tokens packed into one row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from tokenwire_reference.core.request_extras import WANTS_EMBEDDING
from tokenwire_reference.core.scheduler import Segment


@dataclass
class Batch:
    """The T packed tokens of a step. The last tokens are padding, so that T is one of the model's
    `row_sizes`.

    The tensors are for the GPU. On the host, `seats[i]` is the seat of segment i, `page_lists[i]` has the
    pages of its keys, and `spans[i]` has the positions that it computes.
    """

    packed: Tensor
    """A tensor that contains the four following tensors as rows: [4, T] int64."""
    input_ids: Tensor = field(init=False)
    positions: Tensor = field(init=False)
    slots: Tensor = field(init=False)
    """The slot of each token's keys and values: page * page_size + offset. Padding has slots in page 0."""
    seat_of: Tensor = field(init=False)
    """The seat of the sequence that a token attends to; -1 for padding, which attends to nothing."""
    logit_rows: Tensor
    """The packed rows whose logits are needed, padded like T: [R] int64."""
    seats: Sequence[int]
    page_lists: Sequence[Sequence[int]]
    spans: Sequence[tuple[int, int]]
    segments: Sequence[Segment] = ()
    """The segments that the tensors come from."""
    all_rows_wanted: bool = False
    """True if every row except padding needs logits, in order, and no adapter is used.

    Most decodes are such batches.
    """
    wants_hidden_states: bool = False
    """True if the hidden states of any row are needed."""
    adapted: bool = False
    """True if any request runs with an adapter."""

    def __post_init__(self) -> None:
        self.input_ids, self.positions, self.slots, self.seat_of = self.packed.unbind()


class WantedRows(NamedTuple):
    """The indices of one segment's rows, in the first dimension of the logits."""

    segment: Segment
    prompt: range
    """One row for each of the segment's `prompt_logprob_positions`."""
    sampled: range
    """The row that chooses the next token, then one for each draft."""
    embedding: int | None = None
    """The row whose hidden state is the requested embedding."""


def pack(
    segments: Sequence[Segment], page_size: int, pad: Callable[[int], int], device: torch.device
) -> tuple[Batch, list[WantedRows]]:
    """Return the batch of a step, and each segment's rows of the logits. `pad` rounds a number of rows up."""
    ids, positions, slots, seat_of = array("q"), array("q"), array("q"), array("q")
    rows = array("q")
    wanted: list[WantedRows] = []
    wants_hidden_states = False
    for segment in segments:
        sequence, start, end, drafts = segment
        base, first = len(ids) - start, len(rows)
        if scored := segment.prompt_logprob_positions:
            rows.extend([base + position for position in scored])
        prompt, sampled, embedding = range(first, len(rows)), range(0), None
        if segment.samples and WANTS_EMBEDDING.of(sequence.request):
            embedding = len(rows)
            rows.append(base + end - 1)
            wants_hidden_states = True
        elif segment.samples and sequence.rules.max_new_tokens > 0:
            sampled = range(len(rows), len(rows) + 1 + len(drafts))
            rows.append(base + end - 1)
            if drafts:
                rows.extend(range(base + end, base + end + len(drafts)))
        wants_hidden_states |= sequence.request.return_hidden_states
        wanted.append(WantedRows(segment, prompt, sampled, embedding))
        pages = sequence.pages
        if end - start == 1 and not drafts:  # a decode, which is the most frequent case
            ids.append(sequence.token_ids[start])
            positions.append(start)
            slots.append(pages[start // page_size] * page_size + start % page_size)
            seat_of.append(sequence.seat)
            continue
        span = range(start, end + len(drafts))
        ids.extend(sequence.token_ids[start:end])
        ids.extend(drafts)
        positions.extend(span)
        slots.extend([pages[p // page_size] * page_size + p % page_size for p in span])
        seat_of.extend([sequence.seat] * len(span))
    live = len(ids)
    adapted = any(segment.sequence.request.adapter is not None for segment in segments)
    all_rows_wanted = len(rows) == live and not wants_hidden_states and not adapted
    rows.extend([0] * (pad(max(len(rows), 1)) - len(rows)))
    padding = array("q", [0]) * (pad(live) - live)
    no_seat = array("q", [-1]) * len(padding)
    columns = ids + padding + positions + padding + slots + padding + seat_of + no_seat
    batch = Batch(
        packed=torch.frombuffer(columns, dtype=torch.int64).view(4, -1).to(device),
        logit_rows=torch.frombuffer(rows, dtype=torch.int64).to(device),
        seats=[segment.sequence.seat for segment in segments],
        page_lists=[segment.sequence.pages for segment in segments],
        spans=[(start, end + len(drafts)) for _, start, end, drafts in segments],
        segments=segments,
        all_rows_wanted=all_rows_wanted,
        wants_hidden_states=wants_hidden_states,
        adapted=adapted,
    )
    return batch, wanted
