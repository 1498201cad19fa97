"""Judges one answer, or two answers for comparison, and creates the view of the answers for the page.

This runs in a separate process, so that judging does not distort the arrival times of data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tokenwire.dialects.dialect import Dialect
from tokenwire.judging.beside import side_by_side
from tokenwire.judging.clock import DEFAULT_LIMIT_S
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.report.answer_view import answer_view
from tokenwire.requirement import Requirement
from tokenwire.target.advertised import Advertised
from tokenwire.target.tokenizer import Tokenizer
from tokenwire.wire.exchange import Exchange
from tokenwire_live.watch.judging import single_answer_requirements

TARGET, WORKER, TWIN = "target", "worker", "twin"
"""The servers that may be named in a request from the page: the target, the worker behind it, and another
deployment.
"""
COUNTS = ("violated", "events", "tokens", "characters")
"""The names of the counts in the row of an answer."""
_WHILE_IT_COMES, _AT_THE_END = 60, 240
"""The most events that are shown while an answer arrives, and after it has ended."""


@dataclass(frozen=True)
class Answer:
    """An exchange that was sent from the page, as far as it has arrived."""

    exchange: Exchange
    dialect: str
    under_way: bool = False
    to: str = TARGET


@dataclass(frozen=True)
class Question:
    """A task for the judging process: judge an answer and, if `number` is set, create the
    view of the answer.
    """

    answer: Answer
    number: int | None = None
    beside: Answer | None = None
    root: str = ""
    """The relative URL of the folder with the pages of requirements."""


@dataclass(frozen=True)
class Bench:
    """Judges answers, with the known facts about the servers."""

    dialects: Mapping[str, Dialect]
    advertised: Mapping[str, Advertised] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    pieces: Sequence[bytes] = ()
    """The bytes of each id, if the vocabulary is known."""
    limit_s: float = DEFAULT_LIMIT_S
    """The limit of processor time for one check of one answer, in seconds."""

    def __call__(self, question: Question) -> dict[str, Any]:
        """Return the counts for an answer's row in the table, and its view if one is requested."""
        stream = self._read(question.answer)
        beside = self._read(question.beside) if question.beside is not None else None
        run, rows = self._run(question, stream, beside), self._rows(question, stream)
        judgements = judge([run], rows, limit_s=self.limit_s)
        bad = [row.requirement.id for row in judgements if row.verdict in {Verdict.FAIL, Verdict.WARN}]
        tokens = sum(len(choice.output_ids or ()) for choice in stream.choices)
        text = "".join(choice.text or "" for choice in stream.choices)
        counts = dict(zip(COUNTS, (bad, len(stream.events), tokens, len(text)), strict=True))
        if question.number is None:
            return counts
        return counts | answer_view(
            stream,
            judgements,
            number=question.number,
            most_events=_WHILE_IT_COMES if question.answer.under_way else _AT_THE_END,
            beside=beside,
            spell=self._spell,
            root=question.root,
        )

    def _run(self, question: Question, stream: Stream, beside: Stream | None) -> Run:
        """Return the run to judge.

        Answers of two servers are compared only if one server is a gateway and the other server is its
        worker.
        """
        run = Run((stream,), self._advertised_by(question.answer), tokenizer=self.tokenizer)
        if question.beside is None or beside is None:
            return run
        sides = {question.answer.to: stream, question.beside.to: beside}
        if len(sides) == 1:
            return replace(run, streams=(stream, beside))
        if sides.keys() == {TARGET, WORKER}:
            pairs = side_by_side([sides[WORKER]], [sides[TARGET]], lambda _: ("", ""))
            return replace(run, beside=tuple(pairs), worker_asked=True)
        return run

    def _rows(self, question: Question, stream: Stream) -> list[Requirement] | None:
        """Return the requirements to judge: the requirements about a single answer, or None (all
        requirements) for two complete answers.

        An incomplete JSON document is not judged.
        """
        if question.answer.under_way and not stream.asked.stream:
            return []
        compared = question.beside is not None and not question.beside.under_way
        return None if compared and not question.answer.under_way else single_answer_requirements()

    def _read(self, answer: Answer) -> Stream:
        dialect = self.dialects[answer.dialect]
        return dialect.read(answer.exchange, delivery_hint=self._advertised_by(answer).delivery)

    def _advertised_by(self, answer: Answer) -> Advertised:
        return self.advertised.get(answer.to, Advertised())

    def _spell(self, ids: Sequence[int]) -> bytes | None:
        if not self.pieces or not all(type(token) is int and 0 <= token < len(self.pieces) for token in ids):
            return None
        return b"".join(self.pieces[token] for token in ids)
