"""Scenarios that provoke a condition: they ask until it occurs, and so often at most."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
from canned import CannedSender
from recorded import document

from tokenwire.asking.scenario import Conversation, Transcript
from tokenwire.dialects.dialect import load_dialects
from tokenwire.scenarios.invariance import _TURNS, _preempted
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Exchange, HttpRequest


class Preempting(CannedSender):
    """Preempts the answers to some prompts, another choice of them in each turn; the last choice stays."""

    def __init__(self, *turns: Collection[int]) -> None:
        super().__init__()
        self._turns = turns

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        position, turn = map(int, name.rpartition("/")[2].split("-"))
        answer = document([97] * 8, finished=True)
        answer["meta_info"]["num_retractions"] = int(position in self._turns[min(turn, len(self._turns) - 1)])
        self.body = json.dumps(answer).encode()
        return await super().send(name, scenario, request, **how)


@pytest.mark.parametrize(
    ("turns", "asked"),
    [
        ([()], 1),
        ([(7,), (7,), (7, 6), (5,)], 4),
        ([(7, 6), (3,)], 2),
        ([(7,)], _TURNS),
        ([range(8)], _TURNS),
    ],
    ids=["nothing is preempted", "long the same one", "others at once", "for ever the same one", "all"],
)
def test_until_one_of_each_kind_was_preempted_and_spared(turns: list[Collection[int]], asked: int) -> None:
    sender = Preempting(*turns)
    dialect = load_dialects()["sglang-generate"]
    asyncio.run(_preempted(Conversation("preempted", dialect, sender, Advertised(), Transcript())))
    assert Counter(name.rpartition("-")[2] for name in sender.names) == {
        str(turn): 8 for turn in range(asked)
    }
