"""The report by requirement, computed from the JSON report.

The terminal, the HTML page and GitHub's summary show this overview.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.judging.failure_kind import lasting_words
from tokenwire.judging.observing import NO_SCENARIO
from tokenwire.judging.verdict import MOST_TELLING_FIRST, ExitStatus, Verdict, overall

_BAD = (Verdict.WARN, Verdict.FAIL, Verdict.HARNESS_ERROR)
KNOWN = "known"
_DECIDED = (Verdict.PASS, *_BAD)
_CONFORMS = "conforms, as far as this run could see"

FIRST_CAUSES = 3
"""The number of causes with which a report begins, if there are too many causes to show all in detail."""
_CAUSES_IN_FULL = 5
"""The largest number of causes of which all are shown in detail."""
Row = Mapping[str, Any]
"""One entry of `verdicts` in the JSON report."""


@dataclass(frozen=True)
class Summary:
    """The result for one requirement, over all scenarios."""

    requirement: str
    chapter: str
    level: str
    sentence: str
    verdict: Verdict
    witnesses: int
    scenarios: tuple[str, ...]
    """The scenarios that gave evidence for the verdict."""
    reason: str
    """The reason why the requirement was not decided. Empty if the requirement was decided."""
    bad: tuple[Row, ...]
    """The entries with violations and crashed checks, without known failures."""
    known: tuple[Row, ...] = ()
    """The entries with known failures. They have `known_because`."""
    witness: Mapping[str, Any] | None = None
    """The evidence of one witness; None unless the verdict is PASS."""
    following: str = ""
    """A sentence that lists the requirements that are violated as a consequence of this requirement.

    Empty if there are none.
    """

    @property
    def shown(self) -> tuple[Row, ...]:
        """The entries of `bad` that are not consequences of another violation.

        Only entries with the most serious verdict are returned, those with the most frequent message first.
        """
        rows = [row for row in self.bad if "follows_from" not in row]
        ways = [(row["verdict"], _way(row)) for row in rows]
        often = Counter(ways)
        grave = rows[0]["verdict"] if rows else ""
        order = sorted(range(len(rows)), key=lambda n: (rows[n]["verdict"] != grave, -often[ways[n]], n))
        return tuple(rows[n] for n in order)

    @property
    def of_worker(self) -> bool:
        """True if the gateway violates the requirement only where its worker violates it as well."""
        return bool(self.shown) and all(row.get("of_worker") for row in self.shown)

    @property
    def explanation(self) -> str:
        """The scenarios with evidence.

        If there are none, the reason for the missing evidence, or the cause of all violations.
        """
        causes = dict.fromkeys(row["follows_from"] for row in self.bad if "follows_from" in row)
        if causes and not self.shown:
            return f"follows from {', '.join(causes)}"
        return self.reason or ", ".join(self.scenarios)

    @property
    def mark(self) -> str:
        """The verdict, or `known FAIL` if all violations are known failures."""
        tolerated = self.verdict is Verdict.FAIL and not any(
            row["verdict"] == self.verdict for row in self.bad
        )
        return f"{KNOWN} {self.verdict}" if tolerated else self.verdict.value


def _way(row: Row) -> str:
    """Return the message of the violation in an entry, without parts that vary between answers."""
    shown = row.get("exhibit") or {}
    return lasting_words(str(shown.get("message") or row.get("message") or ""))


def _summary(rows: list[Row], following: Sequence[str]) -> Summary:
    verdict = overall(Verdict(row["verdict"]) for row in rows)
    speaking = [row for row in rows if verdict is Verdict.PASS or row["verdict"] == verdict]
    names = dict.fromkeys(row["scenario"] for row in speaking if row["scenario"] != NO_SCENARIO)
    witness = next((row["witness"] for row in rows if "witness" in row), None)
    first = rows[0]
    return Summary(
        requirement=first["requirement"],
        chapter=first.get("chapter", ""),
        level=first["level"],
        sentence=first.get("sentence", ""),
        verdict=verdict,
        witnesses=sum(row["witnesses"] for row in rows),
        scenarios=tuple(names) if verdict in _DECIDED else (),
        reason="" if verdict in _DECIDED else next((row["message"] for row in speaking), ""),
        bad=tuple(row for row in rows if Verdict(row["verdict"]) in _BAD and not row.get("known")),
        known=tuple(row for row in rows if row.get("known")),
        witness=witness if verdict is Verdict.PASS else None,
        following=_in_words(following),
    )


def _in_words(following: Sequence[str]) -> str:
    if not following:
        return ""
    follow = "follows" if len(following) == 1 else "follow"
    return f"{len(following)} more {follow} from the same cause: {', '.join(following)}"


def _of_worker(count: int) -> str:
    """Describe how many requirements the worker violates as well. Empty if there are none."""
    return f"{count} {'is' if count == 1 else 'are'} the worker's own" if count else ""


def summaries(report: Mapping[str, Any]) -> list[Summary]:
    """Return a summary for each requirement in a JSON report, in the order of the report."""
    grouped: dict[str, list[Row]] = {}
    for row in report["verdicts"]:
        grouped.setdefault(row["requirement"], []).append(row)
    following = {
        cause["requirement"]: [
            effect["requirement"]
            for effect in cause["follow"]
            if effect["requirement"] != cause["requirement"]
        ]
        for cause in report.get("causes", ())
    }
    return [_summary(rows, following.get(name, ())) for name, rows in grouped.items()]


def counts(every: Iterable[Summary]) -> Counter[str]:
    """Count the requirements by verdict (or `known FAIL`), the most serious verdict first."""
    marks = Counter(summary.mark for summary in every)
    order = [mark for verdict in MOST_TELLING_FIRST for mark in (verdict.value, f"{KNOWN} {verdict}")]
    return Counter({mark: marks[mark] for mark in order if marks[mark]})


def baseline_faults(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the wrong entries of the baseline that the report lists."""
    return list(report.get("baseline", {}).get("faults", ()))


