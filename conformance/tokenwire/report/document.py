"""The JSON report (`spec/schemas/report.json`): everything that the other reports are made from."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tokenwire import __version__
from tokenwire.checks.check import Observation
from tokenwire.judging.causes import causes, specificity
from tokenwire.judging.failure_kind import failure_kinds
from tokenwire.judging.judge import Judgement, Run
from tokenwire.judging.tally import how_far
from tokenwire.judging.verdict import SEVERITY, Verdict, overall
from tokenwire.profile import Standing, dated_levels
from tokenwire.report.excerpt import excerpt_at
from tokenwire.report.exhibit import exhibit, witnessed
from tokenwire.report.finding import answer_of
from tokenwire.report.subject import Subject
from tokenwire.report.wording import clause, inert
from tokenwire.target.capability import Capability
from tokenwire.target.honesty import Honesty

SPEC_VERSION = "v1"
MOST_EVIDENCE = 20
"""How many violations of one requirement in one scenario a report holds; one fault may break every event."""


def _plain(value: Any) -> Any:  # whatever stood on the wire
    """The value as JSON can hold it: tuples as lists, numbers that are not finite as words, texts inert."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return inert(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return {inert(str(key)): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_plain(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted(inert(str(entry)) for entry in value)
    return inert(str(value))


def _evidence(observation: Observation, run: Run) -> dict[str, Any]:
    place = observation.place
    stream = answer_of(run, observation)
    shown = excerpt_at(stream, place, observation.actual).text if stream else place.excerpt
    return {
        "exchange": place.exchange,
        "event": place.event,
        "pointer": place.pointer,
        "start": place.start,
        "end": place.end,
        "time": place.time,
        "excerpt": shown,
        "expected": observation.expected,
        "actual": observation.actual,
        "message": clause(observation),
    }


def row(judgement: Judgement, subject: Subject, *, most: int = MOST_EVIDENCE) -> dict[str, Any]:
    """One requirement in one scenario, with so many of its violations at most."""
    shown = {"exhibit": asdict(exhibit(judgement, subject))} if judgement.violations else {}
    known = {"known": True, "known_because": judgement.known} if judgement.known else {}
    kinds = failure_kinds(judgement) if judgement.verdict is Verdict.FAIL else ()
    told: dict[str, Any] = _plain(
        {
            "requirement": judgement.requirement.id,
            "chapter": judgement.requirement.chapter,
            "profile": judgement.requirement.profile,
            "basis": judgement.requirement.basis,
            "level": judgement.requirement.level.value,
            "sentence": judgement.requirement.sentence,
            "scenario": judgement.scenario,
            "verdict": judgement.verdict.value,
            "witnesses": judgement.witnesses,
            "message": judgement.message,
            "evidence": [
                _evidence(observation, judgement.run) for observation in judgement.violations[:most]
            ],
            **(
                {"kinds": [{**asdict(kind), "fingerprint": kind.fingerprint} for kind in kinds]}
                if kinds
                else {}
            ),
            **known,
            **shown,
        }
    )
    return told


def _rows(
    judgements: Sequence[Judgement], subject: Subject, folded: Mapping[int, int]
) -> list[dict[str, Any]]:
    """All rows. One PASS of each requirement shows a witness, so that it can be looked at: the one that lies
    furthest into a stream.
    """
    furthest: dict[str, Judgement] = {}
    for judgement in judgements:
        best = furthest.setdefault(judgement.requirement.id, judgement)
        if how_far(judgement.witness) > how_far(best.witness):
            furthest[judgement.requirement.id] = judgement
    rows = []
    for position, judgement in enumerate(judgements):
        shows = judgement.witness is not None and furthest[judgement.requirement.id] is judgement
        witness = {"witness": _plain(asdict(witnessed(judgement, subject)))} if shows else {}
        cause = folded.get(position)
        follows = {} if cause is None else {"follows_from": judgements[cause].requirement.id}
        rows.append({**row(judgement, subject), **follows, **witness})
    return rows


def _causes(judgements: Sequence[Judgement], folded: Mapping[int, int]) -> list[dict[str, Any]]:
    """Each violated requirement that follows from nothing, the gravest and most specific first, and what
    follows from it, with the scenarios in which it does.
    """
    found: dict[str, Judgement] = {}
    following: dict[str, dict[str, list[str]]] = {}
    for position, judgement in enumerate(judgements):
        if position in folded:
            under = following.setdefault(judgements[folded[position]].requirement.id, {})
            under.setdefault(judgement.requirement.id, []).append(judgement.scenario)
        elif judgement.verdict in {Verdict.FAIL, Verdict.WARN} and not judgement.known:
            best = found.setdefault(judgement.requirement.id, judgement)
            if SEVERITY[judgement.verdict] > SEVERITY[best.verdict]:
                found[judgement.requirement.id] = judgement

    def first(judgement: Judgement) -> tuple[Any, ...]:
        return -SEVERITY[judgement.verdict], specificity(judgement.requirement)

    return [
        {
            "requirement": judgement.requirement.id,
            "verdict": judgement.verdict.value,
            "follow": [
                {"requirement": name, "scenarios": list(dict.fromkeys(scenarios))}
                for name, scenarios in following.get(judgement.requirement.id, {}).items()
            ],
        }
        for judgement in sorted(found.values(), key=first)
    ]


