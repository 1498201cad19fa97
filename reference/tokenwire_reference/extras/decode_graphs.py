"""Decode steps as CUDA graphs: all launches of a pass recorded once for each padded number of rows.

A graph replays the same kernels over the same addresses. So the inputs of a step are copied into buffers with
fixed addresses, and its logits are always at the address of the capture. On the CPU no graph is captured: the
same pass runs directly over the same buffers. So tests on the CPU run the code that a GPU replays.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tokenwire_reference.core.attention import PagedCache
from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.hooks import DeviceBrokenError, Passes
from tokenwire_reference.core.model import Model
from tokenwire_reference.extras.host_sync import HostSyncError, NoHostSync

logger = logging.getLogger(__name__)


class CaptureError(DeviceBrokenError):
    """The device cannot capture a graph of this model, so graphs are never used."""


class DecodeGraphs(Passes):
    """Runs one model over one cache.

    Batches in which every row needs logits, such as decodes, run as graphs, up to `most_rows` padded rows (0
    for no graphs). Other batches run directly. If a model's pass needs the host, all of its batches run
    directly.
    """

    def __init__(self, model: Model, cache: PagedCache, *, most_rows: int) -> None:
        self.most_rows = most_rows
        super().__init__(model, cache, most_rows=most_rows)
        self._packed = torch.zeros(4, most_rows, dtype=torch.int64, device=model.device)
        self._logit_rows = torch.arange(most_rows, device=model.device)
        self._watched: set[int] = set()
        """The numbers of rows for which a first pass has run and did not need the host."""
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        """Graphs by number of rows, with the logits that they write."""
        self._pool: Any = None
        """The memory that all graphs share, because only one of them runs at a time."""
        self.refused = False
        """True if a pass of the model has needed the host, so that graphs cannot be used."""

    def forward(self, batch: Batch) -> Tensor:
        """Run a batch; return the logits of its `logit_rows`, in order, valid until the next pass."""
        rows = batch.packed.shape[1]
        if self.refused or not batch.all_rows_wanted or rows > self.most_rows:
            return super().forward(batch)
        fixed = self._fill(batch)
        self._cache.plan(fixed)
        if rows not in self._watched:
            return self._watch(fixed)
        if not self._captures:
            return self._model.forward(fixed, self._cache)
        if rows not in self._graphs:
            self._capture(fixed)
        graph, logits = self._graphs[rows]
        graph.replay()
        return logits

    @property
    def _captures(self) -> bool:
        return self._model.device.type == "cuda"

    def _fill(self, batch: Batch) -> Batch:
        """Copy a batch into the fixed buffers, and return the batch of these buffers."""
        rows = batch.packed.shape[1]
        packed = self._packed[:, :rows]
        packed.copy_(batch.packed)
        return replace(batch, packed=packed, logit_rows=self._logit_rows[:rows])

    def _watch(self, fixed: Batch) -> Tensor:
        """Run the first pass with a number of rows without capture.

        This pass compiles kernels, and shows if the model needs the host.
        """
        try:
            with NoHostSync():  # type: ignore[no-untyped-call,unused-ignore]  # torch has no types
                logits = self._model.forward(fixed, self._cache)
        except HostSyncError as error:
            logger.warning("%s decodes without CUDA graphs: %s", self._model.name, error)
            self.refused = True
            return self._model.forward(fixed, self._cache)
        self._watched.add(fixed.packed.shape[1])
        return logits

    def _capture(self, fixed: Batch) -> None:
        """Capture the pass for a number of rows.

        Raises RuntimeError if the capture fails; the device is then unusable.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                logits = self._model.forward(fixed, self._cache)
        except RuntimeError as error:
            raise CaptureError(
                f"the pass of {self._model.name} over {fixed.packed.shape[1]} rows cannot be captured in a "
                f"CUDA graph; start with --disable-cuda-graph ({error})"
            ) from error
        self._pool = graph.pool()
        self._graphs[fixed.packed.shape[1]] = graph, logits