def missing_in_words(profile: Mapping[str, Any]) -> str:
    """Name what a profile needs and the server does not show, with reasons; empty if nothing is missing."""
    because = profile.get("because", {})
    needs = [f"{need} ({because[need]})" if need in because else need for need in profile["missing"]]
    return f"no verdict on {', '.join(needs)}" if needs else ""


def profile_in_words(profile: Mapping[str, Any]) -> str:
    """Describe the result for a profile: satisfied, not satisfied, or not shown with the reason."""
    asked, of = f"{profile['title']} v{profile['version']}", profile["of"]
    violated, undecided = profile["violated"], profile["undecided"]
    unknown = missing_in_words(profile)
    if violated:
        words = f"{asked}: no, {len(violated)} of {of} MUSTs violated: {', '.join(violated)}"
        return f"{words}; {unknown}" if unknown else words
    if unknown:
        return f"{asked}: not shown: {unknown}"
    if undecided:
        names = ", ".join(undecided)
        return f"{asked}: yes, {profile['holds']} of {of} MUSTs hold; {len(undecided)} undecided: {names}"
    return f"{asked}: yes, all {of} MUSTs hold"


def _what_to_do(baseline: Mapping[str, Any]) -> str:
    """Describe what to do about wrong entries in the baseline."""
    faults = baseline["faults"]
    if any(fault["kind"] != "stale" for fault in faults):
        return "the baseline does not match"
    entries = "1 entry" if len(faults) == 1 else f"{len(faults)} entries"
    gone = f"{entries} of the baseline no longer fail{'s' * (len(faults) == 1)}"
    return f"{gone}: remove with `tokenwire baseline update {baseline['file']} --from REPORT`"


def level_in_words(level: Mapping[str, Any]) -> str:
    """Describe how many MUSTs of a level are satisfied, violated and undecided."""
    others = [f"{len(level[kind])} {kind}" for kind in ("violated", "undecided") if level[kind]]
    beside = f" ({', '.join(others)})" if others else ""
    return f"{level['title']} {level['holds']} of {level['of']} MUSTs{beside}"


def kept(level: Mapping[str, Any]) -> bool:
    """True if the server has satisfied a level."""
    return bool(level["shown"] and level["holds"] == level["of"])


def levels_in_words(report: Mapping[str, Any]) -> str:
    """List the levels that the server satisfies; empty if no level was judged completely."""
    levels = report.get("levels", ())
    words = [level_in_words(level) for level in levels if level["shown"]]
    unshown = [level["title"] for level in levels if not level["shown"]]
    words += [f"not shown: {', '.join(unshown)}"] if unshown else []
    return f"Tokenwire {levels[0]['date']} v{levels[0]['version']}: {'; '.join(words)}" if levels else ""


def title(report: Mapping[str, Any]) -> str:
    """Return the URL or the captures that were judged."""
    target = report["target"]
    return str(target.get("url") or target.get("capture") or "")


def outcome(report: Mapping[str, Any]) -> str:
    """Describe the exit status, and the effect of limits on the run."""
    words = _outcome(report), _twin(report), _unseen(report), report["target"].get("cut_off")
    return "; ".join(filter(None, words))


def _twin(report: Mapping[str, Any]) -> str:
    """Return the result of the comparison with the twin. Empty if the target has no twin."""
    twin = report.get("twin")
    return f"the twin: {twin['outcome']}" if twin else ""


