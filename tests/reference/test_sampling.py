"""Sampling draws from the right distribution, and every row by itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tokenwire_reference.core import logprobs
from tokenwire_reference.core.acceptance import last_ids
from tokenwire_reference.core.backends import make_sampler_backend, register_sampler_backend
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.sampling import (
    OutputCounts,
    SamplingRow,
    adjust,
    choose,
    gumbel_noise,
    noise_key,
    support,
)

LOGITS = torch.tensor([2.0, 1.0, 1.0, 0.0, -1.0, -3.0])


def row(position: int = 0, seed: int = 1, times: Any = None, **sampling: Any) -> SamplingRow:
    return SamplingRow(SamplingParams(**sampling), seed, position, times)


def draw(device: str, count: int, logits: torch.Tensor = LOGITS, **sampling: Any) -> list[int]:
    rows = [row(position, **sampling) for position in range(count)]
    return choose(adjust(logits.to(device).repeat(count, 1), rows), rows)


class CountedOperations(TorchDispatchMode):
    """Counts what torch computes while this is open."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_many_biases_take_no_more_operations_than_one() -> None:
    """A request may have 1,024 of them in each of thousands of samples: all others waited 9 s for a step."""
    counts = []
    for biases in (1, 700):
        with CountedOperations() as operations:
            adjusted = adjust(torch.zeros(1, 1000), [row(logit_bias={i: 0.1 * i for i in range(biases)})])
        counts.append(operations.count)
    assert counts[0] == counts[1]
    assert adjusted[0, 699] == torch.tensor(0.0) + 0.1 * 699


def test_frequencies_are_the_probabilities(device: str) -> None:
    count = 20_000
    drawn = torch.bincount(torch.tensor(draw(device, count, temperature=0.7)), minlength=6) / count
    torch.testing.assert_close(drawn, torch.softmax(LOGITS / 0.7, -1), atol=0.01, rtol=0)


def test_noise_is_gumbel_noise_without_pattern(device: str) -> None:
    noise = gumbel_noise([noise_key(3, position) for position in range(300)], 300, torch.device(device))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(1.6449, abs=0.05)
    assert len(noise.unique()) > 89_000
    for shifted in (noise[1:, :] * noise[:-1, :], noise[:, 1:] * noise[:, :-1]):
        assert shifted.mean().item() == pytest.approx(0.5772**2, abs=0.02)


def test_a_seed_draws_the_same_in_every_version(device: str) -> None:
    """What a seed gives is promised: the noise is a known hash of seed, position and id."""
    assert noise_key(7, 5) == 2209851945
    noise = gumbel_noise([noise_key(7, 5)], 3, torch.device(device))
    assert noise[0].tolist() == pytest.approx([0.5081257206641822, -0.9352162300537972, 1.5064928460063218])


def test_noise_depends_on_every_bit_of_the_seed() -> None:
    seeds = [0, 1, -1, 2**31, 2**32, 2**62, -(2**63)]
    assert len({noise_key(seed, 5) for seed in seeds}) == len(seeds)
    assert noise_key(7, 5) != noise_key(5, 7)


@pytest.mark.parametrize(
    ("sampling", "support"),
    [
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 2}, {0, 1}),  # 1 and 2 are equally likely: the lower id ranks first
        ({"top_k": 2**30}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.7}, {0, 1}),
        ({"top_p": 0.95}, {0, 1, 2, 3}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.3}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 4, "min_p": 0.3, "top_p": 0.7}, {0, 1}),
        ({"temperature": 0.0}, {0}),
        ({"top_k": 1, "temperature": 5.0}, {0}),
        ({"logit_bias": {5: 9.0}, "top_k": 1}, {5}),
    ],
)
def test_what_may_be_drawn(device: str, sampling: dict[str, Any], support: set[int]) -> None:
    assert set(draw(device, 3000, **sampling)) == support


def test_equal_ids_rank_by_id(device: str) -> None:
    assert draw(device, 1, torch.tensor([0.0, 3.0, 3.0]), temperature=0) == [1]
    assert set(draw(device, 300, torch.zeros(4000), top_k=5)) == {0, 1, 2, 3, 4}


def test_equal_logprobs_rank_by_id(device: str) -> None:
    request = Request("r", (1,), SamplingParams(), return_logprob=True, top_logprobs_num=4)
    logits = torch.zeros(2, 4000, device=device)
    logits[1, [3000, 17, 2000]] = 1.0
    best = [entries["top_logprobs"] for entries in logprobs.score(logits, [0, 0], [request] * 2)]
    assert [[token_id for _, token_id, _ in row] for row in best] == [[0, 1, 2, 3], [17, 2000, 3000, 0]]


def test_neighbours_change_nothing(device: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 700).to(device)
    rows = [
        row(
            i,
            seed=i % 3,
            temperature=(0.0, 0.3, 1.0, 2.0)[i % 4],
            top_k=(-1, 20)[i % 2],
            top_p=(1.0, 0.8)[i % 5 == 0],
        )
        for i in range(40)
    ]
    together = choose(adjust(logits, rows), rows)
    alone = [choose(adjust(logits[i : i + 1], [r]), [r])[0] for i, r in enumerate(rows)]
    assert together == alone


def test_the_same_seed_and_position_draw_the_same_id(device: str) -> None:
    logits = torch.zeros(1, 700, device=device)
    ids = [choose(logits, [row(9, seed=seed)])[0] for seed in (4, 4, 5)]
    assert ids[0] == ids[1] != ids[2]


