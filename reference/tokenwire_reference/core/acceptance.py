"""Turns the logits of a step into tokens, and appends the tokens to the records of their requests.

Without drafts, a sequence has one row and gets one token. With drafts, row j was computed as if the first j
drafts were right. The token of row j is accepted if these drafts are right. So a draft changes the number of
tokens in a step, never the tokens. The stop rules examine each accepted token separately, as if each step had
one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from torch import Tensor

from tokenwire_reference.core import logprobs
from tokenwire_reference.core.backends import make_sampler_backend
from tokenwire_reference.core.batch import WantedRows
from tokenwire_reference.core.hooks import Logits
from tokenwire_reference.core.request import (
    HIDDEN_STATES,
    MASK,
    MASK_LOGPROBS,
    OWN_SERIES,
    Request,
    alone,
)
from tokenwire_reference.core.request_extras import HIDDEN_ROWS
from tokenwire_reference.core.sampling import (
    OutputCounts,
    SamplingRow,
    adjust,
    choose,
    rows_without_numbers,
    support,
)
from tokenwire_reference.core.scheduler import Segment

NOTHING: frozenset[int] = frozenset()


class TokenAcceptance:
    """Samples tokens and accepts drafts, with the sampler backend of one engine."""

    def __init__(self, sampling_backend: str, eos_token_ids: frozenset[int], moved: Logits) -> None:
        self.sampling_backend = sampling_backend
        self._backend = make_sampler_backend(sampling_backend)
        self._eos_token_ids = eos_token_ids
        self._moved = moved
        self._counts: dict[str, OutputCounts] = {}
        """The output counts of the requests with penalties in the last step, by request id.

        If a request is not in a step, its counts are dropped and computed again later.
        """

    def accept(self, wanted: Sequence[WantedRows], logits: Tensor) -> list[int]:
        """Sample tokens for every segment that needs a token.

        Return the number of right drafts for each segment in `wanted`.
        """
        sampled = [rows for rows in wanted if rows.sampled]
        if not sampled:
            return [0] * len(wanted)
        requests = [rows.segment.sequence.request for rows in sampled for _ in rows.sampled]
        self._follow(requests, logits)
        sampling = [self._sampling_row(rows.segment, j) for rows in sampled for j in range(len(rows.sampled))]
        adjusted = adjust(_rows(logits, sampled), sampling)
        rows_of = zip(requests, sampling, strict=True)
        positions = ((request, row.position + 1 - len(request.prompt_token_ids)) for request, row in rows_of)
        adjusted = self._moved.sway(adjusted, positions)
        token_ids = choose(adjusted, sampling)
        customized_info = self._customized_info(adjusted, sampling, token_ids)
        # Store the error in place of the backend's values. `_extend` raises it, so that only this row's
        # request fails.
        for row in rows_without_numbers(adjusted):
            customized_info[row] = ArithmeticError("the model's logits are not finite numbers")
        entries = _entries(adjusted, sampling, token_ids, requests)
        accepted, row = [], 0
        for rows in wanted:
            last = row + len(rows.sampled)
            attached = entries[row:last], customized_info[row:last]
            request = rows.segment.sequence.request
            accepted.append(alone(request, _extend, rows.segment, token_ids[row:last], *attached) or 0)
            row = last
        return accepted

    def _follow(self, requests: Sequence[Request], logits: Tensor) -> None:
        """Update the output counts of the requests with penalties in this step."""
        counts: dict[str, OutputCounts] = {}
        for request in requests:
            if request.sampling.penalises and request.rid not in counts:
                known = self._counts.get(request.rid)
                # An earlier request may have had the same id, so the list is compared.
                if known is None or known.output_ids is not request.output_ids:
                    known = OutputCounts(request.output_ids, logits)
                counts[request.rid] = known
        self._counts = counts

    def _sampling_row(self, segment: Segment, right: int) -> SamplingRow:
        """Return the sampling parameters of the row that follows `right` correct drafts."""
        request = segment.sequence.request
        early = len(request.output_ids) + right < request.sampling.min_new_tokens
        banned = self._eos_token_ids.union(request.sampling.stop_token_ids) if early else NOTHING
        if words := request.sampling.banned_words:
            banned |= last_ids(words, request.output_ids, segment.drafts[:right])
        counts = self._counts.get(request.rid) if self._counts else None
        times = None if counts is None else counts.times(segment.drafts[:right])
        allowed = None
        if request.sampling.constraint is not None and request.finish is None:
            allowed = alone(request, _allowed, request, segment.drafts[:right])
        return SamplingRow(request.sampling, request.seed, segment.end - 1 + right, times, banned, allowed)

    def _customized_info(
        self, adjusted: Tensor, rows: Sequence[SamplingRow], token_ids: Sequence[int]
    ) -> list[Mapping[str, Any] | Exception]:
        """Return the backend's values for each row; for a row at which the backend fails, its error.

        The backend is called for all rows at once. If this call fails, the backend is called for each row
        alone, to find the faulty row. Raises ValueError if the number of values differs from the number of
        rows: then the backend is wrong, not a request.
        """
        try:
            customized_info = self._backend(adjusted, rows, token_ids)
        except Exception as error:
            if len(rows) == 1:
                return [error]
            slices = [slice(row, row + 1) for row in range(len(rows))]
            return [self._customized_info(adjusted[part], rows[part], token_ids[part])[0] for part in slices]
        if not customized_info:
            return [{}] * len(rows)
        for key, values in customized_info.items():
            if len(values) != len(token_ids) or key in OWN_SERIES:
                raise ValueError(
                    f"sampler backend {self.sampling_backend!r} gave {len(values)} values under {key!r} for "
                    f"{len(token_ids)} rows; give one for each row, under a key that is not the engine's own"
                )
        return [{key: values[i] for key, values in customized_info.items()} for i in range(len(rows))]


def last_ids(
    words: Sequence[tuple[int, ...]], output_ids: Sequence[int], drafts: Sequence[int]
) -> frozenset[int]:
    """Return the last id of each banned word whose other ids are the latest ids of the output."""
    longest = max(map(len, words)) - 1
    latest = (*output_ids[max(0, len(output_ids) - longest) :], *drafts)
    return frozenset(word[-1] for word in words if latest[len(latest) - len(word) + 1 :] == word[:-1])


def _allowed(request: Request, drafts: Sequence[int]) -> bytes:
    """Return a mask with one bit for each id that the constraint of a request permits next.

    Raises the errors of the request's matcher.
    """
    if request.matcher is None:
        assert request.sampling.constraint is not None, "it is asked of requests that have one"
        request.matcher = request.sampling.constraint.start()
    return request.matcher.allowed(request.output_ids, drafts)


def _rows(logits: Tensor, sampled: Sequence[WantedRows]) -> Tensor:
    """Return the rows of logits from which tokens are sampled.

    Consecutive rows, as in decodes, are not copied.
    """
    first, last = sampled[0].sampled.start, sampled[-1].sampled.stop
    if last - first == sum(len(rows.sampled) for rows in sampled):
        return logits[first:last]
    return logits[[row for rows in sampled for row in rows.sampled]]


def _entries(
    adjusted: Tensor, sampling: Sequence[SamplingRow], token_ids: Sequence[int], requests: Sequence[Request]
) -> list[dict[str, Any]]:
    """Return the logprob entries of each row's token, by wire name, as the request of the row wants them."""
    entries: list[dict[str, Any]] = [{} for _ in requests]
    asking = [row for row, request in enumerate(requests) if request.return_logprob]
    if asking:
        logits = adjusted if len(asking) == len(requests) else adjusted[asking]
        scored = logprobs.score(logits, [token_ids[row] for row in asking], [requests[row] for row in asking])
        for row, families in zip(asking, scored, strict=True):
            entries[row] = {f"output_{family}": entry for family, entry in families.items()}
    asking = [row for row, request in enumerate(requests) if request.return_sampling_mask]
    if asking:
        rows, chosen = [sampling[row] for row in asking], [token_ids[row] for row in asking]
        for row, (ids, logprob) in zip(asking, support(adjusted[asking], rows, chosen), strict=True):
            entries[row] |= {MASK: ids, MASK_LOGPROBS: logprob}
    for row, request in enumerate(requests):
        if request.return_hidden_states:
            # The first token has the rows of the whole prompt; each later token has one row.
            states = HIDDEN_ROWS.of(request)
            HIDDEN_ROWS.put(request, ())
            entries[row][HIDDEN_STATES] = states[-1] if request.output_ids else states
    return entries


def _extend(
    segment: Segment,
    token_ids: Sequence[int],
    entries: Sequence[Mapping[str, Any]],
    infos: Sequence[Mapping[str, Any] | Exception],
) -> int:
    """Append tokens, up to the first token that differs from its draft or that ends the request. Return the
    number of right drafts.

    A request that failed in this step gets no token. Raises the error of the stop rules or of the sampler
    backend for a row.
    """
    sequence, request = segment.sequence, segment.sequence.request
    right = 0
    if request.finish is not None:
        return right
    for row, (token_id, draft) in enumerate(zip_longest(token_ids, segment.drafts)):
        info = infos[row]
        if isinstance(info, Exception):
            raise info
        request.append(token_id, entries[row], info)
        sequence.token_ids.append(token_id)
        request.finish = sequence.rules.check(request.output_ids)
        # Only a stream sends text before its end, so only streams hold back text.
        request.held_back = request.stream and sequence.rules.hold_back(request.output_ids)
        if request.finish is not None or token_id != draft:
            break
        right += 1
    return right