def _server(subject: Subject) -> dict[str, Any]:
    advertised = [run.advertised for run in subject.runs]
    if not advertised:
        return {}
    flags = {flag for run in subject.runs for flag in run.flags}
    return {
        "name": next((each.name for each in advertised if each.name), ""),
        "version": ", ".join(dict.fromkeys(each.version for each in advertised if each.version)),
        "flags": sorted(flags),
    }


def _sources(every: Sequence[Capability]) -> dict[str, Any]:
    """Where each capability is claimed or seen: by the user, the server, an answer; others are omitted."""
    sources: dict[str, Any] = {}
    for capability in sorted(every, key=lambda each: (each.name, not each.seen)):
        if capability.name not in sources and (
            capability.declared or capability.advertised or capability.seen
        ):
            sources[capability.name] = {
                "declared": capability.declared,
                "advertised": capability.advertised,
                "seen": capability.established if capability.seen else "",
            }
    return sources


def _honesty(honesty: Honesty) -> dict[str, Any]:
    """What became of what the server could not know, by what it was: the dialects in which it was asked."""
    return {
        "trusted": honesty.trusted,
        "ignored": {unknown: list(dialects) for unknown, dialects in honesty.ignored.items()},
        "refused": {unknown: list(dialects) for unknown, dialects in honesty.refused.items()},
    }


def _levels(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """What a server can say of itself by this run."""
    verdicts: dict[str, list[Verdict]] = {}
    for judgement in judgements:
        verdicts.setdefault(judgement.requirement.id, []).append(judgement.verdict)
    return [asdict(each) for each in dated_levels({name: overall(own) for name, own in verdicts.items()})]


def _judged(judgements: Sequence[Judgement]) -> dict[str, int]:
    """How many requirements the run told anything of, and of how many."""
    told = {Verdict.PASS, Verdict.INFO, Verdict.WARN, Verdict.FAIL}
    judged = {judgement.requirement.id for judgement in judgements if judgement.verdict in told}
    return {"requirements": len(judged), "of": len({judgement.requirement.id for judgement in judgements})}


def document(
    subject: Subject,
    judgements: Sequence[Judgement],
    exit_status: int,
    *,
    selection: Mapping[str, Any] | None = None,
    baseline: Mapping[str, Any] | None = None,
    profiles: Sequence[Standing] = (),
) -> dict[str, Any]:
    """The report as one JSON value. Its last key, `footer`, shows a reader that nothing was cut off.

    `selection` tells what the run was cut down to, `baseline` what became of the known failures, `profiles`
    what is told of those that were asked for.
    """
    counts = Counter(judgement.verdict for judgement in judgements)
    every = [each for run in subject.runs for each in run.capabilities.values()]
    known = {capability.name: capability for capability in every if capability.present}
    folded = causes(judgements)
    return {
        "tool": {"name": "tokenwire", "version": __version__, "spec": SPEC_VERSION},
        "target": _plain(
            {
                **({"url": subject.url} if subject.url else {"capture": ", ".join(subject.captures)}),
                "server": _server(subject),
                "dialects": list(subject.dialects),
                "detected": dict(subject.taken),
                "left_out": dict(subject.left_out),
                "capabilities": sorted(known),
                "established": {name: known[name].established for name in sorted(known)},
                "sources": _sources(every),
                "honesty": [_honesty(run.honesty) for run in subject.runs if run.honesty.asked],
                "remarks": list(subject.remarks),
                "not_asked": dict(subject.not_asked),
                "broken_off": subject.broken_off,
            }
        ),
        "summary": {verdict.value: counts[verdict] for verdict in Verdict},
        "judged": _judged(judgements),
        **({"levels": levels} if (levels := _levels(judgements)) else {}),
        **({"profiles": [asdict(each) for each in profiles]} if profiles else {}),
        "verdicts": _rows(judgements, subject, folded),
        "causes": _causes(judgements, folded),
        **({"selection": dict(selection)} if selection is not None else {}),
        **({"baseline": _plain(baseline)} if baseline is not None else {}),
        "exit_status": exit_status,
        "footer": True,
    }


def as_json(report: Mapping[str, Any]) -> str:
    """The text of the JSON report."""
    return json.dumps(report, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
