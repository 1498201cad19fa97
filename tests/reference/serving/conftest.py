"""What the tests of the reference's serving half share: an engine that follows a script, and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenwire_reference.request import FinishReason, Request
from transformers import AutoTokenizer

MODELS = Path(__file__).parents[3] / "fixtures" / "models"


class ScriptedEngine:
    """An engine that gives each request the ids of a script, some for each step, and then its end.

    Every id comes with a logprob entry where asked for, and with the customized_info that `info` makes of
    (position, id).
    """

    def __init__(
        self,
        script: Sequence[Sequence[int]],
        *,
        finish: FinishReason | None = None,
        info: Callable[[int, int], dict[str, Any]] = lambda position, token_id: {},
    ) -> None:
        self.script = [list(ids) for ids in script]
        self.finish = finish or FinishReason("length", length=sum(len(ids) for ids in script))
        self.info = info
        self.live: dict[str, tuple[Request, int]] = {}
        self.aborted: list[str] = []
        self.flushed = 0

    @property
    def idle(self) -> bool:
        return not self.live

    def add(self, request: Request) -> None:
        if not request.prompt_token_ids:
            raise ValueError("the prompt is empty")
        self.live[request.rid] = (request, 0)

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)
        if rid in self.live:
            self.live[rid][0].finish = FinishReason("abort", message="Aborted")

    def step(self) -> list[Request]:
        touched = []
        for rid, (request, at) in list(self.live.items()):
            if request.finish is None:
                for token_id in self.script[at]:
                    self._append(request, token_id)
                if at + 1 == len(self.script):
                    request.finish = self.finish
            self.live[rid] = (request, at + 1)
            if request.finish is not None:
                del self.live[rid]
            touched.append(request)
        return touched

    def _append(self, request: Request, token_id: int) -> None:
        entry = [-0.5, token_id, None]
        entries: dict[str, Any] = {"output_token_logprobs": entry} if request.return_logprob else {}
        if request.return_logprob and request.top_logprobs_num:
            entries["output_top_logprobs"] = [entry] * request.top_logprobs_num
        request.append(token_id, entries, self.info(len(request.output_ids), token_id))

    def flush_cache(self) -> bool:
        self.flushed += 1
        return self.idle


@pytest.fixture
def scripted_engine() -> type[ScriptedEngine]:
    return ScriptedEngine


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """The byte-level tokenizer of the tiny-qwen2 fixture: some of its ids are single bytes."""
    return AutoTokenizer.from_pretrained(MODELS / "tiny-qwen2")


@pytest.fixture(scope="session")
def llama_tokenizer() -> Any:
    """The tokenizer of the tiny-llama fixture."""
    return AutoTokenizer.from_pretrained(MODELS / "tiny-llama")