def _unseen(report: Mapping[str, Any]) -> str:
    """Describe the entries of the baseline that the run could not look for. Empty if there are none."""
    unseen = report.get("baseline", {}).get("unseen")
    if not unseen:
        return ""
    entries = f"{unseen['entries']} of {unseen['of']} entries of the baseline"
    return f"{entries} not seen, and perhaps not fixed: {unseen['because']}"


def _outcome(report: Mapping[str, Any]) -> str:
    broken_off = report["target"].get("broken_off")
    if broken_off:
        return f"broken off: {broken_off}"
    failing = [row for row in report["verdicts"] if row["verdict"] == Verdict.FAIL]
    conforms = "conforms, except for known failures" if failing else "conforms"
    if baseline_faults(report) and all(row.get("known") for row in failing):
        return f"{conforms}; {_what_to_do(report['baseline'])}"
    status = report["exit_status"]
    if "twin" in report and status != ExitStatus.HARNESS_ERROR and all(row.get("known") for row in failing):
        # The exit status is that of the comparison.
        decided = failing or any(row["verdict"] == Verdict.PASS for row in report["verdicts"])
        status = ExitStatus.CONFORMS if decided else ExitStatus.NOTHING_EVALUATED
    unshown = [profile["name"] for profile in report.get("profiles", ()) if profile["missing"]]
    if unshown and status in {ExitStatus.CONFORMS, ExitStatus.NOTHING_EVALUATED} and not failing:
        return f"does not show {', '.join(unshown)}"
    if status == ExitStatus.CONFORMS and failing:
        return conforms
    return {
        0: _CONFORMS,
        1: "does not conform",
        3: "the suite itself failed",
        4: "nothing could be tested",
    }.get(status, f"ended with status {status}")


@dataclass(frozen=True)
class Overview:
    """The parts of a report that the terminal, the HTML page and GitHub's summary have in common."""

    title: str
    outcome: str
    numbers: str
    """The number of requirements by verdict, and the number of causes, as text."""
    causes: str
    """The number of causes as text. Empty if no violation is a consequence of another violation."""
    levels: str
    """The satisfied levels as text; empty if the user requested profiles."""
    profiles: tuple[str, ...]
    """A sentence for each requested profile."""
    counts: Mapping[str, int]
    summaries: tuple[Summary, ...]
    shown: tuple[Summary, ...]
    """The requirements whose violations are shown: causes (the most serious and most specific first), then
    crashed checks.
    """
    known: tuple[Row, ...]
    """The entries with known failures."""
    faults: tuple[Mapping[str, Any], ...]
    """The wrong entries of the baseline."""
    flaky: tuple[str, ...]
    """A sentence for each flaky entry of the baseline."""

    @property
    def start_here(self) -> str:
        """A heading for the first causes. Empty if all causes are shown in detail."""
        many = len(self.shown) > _CAUSES_IN_FULL
        return f"start here: the {FIRST_CAUSES} gravest of {len(self.shown)} causes" if many else ""

    @property
    def chapters(self) -> dict[str, list[Summary]]:
        """The summaries of requirements, by chapter of the specification."""
        chapters: dict[str, list[Summary]] = {}
        for summary in self.summaries:
            chapters.setdefault(summary.chapter, []).append(summary)
        return chapters

    @property
    def last_line(self) -> str:
        """The last line of the terminal's report: title, outcome and numbers."""
        return f"{self.title}: {self.outcome} ({self.numbers})"


def overview(report: Mapping[str, Any]) -> Overview:
    """Compute the overview of a JSON report."""
    every, causes = summaries(report), report.get("causes", ())
    number = counts(every)
    violated = {row["requirement"] for summary in every for row in summary.bad if row.get("evidence")}
    words, of_worker = "", sum(summary.of_worker for summary in every)
    if 0 < len(causes) < len(violated):
        words = f"{len(causes)} cause{'s' * (len(causes) > 1)} of {len(violated)} violations"
    verdicts = ", ".join(f"{count} {mark}" for mark, count in number.items()) or "no verdict"
    places = {cause["requirement"]: position for position, cause in enumerate(causes)}
    shown = [summary for summary in every if summary.shown]
    return Overview(
        title=title(report),
        outcome=outcome(report),
        numbers="; ".join(filter(None, (verdicts, words, _of_worker(of_worker)))),
        causes=words,
        levels="" if report.get("profiles") else levels_in_words(report),
        profiles=tuple(map(profile_in_words, report.get("profiles", ()))),
        counts=number,
        summaries=tuple(every),
        shown=tuple(sorted(shown, key=lambda summary: places.get(summary.requirement, len(places)))),
        known=tuple(row for summary in every for row in summary.known),
        faults=tuple(baseline_faults(report)),
        flaky=tuple(report.get("baseline", {}).get("flaky", ())),
    )
