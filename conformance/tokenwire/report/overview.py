"""The report by requirement: what all reports but the JSON one show first. Made from the JSON report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.judging.judge import NO_SCENARIO
from tokenwire.judging.verdict import MOST_TELLING_FIRST, ExitStatus, Verdict, overall

BAD = (Verdict.WARN, Verdict.FAIL, Verdict.HARNESS_ERROR)
KNOWN = "known"
SAYS_SOMETHING = (Verdict.PASS, *BAD)

Row = Mapping[str, Any]
"""One entry of `verdicts` in the JSON report."""


@dataclass(frozen=True)
class Summary:
    """One requirement over all scenarios."""

    requirement: str
    chapter: str
    level: str
    sentence: str
    verdict: Verdict
    witnesses: int
    scenarios: tuple[str, ...]
    """Where evidence for the verdict was seen."""
    reason: str
    """Why nothing was; empty where something was."""
    bad: tuple[Row, ...]
    """The rows of violations and of crashed checks, without those that a baseline knows."""
    known: tuple[Row, ...] = ()
    """The rows of violations that a baseline knows, with `known_because`."""
    witness: Mapping[str, Any] | None = None
    """The exhibit of a witness of a PASS; None with any other verdict."""

    @property
    def own(self) -> tuple[Row, ...]:
        """Those of `bad` that follow from no other violation: what a report shows."""
        return tuple(row for row in self.bad if "follows_from" not in row)

    @property
    def told(self) -> str:
        """Where something was seen, why nothing was, or from what all that was seen follows."""
        causes = dict.fromkeys(row["follows_from"] for row in self.bad if "follows_from" in row)
        if causes and not self.own:
            return f"follows from {', '.join(causes)}"
        return self.reason or ", ".join(self.scenarios)

    @property
    def mark(self) -> str:
        """The verdict in a word or two: a violation that is known in every scenario is called so."""
        tolerated = self.verdict is Verdict.FAIL and not any(
            row["verdict"] == self.verdict for row in self.bad
        )
        return f"{KNOWN} {self.verdict}" if tolerated else self.verdict.value


def _summary(rows: list[Row]) -> Summary:
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
        scenarios=tuple(names) if verdict in SAYS_SOMETHING else (),
        reason="" if verdict in SAYS_SOMETHING else next((row["message"] for row in speaking), ""),
        bad=tuple(row for row in rows if Verdict(row["verdict"]) in BAD and not row.get("known")),
        known=tuple(row for row in rows if row.get("known")),
        witness=witness if verdict is Verdict.PASS else None,
    )


def summaries(report: Mapping[str, Any]) -> list[Summary]:
    """One summary for each requirement of a JSON report, in its order."""
    grouped: dict[str, list[Row]] = {}
    for row in report["verdicts"]:
        grouped.setdefault(row["requirement"], []).append(row)
    return [_summary(rows) for rows in grouped.values()]


def counts(every: Iterable[Summary]) -> Counter[str]:
    """How many requirements got which mark: a verdict, or `known FAIL`; the most telling first."""
    marks = Counter(summary.mark for summary in every)
    order = [mark for verdict in MOST_TELLING_FIRST for mark in (verdict.value, f"{KNOWN} {verdict}")]
    return Counter({mark: marks[mark] for mark in order if marks[mark]})


def in_words(number: Mapping[str, int]) -> str:
    """Such counts as words."""
    return ", ".join(f"{count} {mark}" for mark, count in number.items()) or "no verdict"


def in_order(report: Mapping[str, Any], every: Iterable[Summary]) -> list[Summary]:
    """Those that have something of their own to show, in the order in which to show it: causes, the gravest
    and most specific first, then what the suite itself failed at.
    """
    places = {cause["requirement"]: position for position, cause in enumerate(report.get("causes", ()))}
    own = [summary for summary in every if summary.own]
    return sorted(own, key=lambda summary: places.get(summary.requirement, len(places)))


def following(report: Mapping[str, Any], requirement: str) -> list[str]:
    """The requirements that are violated by the same cause as this one, without it."""
    return [
        each["requirement"]
        for cause in report.get("causes", ())
        if cause["requirement"] == requirement
        for each in cause["follow"]
        if each["requirement"] != requirement
    ]


def following_in_words(report: Mapping[str, Any], requirement: str) -> str:
    """The same as one clause; empty where there are none."""
    names = following(report, requirement)
    if not names:
        return ""
    return f"{len(names)} more follow{'s' * (len(names) == 1)} from the same cause: {', '.join(names)}"


def causes_in_words(report: Mapping[str, Any]) -> str:
    """How many causes the violations have; empty where each has its own."""
    causes = len(report.get("causes", ()))
    violated = len(
        {row["requirement"] for one in summaries(report) for row in one.bad if row.get("evidence")}
    )
    return f"{causes} cause{'s' * (causes > 1)} of {violated} violations" if 0 < causes < violated else ""


def numbers(report: Mapping[str, Any]) -> str:
    """How many requirements got which verdict, and how many causes there are of those violated, in words."""
    return "; ".join(filter(None, (in_words(counts(summaries(report))), causes_in_words(report))))


def baseline_faults(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is wrong with the entries of the baseline that the run was held against."""
    return list(report.get("baseline", {}).get("faults", ()))


