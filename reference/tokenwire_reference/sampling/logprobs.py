"""Logprob entries as on the wire: `[logprob, token_id, null]`. The API puts text last, if asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tokenwire_reference.request import Request

FAMILIES = ("token_logprobs", "top_logprobs", "token_ids_logprobs", "token_ranks")
"""Wire names without `input_` or `output_`."""

Entry = list[Any]
"""[logprob, token id, None]"""


def families(request: Request) -> list[str]:
    """Those of `FAMILIES` that a request asked for."""
    if not request.return_logprob:
        return []
    asked = (True, request.top_logprobs_num > 0, bool(request.token_ids_logprob), request.return_ranks)
    return [family for family, wanted in zip(FAMILIES, asked, strict=True) if wanted]


def score(logits: Tensor, token_ids: Sequence[int], request: Request) -> list[dict[str, Any]]:
    """What a request wants to know of `token_ids`, each scored by its row of `logits` [len(token_ids), V].

    One dictionary for each row, from family to entry.
    """
    logprobs = torch.log_softmax(logits, -1)
    scored: dict[str, list[Any]] = {}
    for family in families(request):
        match family:
            case "token_logprobs":
                columns = torch.tensor(token_ids, device=logits.device)[:, None]
                chosen = logprobs.gather(-1, columns)[:, 0].tolist()
                scored[family] = [
                    [lp, token_id, None] for lp, token_id in zip(chosen, token_ids, strict=True)
                ]
            case "token_ranks":
                columns = torch.tensor(token_ids, device=logits.device)[:, None]
                scored[family] = (1 + (logprobs > logprobs.gather(-1, columns)).sum(-1)).tolist()
            case "top_logprobs":
                scored[family] = _best(logprobs, request.top_logprobs_num)
            case _:
                ids = list(request.token_ids_logprob)
                picked = logprobs[:, ids].tolist()
                scored[family] = [[[lp, i, None] for lp, i in zip(row, ids, strict=True)] for row in picked]
    return [dict(zip(scored, entries, strict=True)) for entries in zip(*scored.values(), strict=True)]


def _best(logprobs: Tensor, count: int) -> list[list[Entry]]:
    """The `count` best ids of each row, best first, equals by id."""
    count = min(count, logprobs.shape[-1])
    # Which of several equals `topk` finds is not said, so all that reach its least value are looked at.
    reached = logprobs >= logprobs.topk(count, dim=-1).values[:, -1:]
    best: list[list[Entry]] = [[] for _ in logprobs]
    for (at, i), lp in zip(reached.nonzero().tolist(), logprobs[reached].tolist(), strict=True):
        best[at].append([lp, i, None])
    return [sorted(row, key=lambda entry: (-entry[0], entry[1]))[:count] for row in best]
