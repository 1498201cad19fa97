"""Chooses the sequences of the next step, with continuous batching and chunked prefill. Waiting calls take
turns (`waiting`). No torch.

One rule covers prefill, decode and recomputation after a retraction. A running sequence has `token_ids`, and
the first `computed` of them are in the KV cache. Each step computes the next *segment* of the sequence, up to
the next absolute multiple of `chunked_prefill_size`. If the segment reaches the last id, the next token is
sampled.

A sequence is admitted only when all the pages that it can ever need are free. So sequences are never
preempted for lack of memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenwire_reference.core.kv import PageAccountingError, PagePool
from tokenwire_reference.core.prefix_keys import PrefixKeys
from tokenwire_reference.core.request import Drafter, Request
from tokenwire_reference.core.request_extras import HANDED_OVER
from tokenwire_reference.core.stopping import StopRules
from tokenwire_reference.core.waiting import WaitingLines


@dataclass(eq=False)
class Sequence:
    """The state of a request in the engine."""

    request: Request
    rules: StopRules
    token_ids: list[int]
    """The prompt, followed by all sampled tokens."""
    drafter: Drafter | None = None
    computed: int = 0
    """The number of `token_ids` with keys and values in `pages`."""
    pages: list[int] = field(default_factory=list)
    """The pages of the sequence. The list is replaced, never changed in place."""
    came: float = 0.0
    """The time when the sequence began to wait, by the engine's clock."""
    seat: int = -1
    """The seat of the sequence while it runs, -1 otherwise. There are as many seats as requests may run."""
    keys: PrefixKeys = field(init=False, repr=False)
    """The keys of the sequence's full pages.

    They are set when the sequence is queued, because the pool determines the page size.
    """

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def positions(self) -> int:
        """The most positions whose keys and values may be needed; the last token is never run."""
        return max(self.prompt_len, self.prompt_len + self.rules.max_new_tokens - 1)

    @property
    def scores_prompt(self) -> bool:
        """True if logprobs of prompt tokens are requested."""
        return self.request.return_logprob and 0 <= self.request.logprob_start_len < self.prompt_len

    @property
    def next_prompt_logprob(self) -> int:
        """The first position whose logits score a prompt token that the request wants scored."""
        if self.scores_prompt:
            entries = len(self.request.prompt_series["input_token_logprobs"])
            # A token is scored by the logits of the previous one.
            position = self.request.logprob_start_len + entries - 1
            if position < self.prompt_len - 1:
                return position
        return len(self.token_ids)


class Segment(NamedTuple):
    """The positions `start` to `end` of one sequence, which one step computes, and `drafts` of the following
    ids.
    """

    sequence: Sequence
    start: int
    end: int
    drafts: tuple[int, ...] = ()

    @property
    def positions(self) -> range:
        """Return the positions that the step computes, including drafts."""
        return range(self.start, self.end + len(self.drafts))

    @property
    def samples(self) -> bool:
        """True if the logits of the last position choose a new token.

        Also True with a budget of 0, which discards the token.
        """
        return self.end == len(self.sequence.token_ids)

    @property
    def prompt_logprob_positions(self) -> range:
        """Return the positions in this segment whose logits score the next prompt token."""
        sequence = self.sequence
        if not sequence.scores_prompt:
            return range(0)
        return range(max(self.start, sequence.next_prompt_logprob), min(self.end, sequence.prompt_len - 1))