def flaky(report: Mapping[str, Any]) -> list[str]:
    """What each entry of the baseline that may fail now and then did, in words."""
    return list(report.get("baseline", {}).get("flaky", ()))


def profiles_in_words(report: Mapping[str, Any]) -> list[str]:
    """What the run tells of each profile that was asked for."""

    def told(each: Mapping[str, Any]) -> str:
        decided = f"{each['decided']} of {each['requirements']} requirements decided"
        if not each["shown"]:
            return f"{each['name']}: not shown by this server ({decided})"
        return f"{each['name']}: {decided}, {each['violated'] or 'none'} violated"

    return [told(each) for each in report.get("profiles", ())]


def _what_to_do(baseline: Mapping[str, Any]) -> str:
    """The way out where a baseline does not hold."""
    faults = baseline["faults"]
    if any(fault["kind"] != "stale" for fault in faults):
        return "the baseline does not hold"
    one = len(faults) == 1
    gone = f"{len(faults)} {'entry' if one else 'entries'} of the baseline no longer fail{'s' * one}"
    return f"{gone}: remove with `tokenwire baseline update {baseline['file']} --from REPORT`"


def level_in_words(level: Mapping[str, Any]) -> str:
    """How many of a level's MUSTs hold."""
    violated = f" ({level['violated']} violated)" if level["violated"] else ""
    return f"{level['title']} {level['holds']} of {level['of']} MUSTs{violated}"


def levels_in_words(report: Mapping[str, Any]) -> str:
    """What the server can say of itself; empty where no profile was judged as a whole."""
    levels = report.get("levels", ())
    told = [level_in_words(level) for level in levels if level["shown"]]
    unshown = [level["title"] for level in levels if not level["shown"]]
    told += [f"not shown: {', '.join(unshown)}"] if unshown else []
    return f"Tokenwire {levels[0]['date']}: {'; '.join(told)}" if levels else ""


def title(report: Mapping[str, Any]) -> str:
    """What was judged."""
    target = report["target"]
    return str(target.get("url") or target.get("capture") or "")


def outcome(report: Mapping[str, Any]) -> str:
    """What the exit status amounts to, in words."""
    broken_off = report["target"].get("broken_off")
    if broken_off:
        return f"broken off: {broken_off}"
    failing = [row for row in report["verdicts"] if row["verdict"] == Verdict.FAIL]
    conforms = "conforms but for what is known" if failing else "conforms"
    if baseline_faults(report) and all(row.get("known") for row in failing):
        return f"{conforms}; {_what_to_do(report['baseline'])}"
    if report["exit_status"] == ExitStatus.CONFORMS and failing:
        return conforms
    unshown = [each["name"] for each in report.get("profiles", ()) if not each["shown"]]
    if report["exit_status"] == ExitStatus.NOTHING_EVALUATED and unshown:
        return f"does not show {', '.join(unshown)}"
    return {
        0: "conforms, as far as this run could see",
        1: "does not conform",
        3: "the suite itself failed",
        4: "nothing was evaluated",
    }.get(report["exit_status"], f"ended with status {report['exit_status']}")
