"""`builtin:scripted`: a model that outputs the tokens of a script, step by step. Its tokens are bytes.

A script is a JSON list with one entry for each step. The entry `[5, 6]` outputs two tokens in one step. A
text outputs one token in each step. An object may delay a step or make it fail: `{"ids": [7], "sleep_ms":
50}`, `{"error": "words"}`. An object without ids applies to the next step. After the script, the
end-of-sequence token follows. A request may contain its script in `custom_params.script`. Otherwise it gets
the script of `--script`, or else its own prompt, token by token.

Like the tokens of any model, scripted tokens pass through drafts, logits, sampling and stop rules. The logits
are made from position and id, and the scripted id has the highest logit. If a request samples, the distance
is so large that sampling chooses the scripted id. Bans, penalties and biases apply afterwards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from tokenwire_reference.core.attention import PagedTensors
from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.hooks import Adapters, Experts, HiddenStates
from tokenwire_reference.core.request import Request, SequenceError
from tokenwire_reference.core.sampling import MASK32, gumbel_noise
from tokenwire_reference.extras.builtin import IM_END, VOCAB_SIZE, byte_level_tokenizer

SCRIPTED = "builtin:scripted"
CONTEXT_LENGTH = 4096
LONGEST_SLEEP_MS = 60_000
GREEDY_LEAD = 1.0
SAMPLED_LEAD = 50.0
"""The distance of the scripted id's logit for requests that sample.

Gumbel noise of 32 bits cannot exceed it.
"""

NOISE = gumbel_noise([1], VOCAB_SIZE, torch.device("cpu"))[0].float().repeat(2).numpy()
"""The noise from which logits are made. It is repeated once, so that a row can begin at any offset."""
ROWS = sliding_window_view(NOISE, VOCAB_SIZE)
"""Views of the noise, one row for each offset: [offset, vocabulary]."""
HIGHEST = NOISE.max()

Json = Any


@cache
def _tokenizer() -> Any:
    return byte_level_tokenizer()


def _encode(text: str) -> Sequence[int]:
    ids: Sequence[int] = _tokenizer().encode(text, add_special_tokens=False)
    return ids


class Script:
    """The parsed script of one request. Raises ValueError with the invalid entry."""

    def __init__(self, steps: Json, prompt_token_ids: Sequence[int]) -> None:
        self._prompt = prompt_token_ids
        self._ids: list[int] = []
        self._step_end: list[int] = []
        """For each id, the number of ids up to the end of its step."""
        self._sleep: dict[int, float] = {}
        self._errors: dict[int, str] = {}
        if not isinstance(steps, list):
            raise ValueError(  # noqa: TRY004 - a value from the wire
                f"the script is {steps!r}; give a list with one entry for each step"
            )
        for index, step in enumerate(steps):
            name = f"script[{index}]"
            if isinstance(step, str):
                for token_id in _encode(step):
                    self._read(name, {"ids": [token_id]})
            elif type(step) is list and len(step) == 1 and type(step[0]) is int and 0 <= step[0] < VOCAB_SIZE:
                self._ids += step  # most entries are lists of one id
                self._step_end.append(len(self._ids))
            else:
                self._read(name, step if isinstance(step, dict) else {"ids": step})

    def _read(self, name: str, step: Mapping[str, Json]) -> None:
        index = len(self._ids)
        for key, value in step.items():
            match key, value:
                case "ids", [*ids] if ids and all(type(i) is int and 0 <= i < VOCAB_SIZE for i in ids):
                    self._ids += ids
                    self._step_end += [len(self._ids)] * len(ids)
                case "sleep_ms", int() | float() if 0 <= value <= LONGEST_SLEEP_MS:
                    self._sleep[index] = self._sleep.get(index, 0.0) + value / 1000
                case "error", str():
                    self._errors[index] = value
                case _:
                    raise ValueError(
                        f"{name}.{key} is {value!r}; give a text, ids (at least one, each from 0 to "
                        f"{VOCAB_SIZE - 1}), sleep_ms (up to {LONGEST_SLEEP_MS}) or error (a string)"
                    )

    @property
    def takes_time(self) -> bool:
        return bool(self._sleep)

    def draft(self, token_ids: Sequence[int], room: int) -> Sequence[int]:
        """Begin the next step: sleep or fail as the script requires, and return all ids of the step except
        the last.
        """
        index = len(token_ids) - len(self._prompt)
        if index in self._sleep:
            time.sleep(self._sleep[index])
        if index in self._errors:
            raise SequenceError(self._errors[index])
        last = self._step_end[index] - 1 if index < len(self._ids) else index
        return self._ids[index : min(last, index + room)]

    def following(self, position: int) -> int:
        """Return the id that follows a position of the prompt or of the output."""
        index = position + 1 - len(self._prompt)
        if index < 0:
            return self._prompt[position + 1]
        return self._ids[index] if index < len(self._ids) else IM_END


class NoCache(PagedTensors):
    """The KV cache of a model that has no layers."""

    def __init__(self) -> None:
        self.keys, self.values, self.page_size = [], [], 1

    def plan(self, batch: Batch) -> None:
        """Do nothing, because no preparation is needed."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        raise NotImplementedError("a scripted model has no attention")