def test_penalties_bias_and_temperature(device: str) -> None:
    counts = OutputCounts([0, 0, 5], LOGITS.to(device))
    rows = [
        row(
            times=counts.times(),
            frequency_penalty=0.5,
            presence_penalty=0.25,
            repetition_penalty=2.0,
            logit_bias={3: 1.5},
            temperature=0.5,
        ),
        row(),
    ]
    logits = torch.stack([LOGITS, LOGITS]).to(device)
    adjusted = adjust(logits, rows)
    expected = [(2.0 - 1.25) / 2 / 0.5, 2.0, 2.0, 1.5 / 0.5, -2.0, (-3.0 - 0.75) * 2 / 0.5]
    assert adjusted[0].tolist() == pytest.approx(expected)
    assert torch.equal(adjusted[1].cpu(), LOGITS)
    assert torch.equal(logits[0].cpu(), LOGITS)


class Read(list[int]):
    """A list that tells how many of its ids were read."""

    read = 0

    def __getitem__(self, index: Any) -> Any:
        got = super().__getitem__(index)
        self.read += len(got) if isinstance(index, slice) else 1
        return got


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8), st.lists(st.integers(0, 5), max_size=3))
def test_every_id_is_counted_once_and_drafts_for_now(steps: list[list[int]], drafts: list[int]) -> None:
    output_ids = Read()
    counts = OutputCounts(output_ids, LOGITS)
    for step in steps:
        output_ids += step
        assert counts.times(drafts).tolist() == [list(output_ids + drafts).count(i) for i in range(6)]
    assert counts.times().tolist() == [list(output_ids).count(i) for i in range(6)]
    assert output_ids.read == len(output_ids)


def test_banned_ids_are_never_chosen(device: str) -> None:
    banned = SamplingRow(SamplingParams(temperature=0), 0, 0, None, frozenset({0, 2}))
    adjusted = adjust(LOGITS[None].to(device, copy=True), [banned])
    assert adjusted[0, [0, 2]].tolist() == [float("-inf")] * 2
    assert choose(adjusted, [banned]) == [1]


def test_backends_are_registered_once_and_named() -> None:
    with pytest.raises(ValueError, match="'mirror' is already registered"):
        register_sampler_backend("mirror", lambda: lambda logits, rows, token_ids: {})
    with pytest.raises(ValueError, match="no sampler backend 'nope'; there are: mirror, pytorch"):
        make_sampler_backend("nope")


def test_the_cpu_and_the_device_draw_the_same_ids(device: str) -> None:
    torch.manual_seed(1)
    logits = torch.randn(700)
    assert draw(device, 200, logits) == draw("cpu", 200, logits)


def test_a_bias_brings_back_no_banned_id() -> None:
    row = SamplingRow(
        SamplingParams(temperature=0.0, logit_bias={5: 1e4}),
        seed=0,
        position=0,
        banned_ids=frozenset({5}),
    )
    adjusted = adjust(torch.zeros(1, 8), [row])
    assert adjusted[0, 5] == float("-inf")
    assert not adjusted.isnan().any()
    assert choose(adjusted, [row]) == [0]


def test_whole_temperatures_are_numbers_like_any_other() -> None:
    """A batch in which all were integers made a tensor of int64, which 2**63 overflows."""
    rows = [SamplingRow(SamplingParams(temperature=t), 0, 0) for t in (1, 2, 100)]
    assert adjust(torch.ones(3, 4), rows)[:, 0].tolist() == pytest.approx([1.0, 0.5, 0.01])
    assert adjust(torch.ones(3, 4), rows).dtype == torch.float32


def test_an_id_stays_if_those_before_it_are_exactly_top_p() -> None:
    """Of four equally likely ids, those before the third are a half; those before the fourth are more."""
    assert set(draw("cpu", 300, torch.zeros(4), top_p=0.5)) == {0, 1, 2}


def test_the_rank_of_an_id_counts_those_that_are_likelier() -> None:
    request = Request("r", (1,), SamplingParams(), return_logprob=True, return_ranks=True)
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]] * 4)
    ranks = [entries["token_ranks"] for entries in logprobs.score(logits, [0, 1, 2, 3], [request] * 4)]
    assert ranks == [3, 1, 1, 4]


def test_a_sampling_mask_holds_what_could_be_chosen_and_the_logprob_of_what_was():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]] * 3)
    rows = [
        SamplingRow(SamplingParams(top_k=2), 1, 0),
        SamplingRow(SamplingParams(top_p=0.9, top_k=3, min_p=0.2), 1, 0),
        SamplingRow(SamplingParams(temperature=0.0), 1, 0),
    ]
    found = support(logits, rows, [3, 1, 1])
    assert [ids for ids, _ in found] == [[1, 3], [1, 3], [1]]
    share = 1 / (1 + math.exp(-1))
    assert [logprob for _, logprob in found] == pytest.approx([math.log(1 - share), math.log(share), 0.0])


def test_only_allowed_ids_are_chosen_and_a_banned_one_among_them_is_not() -> None:
    rows = [row(only_ids=(3, 4)), row(only_ids=(3, 4))._replace(banned_ids=frozenset({3})), row()]
    adjusted = adjust(LOGITS.repeat(3, 1), rows)
    assert choose(adjusted, rows) == [3, 4, 0]
    assert adjusted[0].isfinite().nonzero().flatten().tolist() == [3, 4]
    ends = row(only_ids=(3,))._replace(banned_ids=frozenset({3}))
    assert choose(adjust(LOGITS.repeat(1, 1), [ends]), [ends]) == [3], "else nothing could be chosen"


def test_the_last_id_of_a_banned_word_is_banned_behind_its_other_ids() -> None:
    words = ((7,), (1, 2), (1, 2, 3), (9, 9, 9, 9, 9))
    assert last_ids(words, [], []) == {7}
    assert last_ids(words, [5, 1], []) == {7, 2}
    assert last_ids(words, [5, 1], [2]) == {7, 3}
    assert last_ids(words, [9, 9, 9], [9]) == {7, 9}
