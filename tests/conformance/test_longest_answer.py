"""No stream that a scenario asks for is longer than the recorder reads, however it is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

from canned import CannedSender

from tokenwire.ask import Asked
from tokenwire.asking.recorder import MAX_BODY_BYTES, MAX_LINES
from tokenwire.asking.scenario import Conversation, Transcript, load_scenarios
from tokenwire.dialects.dialect import load_dialects
from tokenwire.target.advertised import Advertised

ENTRY = len(json.dumps([-12.345678901234567, 151935, None])) + len(",")
TOKEN = len("151935, token") + 2 * len("151935, ")
"""The id, its text, and what a sampler attaches."""
AROUND = 1000
"""Bytes of an event that hold nothing of the record: names, counters, the id of the request."""


def asked() -> Iterator[tuple[str, Asked]]:
    """All streams, and what was asked of them."""
    transcript = Transcript()
    conversations = [
        Conversation(
            scenario.name,
            load_dialects()["sglang-generate"],
            CannedSender(),
            Advertised(context_length=4096),
            transcript,
        )
        for scenario in load_scenarios().values()
        if not scenario.chat
    ]

    async def talk() -> None:
        for conversation in conversations:
            await load_scenarios()[conversation.scenario].run(conversation)

    asyncio.run(talk())
    return ((stream.exchange.name, stream.asked) for stream in transcript.streams if stream.asked.stream)


def longest(asked: Asked) -> tuple[int, int]:
    """Bytes and lines of a cumulative stream that has an event for each token of each choice."""
    prompts = asked.input_ids or ((),)
    budget = asked.max_new_tokens or 0
    entries = ENTRY * (1 + asked.top_logprobs + len(asked.chosen_ids)) if asked.logprobs else 0
    size = 0
    for prompt in prompts:
        before = AROUND + (entries * len(prompt) if asked.logprob_start is not None else 0)
        size += budget * before + (TOKEN + entries) * budget * (budget + 1) // 2
    return asked.n * size, 2 * asked.n * len(prompts) * budget


def test_every_stream_is_read_to_its_end_token_by_token() -> None:
    sizes = {name: longest(ask) for name, ask in asked()}
    assert "sglang-generate/slow-reader/slow" in sizes
    assert {name: size for name, size in sizes.items() if size[0] > MAX_BODY_BYTES} == {}
    assert {name: size for name, size in sizes.items() if size[1] > MAX_LINES} == {}
