"""Logprob entries as on the wire:

`[logprob, token_id, null]`. The HTTP endpoints replace null by the token's text if a request asks for text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tokenwire_reference.core.request import LOGPROB_FAMILIES, Request

Entry = list[Any]
"""An entry: [logprob, token id, None]."""


def families(request: Request) -> list[str]:
    """Return the families of `LOGPROB_FAMILIES` that a request wants."""
    if not request.return_logprob:
        return []
    asked = (True, request.top_logprobs_num > 0, bool(request.token_ids_logprob), request.return_ranks)
    return [family for family, wanted in zip(LOGPROB_FAMILIES, asked, strict=True) if wanted]


def score(logits: Tensor, token_ids: Sequence[int], requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Return the logprob entries of each row's token, computed from the row of `logits` [rows, V] with the
    settings of the row's request.

    The result has one dictionary for each row, from family to entry. All rows are scored in one call, but
    each result depends only on its own row.
    """
    logprobs = torch.log_softmax(logits, -1)
    columns = torch.tensor(token_ids, device=logits.device)[:, None]
    chosen = logprobs.gather(-1, columns)
    values = chosen[:, 0].tolist()
    best: list[list[Entry]] = []
    ranks: list[int] = []
    if (most := max(request.top_logprobs_num for request in requests)) > 0:
        best = _best(logprobs, most)
    if any(request.return_ranks for request in requests):
        ranks = (1 + (logprobs > chosen).sum(-1)).tolist()
    scored: list[dict[str, Any]] = []
    for row, (value, token_id, request) in enumerate(zip(values, token_ids, requests, strict=True)):
        entries: dict[str, Any] = {"token_logprobs": [value, token_id, None]}
        if request.top_logprobs_num > 0:
            entries["top_logprobs"] = best[row][: request.top_logprobs_num]
        if ids := request.token_ids_logprob:
            picked = logprobs[row, list(ids)].tolist()
            entries["token_ids_logprobs"] = [[lp, i, None] for lp, i in zip(picked, ids, strict=True)]
        if request.return_ranks:
            entries["token_ranks"] = ranks[row]
        scored.append(entries)
    return scored


def _best(logprobs: Tensor, count: int) -> list[list[Entry]]:
    """Return the `count` best ids of each row, best first. Among equal logits, the lower id comes first."""
    count = min(count, logprobs.shape[-1])
    # `topk` may return any of several ties, so all values down to its least are examined.
    reached = logprobs >= logprobs.topk(count, dim=-1).values[:, -1:]
    best: list[list[Entry]] = [[] for _ in logprobs]
    for (row, i), lp in zip(reached.nonzero().tolist(), logprobs[reached].tolist(), strict=True):
        best[row].append([lp, i, None])
    return [sorted(row, key=lambda entry: (-entry[0], entry[1]))[:count] for row in best]
