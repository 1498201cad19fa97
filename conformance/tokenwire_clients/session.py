"""The test of one client: the client's requests, its reports, and the verdicts on both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Any, NamedTuple

from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import bringing, end_place
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.judge import Judgement
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import VIOLATED, Verdict, exit_status
from tokenwire.record import Delivery, Place, Stream
from tokenwire.report.document import document
from tokenwire.report.subject import ANSWER, Subject
from tokenwire.requirement import Level, Requirement
from tokenwire.typed_table import counted
from tokenwire.wire.exchange import Exchange, Read
from tokenwire_clients.behaviour import AFTER_S, all_cases, behaviour_of
from tokenwire_clients.held import Difference, differences, finished, held_by, reported_fields
from tokenwire_clients.vectors import Door, Vector, sentences, whole

_LEAVES_WITHIN_S = 5.0
"""Seconds within which a client that has reported must close a stream that does not end."""
_SHOWN_READS = 5_000
_READS_OF_A_CHARACTER = 5
"""The largest number of parts into which a long case is divided, per character of text."""
_STOPS = "streams-are-read-to-their-end"
_EVERY_DELTA = "every-delta-is-kept"
_OF_TEXT = {_EVERY_DELTA, "cumulative-replaces"}
UNENDED_FINISH = "-unended-finish"
_APART_FROM_THE_FINISH = "-finish-alone"
"""The suffix of a case's name.

