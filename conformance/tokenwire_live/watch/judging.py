"""Judges one exchange, by the requirements about a single answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tokenwire.checks.check import CHECKS
from tokenwire.dialects.dialect import Dialect
from tokenwire.dialects.recognition import dialects_at, recognise
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.profile import selected
from tokenwire.report.excerpt import excerpt_at
from tokenwire.report.wording import clause
from tokenwire.requirement import Level, Requirement, load_requirements
from tokenwire.target.advertised import Advertised, advertised_by, information_path
from tokenwire.wire.exchange import Exchange
from tokenwire_live.watch.latency import Latencies, latencies

_NEEDS: Mapping[str, str] = {
    "across-responses": "several answers",
    "across-targets": "the worker behind a gateway",
    "arrival": "several answers",
    "refusal": "several answers",
    "script": "a model whose answers are known",
    "side-effect": "control calls",
    "tokenizer": "a tokenizer",
}
"""For each oracle that the proxy cannot apply: the data that the proxy lacks to judge the oracle's
requirements.
"""
_NEEDED_ALWAYS = frozenset(_NEEDS) - {"across-responses", "refusal"}
_LONGEST_MODEL = 100
_AS_IT_IS = frozenset({"", "identity"})


@dataclass(frozen=True)
class Violation:
    """A requirement that an exchange violates, with the place of the first violation."""

    requirement: str
    level: str
    message: str
    event: int | None = None
    pointer: str = ""
    excerpt: str = ""


@dataclass(frozen=True)
class Opinion:
    """The result of judging an exchange."""

    judged: bool = False
    gap: str = ""
    """The reason why the exchange was not judged; empty if it was judged, or if no
    dialect has its endpoint.
    """
    violations: tuple[Violation, ...] = ()
    crashed: tuple[str, ...] = ()
    """The requirements whose checks crashed."""
    dialect: str = ""
    recorded: str = ""
    """The path of the capture; empty if the exchange was not recorded."""
    unrecorded: str = ""
    """The reason why recording the exchange failed; empty if it did not."""
    exchange: str = ""
    """The name of the exchange."""
    started: str = ""
    method: str = ""
    path: str = ""
    """The path of the request, with credentials removed."""
    model: str = ""
    """The model name in the request. If the request has no model name, the model name in the response."""
    latencies: Latencies | None = None
    """The token latencies of a stream; None for other responses."""


def single_answer_requirements(profiles: Collection[str] = ()) -> list[Requirement]:
    """Return the requirements about a single answer.

    `profiles`: only the requirements of these profiles; empty for all requirements.
    """
    rows = selected(profiles) if profiles else load_requirements().values()
    return [row for row in rows or () if not row.excluded and not _need(row)]


def unwatched(profiles: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the requirements that the proxy cannot judge, by the missing data.

    `profiles`: only the requirements of these profiles; empty for all requirements.
    """
    rows = selected(profiles) if profiles else load_requirements().values()
    lacking: dict[str, list[str]] = {}
    for row in rows or ():
        if not row.excluded and (need := _need(row)):
            lacking.setdefault(need, []).append(row.id)
    return lacking


def _need(row: Requirement) -> str:
    """Describe the data that a requirement needs besides a single answer.

    Return an empty text if it needs nothing else.
    """
    check = CHECKS.get(row.id)
    sees = check is not None and check.seen_in_one_answer
    return "" if sees and row.oracle not in _NEEDED_ALWAYS else _NEEDS.get(row.oracle, "several answers")


@dataclass
class ExchangeJudge:
    """Judges exchanges one by one.

    It remembers only the target's responses with information about the target, and the dialects of the
    target.
    """

    requirements: list[Requirement] = field(default_factory=single_answer_requirements)
    _information: dict[str, Exchange] = field(default_factory=dict)
    """The latest response of each information endpoint."""
    _advertised: Advertised = field(default_factory=Advertised)
    _marked: dict[tuple[Dialect, ...], Dialect] = field(default_factory=dict)
    """For dialects that share an endpoint, the dialect whose mark was seen in a response."""

    def judge(self, exchange: Exchange) -> Opinion:
        """Judge an exchange. A response never causes an exception, whatever the target sends."""
        information = information_path(exchange.request)
        if information is not None:
            if exchange.status == 200:
                self._information[information] = exchange
                self._advertised = advertised_by(self._information.values())
            return Opinion()
        dialect = self._dialect(exchange)
        if dialect is None:
            return Opinion()
        encoding = (exchange.header("content-encoding") or "").strip().lower()
        # A client may request compressed answers, which the suite never does.
        if encoding not in _AS_IT_IS:
            return Opinion(gap="compressed", dialect=dialect.name)
        advertised = self._advertised
        stream = dialect.read(exchange, delivery_hint=advertised.delivery, adapters=advertised.adapters)
        run = Run((stream,), self._advertised)
        violations, crashed = [], []
        for judgement in judge([run], self.requirements):
            if judgement.verdict is Verdict.HARNESS_ERROR:
                crashed.append(judgement.requirement.id)
            elif judgement.verdict in {Verdict.FAIL, Verdict.WARN}:
                first = judgement.violations[0]
                violations.append(
                    Violation(
                        judgement.requirement.id,
                        (Level.MUST if judgement.verdict is Verdict.FAIL else Level.SHOULD).value,
                        clause(first),
                        first.place.event,
                        first.place.pointer,
                        excerpt_at(run.streams[0].load(), first.place, first.actual).text,
                    )
                )
        return Opinion(
            judged=True,
            violations=tuple(violations),
            crashed=tuple(crashed),
            dialect=dialect.name,
            model=(stream.asked.model or self._advertised.model)[:_LONGEST_MODEL],
            latencies=latencies(stream),
        )

    def _dialect(self, exchange: Exchange) -> Dialect | None:
        candidates = dialects_at(exchange.request)
        if not candidates:
            return None
        recognised = recognise(candidates, [exchange])
        if recognised.by_mark and recognised.dialect is not None:
            self._marked[candidates] = recognised.dialect
            return recognised.dialect
        # An answer without marks, such as an error, is assigned to the dialect of earlier answers.
        return self._marked.get(candidates, recognised.dialect)
