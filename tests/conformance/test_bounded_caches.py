"""What a target writes is kept no longer than the answer that it stands in."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable

import pytest
from wire_answers import DONE, answered

EVENT = {"text": "a", "output_ids": [7], "index": 0}
ANSWERS, SIZE = 30, 200_000


def with_a_long_number(nth: int) -> str:
    """A float of digits that no two answers share, with an exponent that only the careful reader takes."""
    return json.dumps({**EVENT, "meta_info": {"x": 1}}).replace("1}", f"0.{nth}{'1' * SIZE}e001}}")


def with_keys_of_its_own(nth: int) -> str:
    keys = {f"{nth}-{key}-{'k' * 100}": [7] for key in range(SIZE // 100)}
    return json.dumps({**EVENT, "meta_info": keys})


@pytest.mark.parametrize("write", [with_a_long_number, with_keys_of_its_own])
def test_dropped_answers_leave_nothing_behind(write: Callable[[int], str]) -> None:
    def read(nth: int) -> None:
        stream = answered("sglang-generate", {"stream": True}, write(nth), DONE)
        assert stream.choices[0].emissions

    read(0)
    gc.collect()
    tracemalloc.start()
    try:
        for nth in range(ANSWERS):
            read(1000 + nth)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < SIZE * ANSWERS // 10