The case with this suffix has the same answer, but its finish is in an event of its own, without a token.
"""
_OF_FIELD = {
    "choices": "choices-are-kept-apart",
    "reasoning": "reasoning-is-kept-apart",
    "signatures": "signatures-are-kept",
    "calls": "calls-are-joined",
    "finish": "finish-is-kept",
    "usage": "usage-is-read-where-it-stands",
    "error": "errors-are-told",
    "output_ids": "lists-stay-in-step",
    "logprobs": "lists-stay-in-step",
    "customized_info": "lists-stay-in-step",
    "weight_versions": "lists-stay-in-step",
}
"""The requirement that a client violates if it gets a field wrong even in the simplest cases."""
_LISTS = {field for field, sentence in _OF_FIELD.items() if sentence == "lists-stay-in-step"}
_ANYWHERE = {"error", "connection", "wait", "choices"}
"""Fields whose error always has the same cause, which is the subject of the case."""
Key = tuple[str, str]


class Asked(NamedTuple):
    """A request that a client has sent."""

    time: float
    connection: int
    begins: bool = False
    """True if the request is the first request on its connection."""


class Finding(NamedTuple):
    """A mistake of a client in one case, with the requirement that it violates."""

    case: Key
    sentence: str
    difference: Difference


@dataclass
class Session:
    """All requests and reports of one client, and the verdicts on them."""

    client: str = "client"
    command: tuple[str, ...] = ("tokenwire", "torture", "--case", ANSWER)
    """The command line that repeats one case. `ANSWER` is replaced by the name of the case."""
    cases: Mapping[Key, tuple[Door, Vector]] = field(default_factory=all_cases)
    asked: dict[Key, list[Asked]] = field(default_factory=lambda: defaultdict(list))
    wrong: dict[Key, list[Difference]] = field(default_factory=dict)
    """The differences in each reported case. Empty for a case with a correct report."""
    reported: dict[Key, frozenset[str]] = field(default_factory=dict)
    """The names of the fields in each report."""
    sent: dict[Key, int] = field(default_factory=dict)
    """The number of parts of the latest answer that were sent.

    A part is sent only after the client has received the previous part.
    """
    given_up: dict[Key, str] = field(default_factory=dict)
    """For each case that an adapter gave up while its client was still reading: the time after which the
    adapter gave up.
    """
    stopped: dict[Key, bool] = field(default_factory=dict)
    """True if the report of a wrong case has exactly the content up to the first finish."""
    unended: dict[str, bool] = field(default_factory=dict)
    """True for each endpoint at which the client processes a last event without a blank line after it."""
    _kept: Key | None = None
    """The latest case about keeping the connection. The next request shows if the client kept it."""
    _left: dict[Key, Event] = field(default_factory=lambda: defaultdict(Event))
    _lock: Lock = field(default_factory=Lock)

    def note(self, door: str, case: str, asked: Asked) -> int:
        """Record a request, and return the number of earlier requests for the same case."""
        with self._lock:
            if self._kept is not None:
                self._see_connection(self._kept, asked)
                self._kept = None
            self.asked[door, case].append(asked)
            return len(self.asked[door, case]) - 1

    def _see_connection(self, key: Key, asked: Asked) -> None:
        """Check if a request uses the right connection, after a case about keeping it."""
        kept, before = behaviour_of(key[1]).keeps, self.asked[key][-1].connection
        wrong = asked.begins if kept else asked.connection == before
        words = ("one that is open", "a new one") if kept else ("another one", "the closed one")
        self.wrong[key] += [Difference("connection", None, *words)] if wrong else []
        self.reported[key] |= {"connection"}

    def left(self, door: str, case: str) -> None:
        """Record that the client has closed its connection."""
        self._left[door, case].set()

    def listed(self, door: str = "") -> list[dict[str, Any]]:
        """Return the cases of one endpoint or of all, with the requests that a client must send."""
        return [
            {
                "door": name,
                "case": id_,
                "comment": case.comment,
                "base": f"/{name}/{id_}",
                "path": found.path,
                "request": {**case.request, "model": f"{name}/{id_}"},
                "leave": behaviour_of(id_).held_open,
            }
            for (name, id_), (found, case) in self.cases.items()
            if door in {"", name}
        ]

    def take(self, door: str, case: str, report: dict[str, Any]) -> dict[str, Any]:
        """Record a client's report, and return the verdict and the mistakes."""
        if "given_up" in report:
            self.given_up[door, case] = str(report["given_up"])
            return {"verdict": Verdict.INCONCLUSIVE.value, "findings": [], "record": None}
        self.wrong[door, case] = list(self._differences((door, case), report))
        all_over = self.asked.keys() <= self.wrong.keys() | self.given_up.keys()
        if behaviour_of(case).keeps is not None and (door, case) in self.asked and all_over:
            self._kept = door, case
        self.reported[door, case] = reported_fields(report)
        fields = {difference.field for difference in self.wrong[door, case]}
        self.stopped[door, case] = bool(fields - {"connection", "wait"}) and self._stops((door, case), report)
        if case.endswith(UNENDED_FINISH):
            self.unended[door] = finished(whole(self.cases[door, case][1].record), report)
        found = [self._finding((door, case), difference) for difference in self.wrong[door, case]]
        vector = self.cases[door, case][1]
        return {
            "verdict": max((_verdict(finding).value for finding in found), default=Verdict.PASS.value),
            "findings": [{"sentence": finding.sentence, **finding.difference._asdict()} for finding in found],
            "record": whole(vector.record) if found and vector.id != "long" else None,
        }

    def _differences(self, key: Key, report: Mapping[str, Any]) -> Iterator[Difference]:
        """Yield the differences between a client and a correct client, in the report and in the behaviour."""
        _, case = self.cases[key]
        behaviour, record = behaviour_of(case.id), whole(case.record)
        if behaviour.held_open:
            if not self._left[key].wait(_LEAVES_WITHIN_S):
                yield Difference("connection", None, "closed", "open")
            return
        if behaviour.status != 200:
            times = [asked.time for asked in self.asked[key]]
            if len(times) > 1 and times[1] - times[0] < AFTER_S:
                yield Difference("wait", None, f"{AFTER_S} s", f"{times[1] - times[0]:.3f} s")
        may_tell = case.result == "invalid" or behaviour.may_tell
        if not (may_tell and not finished(record, report)):
            yield from differences(record, report)

    def _finding(self, key: Key, difference: Difference) -> Finding:
        """Return a difference with the requirement that the client violates.

        A case may be made from a simpler case. If the client gets the same field wrong in the simpler case,
        the requirement of the simpler case is violated.
        """
        if self.stopped.get(key) and self._shown_to_stop(key[0]):
            return Finding(key, _STOPS, difference)
        first, (door, id_) = key, key
        while id_:
            if self._is_wrong((door, id_), difference.field):
                first = door, id_
            id_ = all_cases()[door, id_][1].follows
        sentence, field_ = self.cases[first][1].sentence, difference.field
        about = sentences()[sentence].about
        # An event that is lost has lost both text and ids.
        with_text = field_ in _LISTS and self._is_wrong(first, "text")
        if (sentence in _OF_TEXT and not with_text) or (
            about and field_ not in about and field_ not in _ANYWHERE
        ):
            sentence = _OF_FIELD.get(field_, sentence)
        apart = door, first[1] + _APART_FROM_THE_FINISH
        if apart in self.wrong and field_ not in _ANYWHERE and not self._is_wrong(apart, field_):
            sentence = _EVERY_DELTA
        return Finding(key, sentence, difference)

    def _is_wrong(self, key: Key, field_: str) -> bool:
        return any(other.field == field_ for other in self.wrong.get(key, ()))

    def _stops(self, key: Key, report: Mapping[str, Any]) -> bool:
        """True if a report has exactly the content up to the first finish."""
        door, case = self.cases[key]
        if case.id == "long" or report.get("error"):
            return False
        exchange = case.exchange(door)
        stream = self._read(door, exchange)
        ends = [
            emission.event.place.end
            for choice in stream.choices
            for emission in choice.emissions
            if emission.finish
        ]
        if not ends:
            return False
        held = held_by(self._read(door, replace(exchange, reads=(Read(0.0, exchange.body[: min(ends)]),))))
        return not any(differences({**held, "error": None}, report))

    def _shown_to_stop(self, door: str) -> bool:
        """True if a valid stream shows that the client stops at the first finish.

        If only the usage is lost, this does not show that the client stops.
        """
        return any(
            stopped
            and key[0] == door
            and self.cases[key][1].result != "invalid"
            and any(difference.field != "usage" for difference in self.wrong[key])
            for key, stopped in self.stopped.items()
        )

    @staticmethod
    def _read(door: Door, exchange: Exchange) -> Stream:
        hint = Delivery.CUMULATIVE if door.name.endswith("cumulative") else Delivery.INCREMENTAL
        return load_dialects()[door.dialect].read(exchange, delivery_hint=hint)

    def findings(self) -> list[Finding]:
        """Return all mistakes of the client, in the order of the cases."""
        return [
            self._finding(key, difference) for key in self.cases for difference in self.wrong.get(key, ())
        ]

    def judgements(self) -> list[Judgement]:
        """Return a verdict on each requirement at each endpoint."""
        found: dict[Key, list[Finding]] = defaultdict(list)
        for finding in self.findings():
            found[finding.sentence, finding.case[0]].append(finding)
        tried: dict[Key, list[Key]] = defaultdict(list)
        for key, (_, case) in self.cases.items():
            if key in self.wrong or key in self.given_up:
                tried[case.sentence, key[0]].append(key)
        doors = dict.fromkeys(door for door, _ in self.cases)
        run = Run(tuple(self._stream(key) for key, wrong in self.wrong.items() if wrong))
        return [
            self._judgement((name, door), found[name, door], tried[name, door], run)
            for name in sentences()
            for door in doors
            if (name, door) in tried or (name, door) in found
        ]

    def _judgement(self, key: Key, found: list[Finding], tried: list[Key], run: Run) -> Judgement:
        name, door = key
        row, about = _requirement(name), sentences()[name].about
        given_up = [f"{key[1]} was given up {self.given_up[key]}" for key in tried if key in self.given_up]
        reports = {key: self.reported[key] for key in tried if key in self.reported}
        about_it = [key for key, fields in reports.items() if not about or fields.intersection(about)]
        witnesses = [key for key in about_it if not self.wrong.get(key)]
        violations = tuple(
            _observed(finding, run.by_exchange["/".join(finding.case)].load()) for finding in found
        )
        if violations:
            verdict, message = VIOLATED[row.level], violations[0].message
        elif witnesses:
            verdict, message = Verdict.PASS, ""
        elif given_up:
            verdict, message = Verdict.INCONCLUSIVE, "; ".join(given_up)
        elif about_it:
            others = dict.fromkeys(
                self._finding(case, difference).sentence
                for case in about_it
                for difference in self.wrong[case]
            )
            words = f"each of its cases violates {', '.join(others)}; fix that first"
            verdict, message = Verdict.INCONCLUSIVE, words
        else:
            verdict, message = Verdict.UNSUPPORTED, f"the client reports no {' and no '.join(about)}"
        return Judgement(
            row,
            door,
            verdict,
            witnesses=len(witnesses),
            reason=message,
            violations=violations,
            run=run,
        )

    def _stream(self, key: Key) -> Stream:
        """Return a case as a stream for a report.

        Long streams are shortened, because parsing 100,000 events would take 20 s.
        """
        door, case = self.cases[key]
        furthest = max(difference.position or 0 for difference in self.wrong[key])
        exchange = case.exchange(door)
        served = replace(
            exchange,
            request=replace(exchange.request, path=f"/{'/'.join(key)}{door.path}"),
            reads=exchange.reads[: _SHOWN_READS + furthest * _READS_OF_A_CHARACTER],
        )
        return self._read(door, served)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return remarks for readers of the verdicts."""
        requests = sum(map(len, self.asked.values()))
        connections = len({asked.connection for several in self.asked.values() for asked in several})
        left = len(self.cases) - len(self.wrong)
        reported = f"the client reported on {len(self.wrong):,} of {len(self.cases):,} cases"
        if left:
            reported += f"; the verdicts do not cover the other {left:,}"
        came = f"{counted(requests, 'request')} on {counted(connections, 'connection')}"
        remarks = [reported, came]
        if any(differences and case == "long" for (_, case), differences in self.wrong.items()):
            remarks.append(
                f"of the case long the report shows {_SHOWN_READS:,} reads, or as far as it differs"
            )
        for taken, words in ((True, "takes"), (False, "drops")):
            if doors := [door for door, takes in self.unended.items() if takes is taken]:
                event = "a last event without its blank line, which is allowed"
                remarks.append(f"the client {words} {event}: {', '.join(doors)}")
        return tuple(remarks)

    def document(self) -> dict[str, Any]:
        """Return the report as one JSON value."""
        judgements = self.judgements()
        return document(self.subject, judgements, exit_status(judgement.verdict for judgement in judgements))

    @property
    def subject(self) -> Subject:
        dialects = dict.fromkeys(self.cases[key][0].dialect for key in self.wrong)
        return Subject(
            captures=(self.client,), dialects=tuple(dialects), remarks=self.remarks, again=self.command
        )


def _verdict(finding: Finding) -> Verdict:
    return VIOLATED[sentences()[finding.sentence].level]


def _requirement(name: str) -> Requirement:
    """Return a requirement for clients in the form of a requirement for servers, because reports show that
    form.
    """
    sentence = sentences()[name]
    return Requirement(
        name,
        "clients",
        Level(sentence.level),
        sentence.sentence,
        "clients",
        "blackbox",
        "script",
        1,
        implied_by=sentence.implied_by,
    )


def _observed(finding: Finding, stream: Stream) -> Observation:
    """Return a mistake as an observation.

    The place of the observation is the range of bytes with the value that the client parsed incorrectly.
    """
    field, index, expected, actual = finding.difference
    words = f"wrong {field}" if index is None else f"wrong {field} in choice {index}"
    if field == "error":
        words = "the client raised an error on a valid stream" if expected is None else "no error"
        expected, actual = expected or "no error", actual or "no error"
    place = _place(finding.difference, stream)
    return expect(place, expected, actual, f"{finding.case[1]}: {words}", holds=False)


def _place(difference: Difference, stream: Stream) -> Place:
    choice = next((choice for choice in stream.choices if choice.index == difference.choice), None)
    if choice is None:
        return end_place(stream)
    if difference.field in {"text", "output_ids"}:
        return bringing(choice, difference.field, difference.position)
    return choice.last_at(difference.field)
