"""The bench: judges one answer, or two side by side, and makes the page's view of them.

It works in its own process, so that judging does not delay the times of arriving data.
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
"""The servers that a page may ask: its target, the worker behind it, and another deployment."""
COUNTS = ("violated", "events", "tokens", "characters")
"""The names of the counts in the row of an answer."""
_WHILE_IT_COMES, _AT_THE_END = 60, 240
"""The most events of a view, during and after the answer."""


@dataclass(frozen=True)
class Answer:
    """An exchange of the page, as far as it has arrived."""

    exchange: Exchange
    dialect: str
    under_way: bool = False
    to: str = TARGET


@dataclass(frozen=True)
class Question:
    """A task of the bench: judge an answer and, with `number`, make its view."""

    answer: Answer
    number: int | None = None
    beside: Answer | None = None
    root: str = ""
    """The relative address of the folder with the pages of sentences."""


@dataclass(frozen=True)
class Bench:
    """Facts about the target, and the advertisements of each server."""

    dialects: Mapping[str, Dialect]
    advertised: Mapping[str, Advertised] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    pieces: Sequence[bytes] = ()
    """The bytes of each id, if the vocabulary is known."""
    limit_s: float = DEFAULT_LIMIT_S
    """The processor time limit of a check."""

    def __call__(self, question: Question) -> dict[str, Any]:
        """Return the counts of an answer for its row, and its view."""
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
        """Return the run to judge. Two servers are compared only if one is the gateway of the other."""
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
        """Return the rows to judge: those that a single answer can violate, or all for two complete answers.

        Half a document is not an answer yet.
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
