"""The engine: requests in, tokens out, one step at a time. Not thread-safe: one thread calls it."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Set
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from tokenwire_reference.core import logprobs
from tokenwire_reference.core.acceptance import TokenAcceptance
from tokenwire_reference.core.admission import begin_series, sequence_of
from tokenwire_reference.core.batch import WantedRows, pack
from tokenwire_reference.core.drafting import SequenceError
from tokenwire_reference.core.kv import PADDING_PAGE, OutOfPagesError, PageAccountingError, PagePool
from tokenwire_reference.core.load import EngineLoad, QueueFullError
from tokenwire_reference.core.model import Model
from tokenwire_reference.core.request import DraftCounts, FinishReason, Request
from tokenwire_reference.core.scheduler import Scheduler, Segment, Sequence
from tokenwire_reference.extras.decode_graphs import CaptureError, DecodeGraphs
from tokenwire_reference.extras.near_ties import NearTies
from tokenwire_reference.extras.page_files import PageFiles
from tokenwire_reference.extras.prefix_tiers import PrefixTiers
from tokenwire_reference.extras.routing import in_base64

logger = logging.getLogger(__name__)

BROKEN = (PageAccountingError, OutOfPagesError, CaptureError, torch.AcceleratorError)
"""After these the cache or the device cannot be trusted: they end the engine, and not only a step."""

CPU_CACHE_BYTES = 1 << 30
CUDA_CACHE_SHARE = 0.8

PauseMode = Literal["abort", "retract", "in_place"]


class Engine:
    """Continuous batching over a paged KV cache.

    `max_total_tokens` is the size of the KV cache in positions; None takes what every running request at full
    context needs, bounded by memory. `random_seed` decides the seeds of requests that name none.
    `speculative_num_draft_tokens` above 0 turns n-gram drafts on. `test_retract_interval` is a test hook:
    every so many steps, the youngest request that generates is retracted. `host_cache_pages` above 0 keeps
    evicted pages in host memory, and those that it evicts in `storage_dir`, if given, up to
    `storage_max_bytes`. `disable_cuda_graph`
    runs every pass as it comes, launch by launch.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_running_requests: int = 64,
        max_queued_requests: int | None = None,
        chunked_prefill_size: int = 512,
        max_total_tokens: int | None = None,
        page_size: int = 16,
        sampling_backend: str = "pytorch",
        prefix_caching: bool = True,
        host_cache_pages: int = 0,
        storage_dir: Path | None = None,
        storage_max_bytes: int | None = None,
        random_seed: int | None = None,
        speculative_num_draft_tokens: int = 0,
        test_retract_interval: int = 0,
        disable_cuda_graph: bool = False,
        near_ties: float = 0.0,
    ) -> None:
        self.model = model
        self.max_queued_requests = max_queued_requests
        self.speculative_num_draft_tokens = speculative_num_draft_tokens
        self.test_retract_interval = test_retract_interval
        if storage_dir is not None and not host_cache_pages:
            raise ValueError(
                f"storage in {storage_dir} takes what host memory evicts, and there is none; "
                "start with --enable-hierarchical-cache"
            )
        tokens = max_total_tokens or _default_total_tokens(model, max_running_requests)
        num_pages = -(-tokens // page_size) + 1
        self._cache = model.new_cache(num_pages, page_size, max_running_requests)
        self._storage = tiers = None
        if storage_dir is not None:
            self._storage = PageFiles(storage_dir, model.fingerprint(), max_bytes=storage_max_bytes)
            self._storage.expect(self._cache.read_page(PADDING_PAGE))
        if host_cache_pages:
            tiers = PrefixTiers(self._cache, host_cache_pages, self._storage)
        pool = PagePool(num_pages, page_size, prefix_caching=prefix_caching, tiers=tiers)
        self.scheduler = Scheduler(
            pool, max_running_requests=max_running_requests, chunked_prefill_size=chunked_prefill_size
        )
        self._near_ties = NearTies(near_ties, random_seed)
        self._acceptance = TokenAcceptance(sampling_backend, model.eos_token_ids, self._near_ties)
        most_drafts = max_running_requests * speculative_num_draft_tokens
        model.probe_row_sizes(self.scheduler.max_step_tokens + most_drafts)
        self._experts = model.experts.room(num_pages * page_size)
        """Of each position of the cache, the experts that it was routed to."""
        # A script has no pass that could be captured, and a pass that was captured tells of no experts.
        no_graphs = disable_cuda_graph or model.module is None or model.experts.available
        most_rows = 0 if no_graphs else model.pad_rows(max_running_requests + most_drafts)
        self._graphs = DecodeGraphs(model, self._cache, most_rows=most_rows)
        self._seeds = random.Random(random_seed)
        self._ended: deque[Request] = deque()
        """Ended between two steps; the next one returns them."""
        self._paused = False
        self._steps = 0

    @property
    def max_total_tokens(self) -> int:
        return self.scheduler.pool.capacity

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing to do and nothing to report."""
        return not self._ended and (self._paused or self.scheduler.empty)

    @property
    def takes_time(self) -> bool:
        """Whether the next step may let its caller wait: a model computes, or a script sleeps."""
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
            storage_failures=0 if self._storage is None else self._storage.failures,
        )

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError, naming the numbers, for one that can never run.

        Raises QueueFullError where as many wait as may.
        """
        if self.scheduler.find(request.rid) is not None:
            raise ValueError(f"request id {request.rid!r} is in use; wait for its end or choose another")
        sequence = sequence_of(
            request,
            self.model,
            capacity=self.max_total_tokens,
            num_draft_tokens=self.speculative_num_draft_tokens,
        )
        if self.max_queued_requests is not None and len(self.scheduler.waiting) >= self.max_queued_requests:
            raise QueueFullError
        self.scheduler.add(sequence)
        seed = request.sampling.sampling_seed
        request.seed = self._seeds.getrandbits(63) if seed is None else seed
        if self._storage is not None:
            request.storage_backend = "file"
        if self.speculative_num_draft_tokens:
            request.drafts = DraftCounts()
        begin_series(sequence)

    def abort(self, rid: str) -> None:
        """End a request with what it has. The next step returns it. An unknown id changes nothing."""
        sequence = self.scheduler.find(rid)
        if sequence is not None:
            waiting = sequence.seat < 0
            message = "Abort in waiting queue" if waiting else "Aborted"
            self._end(sequence, FinishReason("abort", message=message))

    def abort_all(self) -> None:
        """Abort everything that runs or waits."""
        for sequence in list(self.scheduler):
            self.abort(sequence.request.rid)

    def pause(self, mode: PauseMode = "abort") -> None:
        """Compute nothing until `continue_generation`; what comes meanwhile waits.

        What runs is aborted with all that waits, or retracted, so that the cache can be flushed, or kept.
        """
        self._paused = True
        if mode == "abort":
            self.abort_all()
        elif mode == "retract":
            for sequence in reversed(list(self.scheduler.running)):
                self.scheduler.retract(sequence)

    def continue_generation(self) -> None:
        """End a pause. Nothing happens where there is none."""
        self._paused = False

    def retract(self, rid: str) -> None:
        """Take a running request's pages away and let it start over from its ids, invisibly. A test hook.

        Raises KeyError for a request that does not run.
        """
        sequence = self.scheduler.find(rid)
        if sequence is None or sequence.seat < 0:
            raise KeyError(f"request {rid!r} does not run, so it cannot be retracted")
        self.scheduler.retract(sequence)

    def flush_cache(self) -> bool:
        """Forget all cached prefixes. False, and nothing happens, while requests run, or are about to."""
        if self.scheduler.running or (self.scheduler.waiting and not self._paused):
            return False
        self.scheduler.pool.flush()
        return True

    def step(self) -> list[Request]:
        """Run one batch. The requests that got a token or ended; one that ended is returned this once."""
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
            except (
                Exception
            ) as error:  # the step is lost, with the requests that were in it; the engine is not
                logger.exception("a step of %d requests failed", len(segments))
                self._fail(segments, error)
                sampled = []
            touched.extend(sampled)
            self._steps += 1
            if self.test_retract_interval and self._steps % self.test_retract_interval == 0:
                self._retract_youngest({request.rid for request in sampled})
        return touched

    def check_integrity(self) -> None:
        """Raise PageAccountingError when pages leaked, or when a finished request still lives."""
        self.scheduler.check_integrity()
        ended = [s.request.rid for s in self.scheduler if s.request.finish is not None]
        if ended:
            raise PageAccountingError(f"requests {ended} have finished and still hold their place")

    def _with_drafts(self, segment: Segment) -> Segment | None:
        """The segment with what its drafter adds to it; None where that ends the sequence."""
        sequence = segment.sequence
        if sequence.drafter is None or not segment.samples:
            return segment
        room = sequence.rules.max_new_tokens - len(sequence.request.output_ids) - 1
        try:
            drafts = sequence.drafter.draft(sequence.token_ids, max(room, 0))
        except SequenceError as error:
            self._end(sequence, FinishReason("abort", message=str(error), status_code=500))
            return None
        except Exception as error:  # a drafter works for one request, and fails for that one alone
            self._end(sequence, FinishReason.of_failure(error))
            return None
        return segment._replace(drafts=tuple(drafts)) if drafts else segment

    @torch.inference_mode()
    def _run(self, segments: list[Segment]) -> list[Request]:
        batch, wanted = pack(segments, self.scheduler.pool.page_size, self.model.pad_rows, self.model.device)
        logits = self._graphs.forward(batch)
        self.model.experts.keep(self._experts, batch.slots)
        if batch.wants_hidden_states:
            self._read_hidden_states(segments)
        samples = [segment.samples for segment in segments]
        for rows in wanted:
            if not rows.prompt and rows.embedding is None:
                continue
            try:
                self._read_prompt(rows, logits)
            except Exception as error:  # what is read for one request fails for that one alone
                rows.segment.sequence.request.finish = FinishReason.of_failure(error)
        for rows, accepted in zip(wanted, self._acceptance.accept(wanted, logits), strict=True):
            self.scheduler.advance(rows.segment, accepted)
            _count_drafts(rows, accepted)
        touched = []
        for (sequence, *_), reached in zip(segments, samples, strict=True):
            request = sequence.request
            if reached and sequence.rules.max_new_tokens == 0 and request.finish is None:
                request.finish = sequence.rules.check(request.output_ids)
            if request.finish is not None:
                self._read_experts(sequence)
                self.scheduler.remove(sequence)
            if reached or request.finish is not None:
                touched.append(request)
        return touched

    def _read_prompt(self, rows: WantedRows, logits: Tensor) -> None:
        """Take what a request wants of its prompt: logprobs, and an embedding."""
        if rows.embedding is not None:
            rows.segment.sequence.request.embedding = self.model.hidden_states.embedding(rows.embedding)
        positions = rows.segment.prompt_logprob_positions
        if positions:
            request = rows.segment.sequence.request
            token_ids = [request.prompt_token_ids[position + 1] for position in positions]
            moved = self._near_ties.jitter(logits[rows.prompt.start : rows.prompt.stop])
            for entries in logprobs.score(moved, token_ids, [request] * len(token_ids)):
                for family, entry in entries.items():
                    request.prompt_series[f"input_{family}"].append(entry)

    def _fail(self, segments: list[Segment], error: Exception) -> None:
        """End the requests of a step that failed, and free their pages. No other request notices."""
        for segment in segments:
            if segment.sequence in self.scheduler.running:
                self._end(segment.sequence, FinishReason.of_failure(error))

    def _retract_youngest(self, sampled: Set[str]) -> None:
        # Only after a new token: a request that is retracted again and again still comes to its end.
        candidates = [s for s in self.scheduler.running if s.request.rid in sampled]
        if candidates:
            self.scheduler.retract(candidates[-1])

    def _read_hidden_states(self, segments: list[Segment]) -> None:
        """Take the hidden states of what was run for the requests that want them."""
        row = 0
        for segment in segments:
            request, first = segment.sequence.request, row
            row += len(segment.positions)
            if request.return_hidden_states:
                if not request.output_ids and segment.start <= request.cached_tokens:
                    request.hidden_rows = []  # it begins, perhaps anew
                request.hidden_rows += self.model.hidden_states.rows(first, row)

    def _read_experts(self, sequence: Sequence) -> None:
        """Take the experts that a request wants, of all that was run of it, where all is still there."""
        request = sequence.request
        run = sequence.prompt_len + max(len(request.output_ids) - 1, 0)
        if request.routed_experts_start is not None and sequence.computed >= run:
            size = self.scheduler.pool.page_size
            positions = range(request.routed_experts_start, run)
            slots = [sequence.pages[position // size] * size + position % size for position in positions]
            request.routed_experts = in_base64(self._experts[slots])

    def _end(self, sequence: Sequence, finish: FinishReason) -> None:
        self._read_experts(sequence)
        self.scheduler.remove(sequence)
        sequence.request.finish = finish
        self._ended.append(sequence.request)


def _count_drafts(rows: WantedRows, accepted: int) -> None:
    """Count a step that chose tokens, unless all it did was a prefill."""
    request, drafts = rows.segment.sequence.request, rows.segment.drafts
    if request.drafts is not None and rows.sampled and (drafts or len(request.output_ids) > 1):
        request.drafts.checked(len(drafts), accepted)


def _default_total_tokens(model: Model, max_running_requests: int) -> int:
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        room = int(free * CUDA_CACHE_SHARE) // model.bytes_per_token()
    else:
        # Always one whole context: a host gives memory only to what is written.
        room = max(CPU_CACHE_BYTES // model.bytes_per_token(), model.context_length)
    return min(max_running_requests * model.context_length, room)
