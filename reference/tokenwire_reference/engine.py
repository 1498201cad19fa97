"""The engine: requests in, tokens out, one step at a time. Not thread-safe: one thread calls it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from tokenwire_reference import logprobs
from tokenwire_reference.batch import WantedRows, pack
from tokenwire_reference.engine_load import EngineLoad
from tokenwire_reference.hidden_state import HiddenStateTap
from tokenwire_reference.kv import PageAccountingError, PagePool
from tokenwire_reference.model import LoadedModel
from tokenwire_reference.request import FinishReason, Request
from tokenwire_reference.samplers import make_sampler_backend
from tokenwire_reference.sampling import SamplingRow, adjust, choose
from tokenwire_reference.scheduler import Scheduler, Segment, Sequence
from tokenwire_reference.stopping import StopRules

CPU_CACHE_BYTES = 1 << 30
CUDA_CACHE_SHARE = 0.8

RESERVED_KEYS = frozenset(f"output_{family}" for family in logprobs.FAMILIES)
"""Series that a sampler backend may not write."""


class Engine:
    """Continuous batching over a paged KV cache.

    `max_total_tokens` is the size of the KV cache in positions; None takes what every running request at full
    context needs, bounded by memory. `random_seed` decides the seeds of requests that name none.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_running_requests: int = 64,
        chunked_prefill_size: int = 512,
        max_total_tokens: int | None = None,
        page_size: int = 16,
        sampling_backend: str = "pytorch",
        prefix_caching: bool = True,
        random_seed: int | None = None,
    ) -> None:
        self.model = model
        self.sampling_backend = sampling_backend
        self._sampler = make_sampler_backend(sampling_backend)
        tokens = max_total_tokens or _default_total_tokens(model, max_running_requests)
        pool = PagePool(-(-tokens // page_size) + 1, page_size, prefix_caching=prefix_caching)
        self.scheduler = Scheduler(
            pool, max_running_requests=max_running_requests, chunked_prefill_size=chunked_prefill_size
        )
        self._cache = model.new_cache(pool.num_pages, page_size)
        self._hidden = HiddenStateTap(model.module)
        model.probe_row_sizes(self.scheduler.max_step_tokens)
        self._seeds = random.Random(random_seed)
        self._aborted: deque[Request] = deque()

    @property
    def max_total_tokens(self) -> int:
        return self.scheduler.pool.capacity

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing to do and nothing to report."""
        return not (self.scheduler.running or self.scheduler.waiting or self._aborted)

    @property
    def load(self) -> EngineLoad:
        pool = self.scheduler.pool
        pages = {page for sequence in self.scheduler.running for page in sequence.pages}
        return EngineLoad(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            used_tokens=len(pages) * pool.page_size,
            total_tokens=pool.capacity,
        )

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError, naming the numbers, for one that can never run."""
        prompt, sampling = request.prompt_token_ids, request.sampling
        room = self.model.context_length - len(prompt)
        budget = sampling.max_new_tokens
        if self.scheduler.find(request.rid) is not None:
            raise ValueError(f"request id {request.rid!r} is in use; wait for its end or choose another")
        if not prompt:
            raise ValueError("the prompt is empty; give at least one token id")
        if request.wants_embedding and not self._hidden.available:
            raise ValueError(f"{self.model.name} has no hidden states to embed with; serve another model")
        if room < (budget or 0) or room < 0:
            raise ValueError(
                f"{len(prompt)} prompt tokens and max_new_tokens {budget} exceed the context length of "
                f"{self.model.context_length} tokens"
            )
        self._check_ids("prompt_token_ids", prompt)
        self._check_ids("logit_bias", sampling.logit_bias)
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        self._check_ids("token_ids_logprob", request.token_ids_logprob)
        if request.logprob_start_len > len(prompt):
            raise ValueError(
                f"logprob_start_len is {request.logprob_start_len}, and the prompt has {len(prompt)} tokens"
            )
        if budget is None:
            budget = max(0, min(room, self.max_total_tokens - len(prompt)))
        decode = None if self.model.tokenizer is None else self._decode
        sequence = Sequence(
            request=request,
            rules=request.fault.stop_rules(StopRules(sampling, self.model.eos_token_ids, budget, decode)),
            token_ids=list(prompt),
        )
        self.scheduler.add(sequence)
        request.seed = (
            self._seeds.getrandbits(63) if sampling.sampling_seed is None else sampling.sampling_seed
        )
        start = request.logprob_start_len
        for family in logprobs.families(request):
            request.series[f"output_{family}"] = []
            # Nothing precedes the first position, so nothing scores it.
            unscored = (
                [None, prompt[start], None] if family == "token_logprobs" and sequence.scores_prompt else None
            )
            request.prompt_series[f"input_{family}"] = [unscored] if sequence.scores_prompt else []

    def abort(self, rid: str) -> None:
        """End a request with what it has. The next step returns it. An unknown id changes nothing."""
        sequence = self.scheduler.find(rid)
        if sequence is not None:
            waiting = sequence in self.scheduler.waiting
            self.scheduler.remove(sequence)
            sequence.request.finish = FinishReason(
                "abort", message="Abort in waiting queue" if waiting else "Aborted"
            )
            self._aborted.append(sequence.request)

    def retract(self, rid: str) -> None:
        """Take a running request's pages away and let it start over from its ids, invisibly. A test hook.

        Raises KeyError for a request that does not run.
        """
        sequence = self.scheduler.find(rid)
        if sequence is None or sequence in self.scheduler.waiting:
            raise KeyError(f"request {rid!r} does not run, so it cannot be retracted")
        self.scheduler.retract(sequence)

    def flush_cache(self) -> bool:
        """Forget all cached prefixes. False, and nothing happens, while requests run or wait."""
        if not self.idle:
            return False
        self.scheduler.pool.flush()
        return True

    def step(self) -> list[Request]:
        """Run one batch. The requests that got a token or ended; one that ended is returned this once."""
        touched = list(self._aborted)
        self._aborted.clear()
        segments = self.scheduler.next_step()
        if segments:
            touched.extend(self._run(segments))
        return touched

    def check_integrity(self) -> None:
        """Raise PageAccountingError when pages leaked, or when a finished request still lives."""
        self.scheduler.check_integrity()
        ended = [s.request.rid for s in self.scheduler if s.request.finish is not None]
        if ended:
            raise PageAccountingError(f"requests {ended} have finished and still hold their place")

    @torch.inference_mode()
    def _run(self, segments: list[Segment]) -> list[Request]:
        batch, wanted = pack(segments, self.scheduler.pool.page_size, self.model.pad_rows, self.model.device)
        logits = self.model.forward(batch, self._cache)
        reached = [segment.sequence for segment in segments if segment.samples]
        for rows in wanted:
            self._score_prompt(rows, logits)
            self.scheduler.computed(rows.segment)
            if rows.segment.sequence.request.wants_embedding and rows.sample is not None:
                rows.segment.sequence.request.embedding = self._hidden.embedding(rows.sample)
        self._sample([rows for rows in wanted if not rows.segment.sequence.request.wants_embedding], logits)
        for sequence in reached:
            request = sequence.request
            request.finish = sequence.rules.check(request.output_ids)
            if request.finish is not None:
                self.scheduler.remove(sequence)
        return [sequence.request for sequence in reached]

    def _score_prompt(self, rows: WantedRows, logits: Tensor) -> None:
        positions = rows.segment.prompt_logprob_positions
        if positions:
            request = rows.segment.sequence.request
            token_ids = [request.prompt_token_ids[position + 1] for position in positions]
            for entries in logprobs.score(logits[rows.prompt], token_ids, request):
                for family, entry in entries.items():
                    request.prompt_series[f"input_{family}"].append(entry)

    def _sample(self, wanted: list[WantedRows], logits: Tensor) -> None:
        at = [rows.sample for rows in wanted if rows.sample is not None]
        if not at:
            return
        sequences = [rows.segment.sequence for rows in wanted if rows.sample is not None]
        sampling_rows = [self._sampling_row(sequence) for sequence in sequences]
        adjusted = adjust(logits[at], sampling_rows)
        token_ids = choose(adjusted, sampling_rows)
        customized_info = self._sampler(adjusted, sampling_rows, token_ids)
        for key, values in customized_info.items():
            if len(values) != len(token_ids) or key in RESERVED_KEYS:
                raise ValueError(
                    f"sampler backend {self.sampling_backend!r} gave {len(values)} values under {key!r} for "
                    f"{len(token_ids)} rows; give one for each row, under a key that is not the engine's own"
                )
        for row, (sequence, token_id) in enumerate(zip(sequences, token_ids, strict=True)):
            request = sequence.request
            entries: dict[str, Any] = {}
            if request.return_logprob:
                (scored,) = logprobs.score(adjusted[row : row + 1], [token_id], request)
                entries = {f"output_{family}": entry for family, entry in scored.items()}
            request.append(token_id, entries, {key: values[row] for key, values in customized_info.items()})
            sequence.token_ids.append(token_id)

    def _sampling_row(self, sequence: Sequence) -> SamplingRow:
        request = sequence.request
        early = len(request.output_ids) < request.sampling.min_new_tokens
        banned = self.model.eos_token_ids.union(request.sampling.stop_token_ids) if early else frozenset()
        return SamplingRow(
            sampling=request.sampling,
            seed=request.seed,
            position=len(sequence.token_ids) - 1,
            output_ids=request.output_ids,
            banned_ids=banned,
        )

    def _check_ids(self, name: str, ids: Iterable[int]) -> None:
        wrong = next((i for i in ids if not 0 <= i < self.model.vocab_size), None)
        if wrong is not None:
            raise ValueError(
                f"{name} contains out-of-vocabulary token id {wrong}; "
                f"valid range is [0, {self.model.vocab_size})"
            )

    def _decode(self, token_ids: Collection[int]) -> str:
        text: str = self.model.tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def _default_total_tokens(model: LoadedModel, max_running_requests: int) -> int:
    room = CPU_CACHE_BYTES
    if model.device.type == "cuda":
        room = int(torch.cuda.mem_get_info(model.device)[0] * CUDA_CACHE_SHARE)
    return min(
        max_running_requests * model.context_length,
        max(room // model.bytes_per_token(), model.context_length),
    )
