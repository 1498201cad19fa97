"""What was recorded is named by its repr, not spelled out: asyncio writes the repr of what `asyncio.run`
gives back, and that is all that a run recorded, several times over.
"""

from __future__ import annotations

from hand_made_stream import ids_stream

from tokenwire.judging.run import Run
from tokenwire.report.subject import Subject
from tokenwire.target.determinism import Comparison


def repr_of_a_run_with(ids: int) -> str:
    stream = ids_stream(*([token] for token in range(1000, 1000 + ids)))
    return repr(Subject(runs=(Run((stream,), beside=(Comparison(stream, stream),)),)))


def test_the_repr_of_a_run_does_not_grow_with_its_answers() -> None:
    assert len(repr_of_a_run_with(1)) == len(repr_of_a_run_with(500))


def test_the_repr_of_a_run_names_its_exchanges() -> None:
    assert ids_stream([1]).exchange.name in repr_of_a_run_with(1)