class ScriptedModel:
    """A model for the engine that computes nothing."""

    name = SCRIPTED
    module = None
    hidden_states = HiddenStates()
    experts = Experts()
    adapters = Adapters()
    vocab_size = VOCAB_SIZE
    eos_token_ids = frozenset({IM_END})
    device = torch.device("cpu")
    dtype = torch.float32
    row_sizes: tuple[int, ...] = ()

    def __init__(
        self, *, script: str | None = None, context_length: int | None = None, tokenizer: bool = True
    ) -> None:
        """Initialize.

        `script` is a file with the script for requests that contain no script. Raises ValueError and OSError.
        """
        self.context_length = context_length or CONTEXT_LENGTH
        self.tokenizer: Any = _tokenizer() if tokenizer else None
        self._script: Json = None
        if script is not None:
            try:
                self._script = json.loads(Path(script).read_text())
                Script(self._script, ())
            except ValueError as error:
                raise ValueError(f"{script} is not a script: {error}") from error

    def drafter(self, request: Request) -> Script:
        script = (request.sampling.custom_params or {}).get("script", self._script)
        if script is None:
            script = [[token_id] for token_id in request.prompt_token_ids]
        return Script(script, request.prompt_token_ids)

    def other_weights(self, path: str) -> Any:
        raise ValueError(f"{self.name} has no weights for {path} to replace")

    def fingerprint(self) -> str:
        return "scripted"

    def bytes_per_token(self) -> int:
        return 1

    def new_cache(self, num_pages: int, page_size: int, seats: int) -> NoCache:
        del num_pages, page_size, seats
        return NoCache()

    def pad_rows(self, rows: int) -> int:
        return rows

    def probe_row_sizes(self, largest: int) -> None:
        """Do nothing, because no rows are computed."""

    def forward(self, batch: Batch, cache: object) -> Tensor:
        """Return made-up logits of the wanted rows: [R, vocabulary], float32."""
        del cache
        places = [
            (segment.sequence, position) for segment in batch.segments for position in segment.positions
        ]
        ids, begins, leads = [], [], []
        for row in batch.logit_rows.tolist():
            sequence, position = places[row]
            sampling = sequence.request.sampling
            assert isinstance(sequence.drafter, Script)
            token_id = sequence.drafter.following(position)
            made_up = (token_id * 0x9E3779B1 ^ position * 0x85EBCA6B) * 0xC2B2AE35 & MASK32
            ids.append(token_id)
            begins.append(made_up % VOCAB_SIZE)
            # The offset gives each position different logprobs.
            lead = GREEDY_LEAD if sampling.greedy else SAMPLED_LEAD * sampling.temperature
            leads.append(lead + made_up / 2**33)
        logits = ROWS[begins]
        logits[range(len(ids)), ids] = HIGHEST + numpy.array(leads, numpy.float32)
        return torch.from_numpy(logits)