class Scheduler:
    """Waiting and running sequences over a pool of pages."""

    def __init__(self, pool: PagePool, *, max_running_requests: int, chunked_prefill_size: int) -> None:
        if max_running_requests < 1:
            raise ValueError(f"max_running_requests is {max_running_requests}; at least 1 is needed")
        if chunked_prefill_size < 1 or chunked_prefill_size % pool.page_size:
            raise ValueError(
                f"chunked_prefill_size is {chunked_prefill_size}; "
                f"it must be a multiple of the page size {pool.page_size}"
            )
        self.pool = pool
        self.max_running_requests = max_running_requests
        self.chunked_prefill_size = chunked_prefill_size
        self.waiting = WaitingLines(max_running_requests)
        self.running: list[Sequence] = []
        self._sequences: dict[str, Sequence] = {}
        """All sequences by request id."""
        self._seats = list(range(max_running_requests))
        """The free seats."""

    @property
    def max_step_tokens(self) -> int:
        """The maximum number of tokens of a step without drafts: one for each running request, and one
        prefill chunk.
        """
        return self.chunked_prefill_size + self.max_running_requests

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.waiting

    @property
    def empty(self) -> bool:
        return not self._sequences

    def find(self, rid: str) -> Sequence | None:
        return self._sequences.get(rid)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError if the sequence needs more pages than the pool has."""
        if sequence.positions > self.pool.capacity:
            raise ValueError(
                f"request {sequence.request.rid} may need {sequence.positions} positions of the KV cache, "
                f"which holds {self.pool.capacity}; lower max_new_tokens or raise max_total_tokens"
            )
        sequence.keys = PrefixKeys(self.pool.page_size, *sequence.request.prefix_secrets)
        self._sequences[sequence.request.rid] = sequence
        self.waiting.append(sequence)

    def next_step(self) -> list[Segment]:
        """Return the segments of the next step: decodes, then chunks of prefill in order of admission.

        Empty when idle.
        """
        decodes = [s for s in self.running if s.computed == len(s.token_ids) - 1]
        step = [Segment(s, s.computed, len(s.token_ids)) for s in decodes]
        budget = self.max_step_tokens - len(step)
        for sequence in self._prefills():
            segment = self._next_segment(sequence)
            budget -= segment.end - segment.start
            # Prefills run in order of admission; a shorter prompt does not overtake a longer one.
            if budget < 0:
                break
            step.append(segment)
        return step

    def advance(self, segment: Segment, accepted: int = 0) -> None:
        """Record that a segment and its first `accepted` drafts are in the cache, and share full pages."""
        sequence = segment.sequence
        sequence.computed = segment.end + accepted
        self._publish(sequence, segment.start)

    def retract(self, sequence: Sequence) -> None:
        """Release the pages of a running sequence, and put the sequence first in line.

        Its sampled tokens are kept.
        """
        self.remove(sequence)
        sequence.request.num_retractions += 1
        self._sequences[sequence.request.rid] = sequence
        self.waiting.put_first(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence and release its pages."""
        del self._sequences[sequence.request.rid]
        if sequence.seat >= 0:
            self.running.remove(sequence)
            self._seats.append(sequence.seat)
            sequence.seat = -1
            self.waiting.leave(sequence)
        else:
            self.waiting.remove(sequence)
        self.pool.release(sequence.pages)
        sequence.pages = []
        sequence.computed = 0

    def check_integrity(self) -> None:
        """Check that pages and seats match those of the running sequences. Raises PageAccountingError."""
        self.pool.check_integrity(sequence.pages for sequence in self)
        seats = sorted([*self._seats, *(sequence.seat for sequence in self.running)])
        if seats != list(range(self.max_running_requests)):
            raise PageAccountingError(
                f"the free and the taken seats together are {seats}; each seat must occur once"
            )

    def _prefills(self) -> Iterator[Sequence]:
        """Yield running sequences with more than one id to compute, then waiting sequences.

        A waiting sequence is admitted when it is yielded.
        """
        yield from [s for s in self.running if s.computed < len(s.token_ids) - 1]
        while self._seats and (sequence := self.waiting.next()) is not None and self._admit(sequence):
            self.waiting.seat(sequence)
            sequence.seat = self._seats.pop()
            self.running.append(sequence)
            yield sequence

    def _admit(self, sequence: Sequence) -> bool:
        """Reserve every page that the sequence can need; return False if too few pages are free."""
        # The last id is always run again, because its logits choose the next token. Positions whose logits
        # score a prompt token are also run again, even if they are cached.
        limit = min(len(sequence.token_ids) - 1, sequence.next_prompt_logprob)
        pool, keys = self.pool, self._keys(sequence).pages(0, limit)
        prefix = pool.hold_prefix(keys)
        missing = pool.pages_for(sequence.positions) - len(prefix)
        if missing > pool.available:
            pool.release(prefix)
            return False
        # Stored pages are looked up before the allocation, which may evict them.
        request = sequence.request
        stored = pool.find_stored(keys[len(prefix) :], HANDED_OVER.of(request))
        HANDED_OVER.put(request, {})
        fresh = pool.allocate(missing)
        pool.restore(fresh, stored)
        sequence.pages = prefix + fresh
        sequence.computed = (len(prefix) + len(stored)) * pool.page_size
        self._publish(sequence, len(prefix) * pool.page_size)
        # A retracted request finds its own pages again. Counters of cached tokens leave out these pages
        # (spec/record.md).
        if request.num_retractions == 0:
            below = Counter(page.tier for page in stored)
            request.cached_tokens_device = (len(prefix) + below["device"]) * pool.page_size
            request.cached_tokens_host = below["host"] * pool.page_size
            request.cached_tokens_storage = below["storage"] * pool.page_size
        return True

    def _publish(self, sequence: Sequence, start: int) -> None:
        """Publish the pages that became full when the positions from `start` on were computed."""
        size = self.pool.page_size
        first, end = start // size, sequence.computed // size
        if end > first:
            keys = self._keys(sequence).pages(start, sequence.computed)
            self.pool.publish(keys, sequence.pages[first:end])

    def _keys(self, sequence: Sequence) -> PrefixKeys:
        """Return the keys of a sequence's full pages, up to its last id."""
        sequence.keys.grow(sequence.token_ids)
        return sequence.keys

    def _next_segment(self, sequence: Sequence) -> Segment:
        # Chunks end at absolute multiples, so they do not depend on the other requests in a step.
        size = self.chunked_prefill_size
        boundary = (sequence.computed // size + 1) * size
        return Segment(sequence, sequence.computed, min(len(sequence.token_ids), boundary))
