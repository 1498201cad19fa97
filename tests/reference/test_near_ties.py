"""A legal server that does not repeat itself: what moves, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from engine_requests import ask, scored

from tokenwire_reference.extras.near_ties import JITTER, NEAR, NearTies

if TYPE_CHECKING:
    from tokenwire_reference.core.loaded_model import LoadedModel

TIE = [2.0, 2.0 - NEAR / 2, 0.0]


def swayed(share: float, request_count: int = 200) -> int:
    """How many of some greedy requests choose the second of two ids that are nearly equally likely."""
    near_ties = NearTies(share, seed=3)
    requests = [ask(f"r{number}") for number in range(request_count)]
    for number, request in enumerate(requests):
        request.seed = number
    moved = near_ties.sway(torch.tensor([TIE] * request_count), [(request, 99) for request in requests])
    return int((moved.argmax(-1) == 1).sum())


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_so_many_answers_go_another_way(share: float) -> None:
    assert swayed(share) == pytest.approx(200 * share, abs=25 if share < 1 else 0)


def test_an_answer_goes_another_way_once_and_only_at_a_near_tie() -> None:
    near_ties, request = NearTies(1.0, seed=3), ask()
    clear = near_ties.sway(torch.tensor([[2.0, 1.0, 0.0]]), [(request, 99)])
    assert int(clear.argmax(-1)) == 0
    chosen = [int(near_ties.sway(torch.tensor([TIE]), [(request, 99)]).argmax(-1)) for _ in range(3)]
    assert chosen == [1, 0, 0]


def test_sampled_requests_go_their_own_way() -> None:
    request = ask(temperature=1.0)
    moved = NearTies(1.0, seed=3).sway(torch.tensor([TIE]), [(request, 99)])
    assert int(moved.argmax(-1)) == 0


def test_logits_move_a_little() -> None:
    logits = torch.tensor([TIE])
    moved = NearTies(0.1, seed=3).jitter(logits)
    assert 0 < float((moved - logits).abs().max()) <= 1.01 * JITTER


def test_an_engine_answers_one_request_in_several_ways(tiny: LoadedModel) -> None:
    from tokenwire_reference.assembly import ExtraArgs, make_engine
    from tokenwire_reference.core.engine import EngineArgs

    engine = make_engine(tiny, EngineArgs(random_seed=1), extra=ExtraArgs(near_ties=1.0))
    answers: dict[int, set[tuple[int, ...]]] = {}
    for turn in range(24):
        first = turn % 8
        request = scored(f"r{turn}", prompt=range(10 + first, 40), new=24)
        engine.add(request)
        while request.finish is None:
            engine.step()
        answers.setdefault(first, set()).add(tuple(request.output_ids))
        tops = request.series["output_top_logprobs"]
        assert [top[0][1] for top in tops] == request.output_ids
    assert max(map(len, answers.values())) > 1
