"""Passes that are played from a tape: the bits of the model, or no tape at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_requests import ask, neighbours, record
from torch import Tensor, nn

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import Request
from tokenwire_reference.core.request_extras import EMBEDDING, WANTS_EMBEDDING
from tokenwire_reference.extras import tape
from tokenwire_reference.extras.tape import Tapes
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]


class Doubles:
    """Attention of little sense: twice the query, as [1, T, H, D]."""

    calls = 0

    def plan(self, batch: object) -> None:
        pass

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        self.calls += 1
        return (2 * query).transpose(1, 2)


class Layer(nn.Module):
    """Views, writes in place, tuples and lists of tensors, and attention in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)))

    def forward(self, paged: Doubles, hidden: Tensor) -> Tensor:
        first, second = (hidden @ self.weight).float().chunk(2, -1)
        both = torch.cat([first, -second], dim=-1)
        both[..., 1:3] = hidden[:, 0:4:2].contiguous()
        both.add_(1.0)
        query = both[None, None]
        attended = paged.attend(0, query, query, query, scaling=1.0, window=None)
        values, _ = attended[0, :, 0].sort(dim=-1)
        return values[:, slice(None, None, 2)] * hidden.shape[0]


def tapes_of(layer: Layer) -> Tapes:
    return Tapes(layer, [*layer.parameters()])


@pytest.fixture(autouse=True)
def _inference() -> Any:
    with torch.inference_mode():
        yield


def test_a_tape_does_what_the_pass_does_over_other_inputs() -> None:
    layer, paged = Layer(), Doubles()
    tapes = tapes_of(layer)
    forward = layer.forward
    for rows in (3, 5, 3, 3, 5):
        hidden = torch.randn(rows, 8)
        before = paged.calls
        assert torch.equal(tapes.run(paged, hidden), forward(Doubles(), hidden))
        assert paged.calls == before + 1
    assert not tapes.refused


def test_each_number_of_rows_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, runs = Layer(), []
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *words: runs.append(1) or forward(*words))
    tapes = tapes_of(layer)
    for rows in (3, 5, 3, 3, 5):
        tapes.run(Doubles(), torch.randn(rows, 8))
    assert len(runs) == 2


def test_only_the_tapes_that_were_played_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixed load made one of 40 kB every dozen requests, for hours."""
    monkeypatch.setattr(tape, "MOST_TAPES", 2)
    layer, runs = Layer(), []
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *words: runs.append(len(words[1])) or forward(*words))
    tapes = tapes_of(layer)
    for rows in (3, 5, 3, 7, 3, 5):
        tapes.run(Doubles(), torch.randn(rows, 8))
    assert runs == [3, 5, 7, 5]


class Remembers(Layer):
    """What it gives depends on what it was given before."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(3, 8)

    def forward(self, paged: Doubles, hidden: Tensor) -> Tensor:
        before, self.seen = self.seen, hidden
        return hidden + before


class Peeks(Layer):
    """What it does depends on a value."""

    def forward(self, paged: Doubles, hidden: Tensor) -> Tensor:
        return hidden * 2 if hidden.sum() > 0 else hidden


class Reads(Layer):
    """What it does depends on a value that is read past all operations."""

    def forward(self, paged: Doubles, hidden: Tensor) -> Tensor:
        return hidden * hidden[0].tolist()[0]


@pytest.mark.parametrize("kind", [Remembers, Peeks, Reads])
def test_a_pass_that_depends_on_more_than_its_rows_is_never_played(kind: type[Layer]) -> None:
    tapes, alone = tapes_of(kind()), kind()
    for sign in (1, -1, 1, -1):
        hidden = sign * torch.ones(3, 8)
        assert torch.equal(tapes.run(Doubles(), hidden), alone(Doubles(), hidden))


def test_a_refusal_holds_for_all_numbers_of_rows() -> None:
    tapes = tapes_of(Peeks())
    tapes.run(Doubles(), torch.ones(3, 8))
    assert tapes.refused


def test_an_engine_says_the_same_by_tape(tiny: LoadedModel, run_to_end: Run) -> None:
    played = run_to_end(make_engine(tiny), *neighbours(6))
    plain = load_model("builtin:tiny", device=str(tiny.device))
    assert isinstance(plain, LoadedModel)
    plain.tapes.refused = True
    assert [record(item) for item in run_to_end(make_engine(plain), *neighbours(6))] == list(
        map(record, played)
    )
    assert tiny.tapes.refused is False


def test_an_embedding_is_of_its_own_pass(tiny: LoadedModel, run_to_end: Run) -> None:
    first, again = (ask(f"e{i}", (5 + i,), 0, extras={WANTS_EMBEDDING: True}) for i in range(2))
    run_to_end(make_engine(tiny), first)
    run_to_end(make_engine(tiny), ask("between", (9,), 4))
    run_to_end(make_engine(tiny), again)
    assert EMBEDDING.of(first) != EMBEDDING.of(again)
