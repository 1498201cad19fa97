"""The tensors of one step: every segment's tokens packed into one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenwire_reference.cache.kv import PADDING_PAGE
from tokenwire_reference.scheduling.scheduler import Segment


@dataclass(frozen=True)
class Batch:
    """T packed tokens; the last of them are padding, so that T is a number of rows that keeps bits stable.

    The tensors say everything that a GPU needs. On the host, `page_lists[i]` and `spans[i]` say where the
    keys of segment i lie and which positions it computes.
    """

    input_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64."""
    slots: Tensor
    """[T] int64: page * page_size + offset, where keys and values go. Padding goes to page 0."""
    sequence_of: Tensor
    """[T] int64: the row of `page_table` that a token attends to; -1 for padding, which attends to none."""
    page_table: Tensor
    """[segments, most pages] int64, filled up with zeros."""
    logit_rows: Tensor
    """[R] int64: the packed rows whose logits are wanted, padded like T."""
    page_lists: Sequence[Sequence[int]]
    spans: Sequence[tuple[int, int]]
    segments: Sequence[Segment] = ()
    """Where all this comes from."""
    all_rows_wanted: bool = False
    """Whether every live row wants its logits, in order, and no hidden state: so do all decodes."""
    wants_hidden_states: bool = False
    """Whether any row wants its hidden state."""


@dataclass(frozen=True)
class WantedRows:
    """Where the wanted logits of one segment lie in the first dimension of the logits."""

    segment: Segment
    prompt: slice
    """One row for each of the segment's `prompt_logprob_positions`."""
    sampled: range
    """The row that chooses the next token, then one for each draft."""
    embedding: int | None = None
    """The row whose hidden state is the embedding that was asked for."""


def pack(
    segments: Sequence[Segment], page_size: int, pad: Callable[[int], int], device: torch.device
) -> tuple[Batch, list[WantedRows]]:
    """The batch of a step, and where each segment finds its logits. `pad` rounds a number of rows up."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sequence_of: list[int] = []
    rows: list[int] = []
    wanted: list[WantedRows] = []
    for index, segment in enumerate(segments):
        sequence, span = segment.sequence, segment.positions
        base, first = len(ids) - segment.start, len(rows)
        rows += [base + position for position in segment.prompt_logprob_positions]
        prompt, sampled, embedding = slice(first, len(rows)), range(0), None
        if segment.samples and sequence.request.wants_embedding:
            embedding = len(rows)
            rows.append(base + segment.end - 1)
        elif segment.samples and sequence.rules.max_new_tokens > 0:
            sampled = range(len(rows), len(rows) + 1 + len(segment.drafts))
            rows += range(base + segment.end - 1, base + span.stop)
        wanted.append(WantedRows(segment, prompt, sampled, embedding))
        ids += [*sequence.token_ids[segment.start : segment.end], *segment.drafts]
        positions += span
        slots += [sequence.pages[p // page_size] * page_size + p % page_size for p in span]
        sequence_of += [index] * len(span)
    live = len(ids)
    wants_hidden_states = any(each.embedding is not None for each in wanted)
    all_rows_wanted = len(rows) == live and not wants_hidden_states
    rows.extend([0] * (pad(max(len(rows), 1)) - len(rows)))
    columns = ((ids, 0), (positions, 0), (slots, 0), (sequence_of, -1))
    packed = torch.tensor(
        [[*column, *[fill] * (pad(live) - live)] for column, fill in columns], device=device
    )
    page_lists = [segment.sequence.pages for segment in segments]
    width = max(map(len, page_lists))
    table = [[*pages, *[PADDING_PAGE] * (width - len(pages))] for pages in page_lists]
    batch = Batch(
        input_ids=packed[0],
        positions=packed[1],
        slots=packed[2],
        sequence_of=packed[3],
        page_table=torch.tensor(table, device=device),
        logit_rows=torch.tensor(rows, device=device),
        page_lists=page_lists,
        spans=[(segment.positions.start, segment.positions.stop) for segment in segments],
        segments=segments,
        all_rows_wanted=all_rows_wanted,
        wants_hidden_states=wants_hidden_states,
    )
    return batch, wanted
