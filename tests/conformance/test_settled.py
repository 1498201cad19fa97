from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hand_made_stream import ids_stream
from hand_made_stream import made_up_row as row

from tokenwire.judging.check import CHECKS, Check, Observation, Target, observe
from tokenwire.judging.judge import Run, judge
from tokenwire.judging.settled import settled
from tokenwire.record import Stream


def test_what_was_read_is_out_of_the_collectors_way_while_checks_look_at_it(monkeypatch) -> None:
    frozen: list[int] = []

    def note(stream: Stream, _target: Target) -> Iterator[Observation]:
        frozen.append(gc.get_freeze_count())
        yield observe(stream.events[0].place, expected=1, actual=1)

    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", on_stream=note))
    streams = tuple(ids_stream(*([token] for token in range(50))) for _ in range(10))
    before = gc.get_freeze_count()
    judge([Run(streams)], [row()])
    assert min(frozen) - before > sum(len(stream.events) for stream in streams)
    assert gc.get_freeze_count() == before


def test_the_collector_sees_all_again_after_a_failure() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError), settled():
        1 / 0  # noqa: B018  # raises
    assert gc.get_freeze_count() == before
