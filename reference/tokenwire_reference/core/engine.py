"""The engine: takes requests and generates tokens, one step at a time. It is not thread-safe."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokenwire_reference.core import logprobs
from tokenwire_reference.core.acceptance import TokenAcceptance
from tokenwire_reference.core.admission import begin_series, sequence_of
from tokenwire_reference.core.batch import WantedRows, pack
from tokenwire_reference.core.hooks import DeviceBrokenError, Hooks
from tokenwire_reference.core.kv import OutOfPagesError, PageAccountingError, PagePool
from tokenwire_reference.core.load import EngineLoad, QueueFullError
from tokenwire_reference.core.model import Model
from tokenwire_reference.core.request import DraftCounts, FinishReason, Request, alone
from tokenwire_reference.core.request_extras import (
    EMBEDDING,
    HIDDEN_ROWS,
    ROUTED_EXPERTS,
    ROUTED_EXPERTS_START,
)
from tokenwire_reference.core.scheduler import Scheduler, Segment, Sequence

logger = logging.getLogger(__name__)

BROKEN = (PageAccountingError, OutOfPagesError, DeviceBrokenError, torch.AcceleratorError)
"""Errors after which the cache or the device cannot be trusted, so that they end the engine."""

CPU_CACHE_BYTES = 1 << 30
CUDA_CACHE_SHARE = 0.8

PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True)
class EngineArgs:
    """Settings of an engine."""

    max_running_requests: int = 64
    max_queued_requests: int | None = None
    """The most requests that may wait; None for any number."""
    request_waiting_timeout: float | None = None
    """Seconds that a request may wait for its first step; None for any time."""
    chunked_prefill_size: int = 512
    """The most prompt tokens in a step."""
    max_total_tokens: int | None = None
    """The number of positions in the KV cache.

    None for the full context of all requests, limited by memory.
    """
    page_size: int = 16
    sampling_backend: str = "pytorch"
    prefix_caching: bool = True
    weight_version: str = "default"
    enable_prefill_weight_versions: bool = False
    random_seed: int | None = None
    """The seed from which the engine derives a seed for each request without a seed."""
    speculative_num_draft_tokens: int = 0
    """The number of tokens in an n-gram draft; 0 for no drafts."""
    test_retract_interval: int = 0
    """Test hook: the number of steps after which the youngest generating request is retracted."""


class Engine:
    """Continuous batching over a paged KV cache."""

    def __init__(
        self,
        model: Model,
        args: EngineArgs | None = None,
        hooks: Hooks | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self._clock = clock
        self.args = args = args or EngineArgs()
        self._hooks = hooks = hooks or Hooks()
        tokens = args.max_total_tokens or _default_total_tokens(model, args.max_running_requests)
        # The pool has one additional page, because page 0 is for padding.
        num_pages = -(-tokens // args.page_size) + 1
        self.cache = model.new_cache(num_pages, args.page_size, args.max_running_requests)
        self._tiers = hooks.tiers(self.cache)
        pool = PagePool(num_pages, args.page_size, prefix_caching=args.prefix_caching, tiers=self._tiers)
        self.scheduler = Scheduler(
            pool,
            max_running_requests=args.max_running_requests,
            chunked_prefill_size=args.chunked_prefill_size,
        )
        self._acceptance = TokenAcceptance(args.sampling_backend, model.eos_token_ids, hooks.logits)
        most_drafts = args.max_running_requests * args.speculative_num_draft_tokens
        model.probe_row_sizes(self.scheduler.max_step_tokens + most_drafts)
        self._experts = model.experts.room(num_pages * args.page_size)
        """The chosen experts of each position in the KV cache."""
        most_rows = model.pad_rows(args.max_running_requests + most_drafts)
        self._passes = hooks.passes(model, self.cache, most_rows=most_rows)
        self._seeds = random.Random(args.random_seed)
        self._ended: deque[Request] = deque()
        """Requests that ended between two steps. The next step returns them."""
        self._paused = False
        self._steps = 0
        self.weight_version = self.scheduler.pool.weight_version = args.weight_version

    @property
    def max_total_tokens(self) -> int:
        return self.scheduler.pool.capacity

    @property
    def idle(self) -> bool:
        """True if `step` has nothing to do and nothing to report."""
        return not self._ended and (self._paused or self.scheduler.empty)

    @property
    def paused(self) -> bool:
        """True from a pause until `continue_generation`."""
        return self._paused

    @property
    def takes_time(self) -> bool:
        """True if the next step may take long, because a model computes or a script sleeps."""
        return self.model.module is not None or any(
            sequence.drafter is not None and sequence.drafter.takes_time for sequence in self.scheduler
        )

    @property
    def load(self) -> EngineLoad:
        pool = self.scheduler.pool
        pages = {page for sequence in self.scheduler.running for page in sequence.pages}
        return EngineLoad(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            used_tokens=len(pages) * pool.page_size,
            total_tokens=pool.capacity,
            storage_failures=self._tiers.failures,
        )

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError with the sizes and limits if the request can never run.

        Raises QueueFullError if the queue is full.
        """
        if self.scheduler.find(request.rid) is not None:
            raise ValueError(f"request id {request.rid!r} is in use; wait for its end or choose another")
        drafts = self.args.speculative_num_draft_tokens
        sequence = sequence_of(
            request,
            self.model,
            capacity=self.max_total_tokens,
            num_draft_tokens=drafts,
            drafter=self._hooks.drafter(drafts) if drafts else None,
        )
        most = self.args.max_queued_requests
        if most is not None and len(self.scheduler.waiting) >= most:
            raise QueueFullError("The request queue is full.")
        sequence.came = self._clock()
        self.scheduler.add(sequence)
        seed = request.sampling.sampling_seed
        request.seed = self._seeds.getrandbits(63) if seed is None else seed
        request.storage_backend = self._tiers.storage_backend
        request.use_weights(self.weight_version)
        if drafts:
            request.drafts = DraftCounts()
        begin_series(sequence)

    def abort(self, rid: str) -> None:
        """End a request with its tokens so far. The next step returns it. An unknown id has no effect."""
        sequence = self.scheduler.find(rid)
        if sequence is not None:
            message = "Abort in waiting queue" if sequence.seat < 0 else "Aborted"
            self._end(sequence, FinishReason("abort", message=message))

    def abort_all(self) -> None:
        """Abort all running and waiting requests."""
        for sequence in list(self.scheduler):
            self.abort(sequence.request.rid)

    def pause(self, mode: PauseMode = "abort") -> None:
        """Pause until `continue_generation`; new requests wait.

        `mode` selects the treatment of running requests: they are aborted together with all waiting requests,
        retracted so that the cache can be flushed, or left unchanged.
        """
        self._paused = True
        if mode == "abort":
            self.abort_all()
        elif mode == "retract":
            # Each retracted request goes to the head of the waiting line. The latest goes first, which keeps
            # the order.
            for sequence in reversed(list(self.scheduler.running)):
                self.scheduler.retract(sequence)

    def continue_generation(self) -> None:
        """End a pause, if there is one."""
        self._paused = False

    def flush_cache(self) -> bool:
        """Clear all cached prefixes.

        Returns False, without an effect, while requests are running or waiting.
        """
        if self.scheduler.running or (self.scheduler.waiting and not self._paused):
            return False
        self.scheduler.pool.flush()
        return True

    def update_weights(self, put: Callable[[], None], version: str, *, flush: bool) -> bool:
        """Call `put`, which changes the weights.

        Returns False, without an effect, while requests are running.
        """
        if not self.scheduler.empty:
            return False
        put()
        self.weight_version = self.scheduler.pool.weight_version = version or self.weight_version
        if flush:
            self.scheduler.pool.flush()
        return True

    def rename_weights(self, version: str) -> None:
        """Give the weights another version. Running requests report it from their next token on."""
        self.weight_version = self.scheduler.pool.weight_version = version
        for sequence in self.scheduler:
            sequence.request.use_weights(version)

    def step(self) -> list[Request]:
        """Run one batch; return the requests that got a token or ended.

        Each request is returned only once after its end.
        """
        if (seconds := self.args.request_waiting_timeout) is not None:
            self._end_what_waits(seconds)
        touched = list(self._ended)
        self._ended.clear()
        if self._paused:
            return touched
        segments = [drafted for s in self.scheduler.next_step() if (drafted := self._with_drafts(s))]
        if segments:
            try:
                sampled = self._run(segments)
            except BROKEN:
                raise
            except Exception as error:
                # The requests of this step fail, and the engine continues.
                logger.exception("a step of %d requests failed", len(segments))
                self._fail(segments, error)
                sampled = []
            touched.extend(sampled)
            self._steps += 1
            if self.args.test_retract_interval and self._steps % self.args.test_retract_interval == 0:
                self._retract_youngest({request.rid for request in sampled})
        return touched

    def _end_what_waits(self, seconds: float) -> None:
        """End requests that have waited longer than `timeout` for their first step."""
        latest = self._clock() - seconds
        for sequence in [s for s in self.scheduler.waiting if s.came < latest and not s.computed]:
            message = f"Request waiting timeout reached: no step for it within {seconds:g} s."
            self._end(sequence, FinishReason("abort", message=message, status_code=503))

    def check_integrity(self) -> None:
        """Check that no page leaked, and that no finished request still holds resources.

        Raises PageAccountingError.
        """
        self.scheduler.check_integrity()
        ended = [s.request.rid for s in self.scheduler if s.request.finish is not None]
        if ended:
            raise PageAccountingError(f"requests {ended} have finished and are still in the scheduler")

    def _with_drafts(self, segment: Segment) -> Segment | None:
        """Return the segment with the drafts of its drafter; None if the drafter ends the sequence."""
        sequence = segment.sequence
        if sequence.drafter is None or not segment.samples:
            return segment
        # A step yields one token even if no draft is right.
        room = sequence.rules.max_new_tokens - len(sequence.request.output_ids) - 1
        drafts = alone(sequence.request, sequence.drafter.draft, sequence.token_ids, max(room, 0))
        if drafts is None:
            assert sequence.request.finish is not None, "the failure is its end"
            self._end(sequence, sequence.request.finish)
            return None
        return segment._replace(drafts=tuple(drafts)) if drafts else segment

    @torch.inference_mode()
    def _run(self, segments: list[Segment]) -> list[Request]:
        batch, wanted = pack(segments, self.scheduler.pool.page_size, self.model.pad_rows, self.model.device)
        logits = self._passes.forward(batch)
        self.model.experts.keep(self._experts, batch.slots)
        if batch.wants_hidden_states:
            self._read_hidden_states(segments)
        # This must run before acceptance, which extends the sequences.
        samples = [segment.samples for segment in segments]
        for rows in wanted:
            if not rows.prompt and rows.embedding is None:
                continue
            alone(rows.segment.sequence.request, self._read_prompt, rows, logits)
        for rows, accepted in zip(wanted, self._acceptance.accept(wanted, logits), strict=True):
            self.scheduler.advance(rows.segment, accepted)
            _count_drafts(rows, accepted)
        touched = []
        for (sequence, *_), reached in zip(segments, samples, strict=True):
            request = sequence.request
            if reached and not request.prompt_weights and self.args.enable_prefill_weight_versions:
                request.prompt_weights = self.scheduler.pool.versions(
                    sequence.pages, len(request.prompt_token_ids)
                )
            # With a budget of zero no token is accepted, so the stop rules are checked here.
            if reached and sequence.rules.max_new_tokens == 0 and request.finish is None:
                request.finish = sequence.rules.check(request.output_ids)
            if request.finish is not None:
                # This must run before `remove`, which releases the pages that locate the experts.
                self._read_experts(sequence)
                self.scheduler.remove(sequence)
            if reached or request.finish is not None:
                touched.append(request)
        return touched

    def _read_prompt(self, rows: WantedRows, logits: Tensor) -> None:
        """Read the logprobs or the embedding of a prompt, if the request wants them."""
        if rows.embedding is not None:
            embedding = self.model.hidden_states.embedding(rows.embedding)
            EMBEDDING.put(rows.segment.sequence.request, embedding)
        positions = rows.segment.prompt_logprob_positions
        if positions:
            request = rows.segment.sequence.request
            token_ids = [request.prompt_token_ids[position + 1] for position in positions]
            moved = self._hooks.logits.jitter(logits[rows.prompt.start : rows.prompt.stop])
            for entries in logprobs.score(moved, token_ids, [request] * len(token_ids)):
                for family, entry in entries.items():
                    request.prompt_series[f"input_{family}"].append(entry)

    def _fail(self, segments: list[Segment], error: Exception) -> None:
        """End the requests of a failed step, and free their pages. Other requests are not affected."""
        for segment in segments:
            if segment.sequence in self.scheduler.running:
                self._end(segment.sequence, FinishReason.of_failure(error))

    def _retract_youngest(self, sampled: Set[str]) -> None:
        # A request is retracted only after a new token, so that it ends even if it is retracted repeatedly.
        candidates = [s for s in self.scheduler.running if s.request.rid in sampled]
        if candidates:
            self.scheduler.retract(candidates[-1])

    def _read_hidden_states(self, segments: list[Segment]) -> None:
        """Read the hidden states of this step for requests that want them."""
        row = 0
        for segment in segments:
            request, first = segment.sequence.request, row
            row += len(segment.positions)
            if request.return_hidden_states:
                begins = not request.output_ids and segment.start <= request.cached_tokens  # perhaps anew
                before = () if begins else HIDDEN_ROWS.of(request)
                HIDDEN_ROWS.put(request, [*before, *self.model.hidden_states.rows(first, row)])

    def _read_experts(self, sequence: Sequence) -> None:
        """Read the experts that a request wants, if the experts of all its positions are still available."""
        request = sequence.request
        run = sequence.prompt_len + max(len(request.output_ids) - 1, 0)
        start = ROUTED_EXPERTS_START.of(request)
        if start is not None and sequence.computed >= run:
            size = self.scheduler.pool.page_size
            positions = range(start, run)
            slots = [sequence.pages[position // size] * size + position % size for position in positions]
            ROUTED_EXPERTS.put(request, self.model.experts.in_base64(self._experts[slots]))

    def _end(self, sequence: Sequence, finish: FinishReason) -> None:
        self._read_experts(sequence)
        self.scheduler.remove(sequence)
        sequence.request.finish = finish
        self._ended.append(sequence.request)


def _count_drafts(rows: WantedRows, accepted: int) -> None:
    """Count the drafts of a request in a step that sampled tokens. A pure prefill is not counted."""
    request, drafts = rows.segment.sequence.request, rows.segment.drafts
    if request.drafts is not None and rows.sampled and (drafts or len(request.output_ids) > 1):
        request.drafts.proposed += len(drafts)
        request.drafts.right.append(accepted)


def _default_total_tokens(model: Model, max_running_requests: int) -> int:
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        room = int(free * CUDA_CACHE_SHARE) // model.bytes_per_token()
    else:
        # The cache has room for at least one whole context. Large caches are cheap on a host, which allocates
        # memory only when it is written.
        room = max(CPU_CACHE_BYTES // model.bytes_per_token(), model.context_length)
    return min(max_running_requests * model.context_length, room)
