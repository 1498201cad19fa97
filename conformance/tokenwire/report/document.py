"""The JSON report (`spec/schemas/report.json`). All other reports are made from the JSON report."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenwire import __version__
from tokenwire.checks.evidence import Observation
from tokenwire.disk import system_says
from tokenwire.judging.asked_by import always_refused, asked_by
from tokenwire.judging.causes import Causes, causes, specificity
from tokenwire.judging.failure_kind import failure_kinds
from tokenwire.judging.judge import Judgement
from tokenwire.judging.run import Run
from tokenwire.judging.tally import how_far
from tokenwire.judging.verdict import SEVERITY, Verdict, overall
from tokenwire.judging.workers_own import workers_own
from tokenwire.levels import levels
from tokenwire.profile import VERSION, Standing, dated_levels
from tokenwire.report.excerpt import excerpt_at
from tokenwire.report.exhibit import exhibit, witnessed
from tokenwire.report.finding import answer_of
from tokenwire.report.subject import Subject
from tokenwire.report.wording import clause
from tokenwire.requirement import Requirement
from tokenwire.target.capability import Capability
from tokenwire.usage_error import UsageError
from tokenwire.wire.inert import inert

_SPEC_VERSION = "v1"
SURVIVAL = "requests-do-not-break-the-server"
"""The requirement whose violation comes first in a report, because a crash of the server causes many other
violations.
"""
MOST_EVIDENCE = 20
"""The most violations that a report lists for one requirement in one scenario."""

_DECIDED = {Verdict.PASS, Verdict.INFO, Verdict.WARN, Verdict.FAIL}


def _plain(value: Any) -> Any:  # the value may come from a server
    """Convert a value to JSON.

    Tuples become lists, infinite numbers become text, and control characters are escaped.
    """
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
    shown = excerpt_at(stream, place, observation.actual).text if stream else ""
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
    """Return the entry of `verdicts` for one requirement in one scenario.

    `most`: the number of violations to list.
    """
    made = {
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
        "evidence": [_evidence(violation, judgement.run) for violation in judgement.violations[:most]],
    }
    if judgement.verdict is Verdict.FAIL and (kinds := failure_kinds(judgement)):
        made["kinds"] = [{**asdict(kind), "fingerprint": kind.fingerprint} for kind in kinds]
    if judgement.known:
        made |= {"known": True, "known_because": judgement.known}
    if judgement.violations:
        made["exhibit"] = exhibit(judgement, subject)
    return {key: _plain(entry) for key, entry in made.items()}


def furthest(judgements: Iterable[Judgement]) -> set[int]:
    """Return the `id()` of each judgement whose witness is shown in a report.

    For each requirement, the report shows the witness that is furthest from the beginning of its stream.
    """
    found: dict[str, Judgement] = {}
    for judgement in judgements:
        best = found.setdefault(judgement.requirement.id, judgement)
        if how_far(judgement.witness) > how_far(best.witness):
            found[judgement.requirement.id] = judgement
    return {id(judgement) for judgement in found.values() if judgement.witness is not None}


def _rows(
    judgements: Sequence[Judgement], subject: Subject, found: Causes, of_worker: Container[int]
) -> list[dict[str, Any]]:
    rows = []
    shown_witnesses = furthest(judgements)
    for position, judgement in enumerate(judgements):
        made = row(found.leading(position, judgement), subject)
        if position in found.folded:
            made["follows_from"] = judgements[found.folded[position]].requirement.id
        if position in of_worker:
            made["of_worker"] = True
        if judgement.witness is not None and id(judgement) in shown_witnesses:
            made["witness"] = _plain(witnessed(judgement.witness, judgement, subject))
        rows.append(made)
    return rows


def leading(requirement: Requirement) -> tuple[Any, ...]:
    """Return a sort key for violations: crashes and schema errors first, then specific requirements."""
    leads = requirement.id == SURVIVAL or requirement.oracle == "schema"
    return not leads, specificity(requirement)


def _causes(
    judgements: Sequence[Judgement], folded: Mapping[int, int], of_worker: Container[int]
) -> list[dict[str, Any]]:
    """Return the violated requirements that are not a consequence of another violation, the most serious
    first. Each of them lists its consequences and the scenarios of the consequences. Requirements that both a
    gateway and its worker violate come last.
    """
    own: set[str] = set()
    found: dict[str, Judgement] = {}
    following: dict[str, dict[str, list[str]]] = {}
    for position, judgement in enumerate(judgements):
        if position in folded:
            under = following.setdefault(judgements[folded[position]].requirement.id, {})
            under.setdefault(judgement.requirement.id, []).append(judgement.scenario)
        elif judgement.verdict in {Verdict.FAIL, Verdict.WARN} and not judgement.known:
            if position not in of_worker:
                own.add(judgement.requirement.id)
            best = found.setdefault(judgement.requirement.id, judgement)
            if SEVERITY[judgement.verdict] > SEVERITY[best.verdict]:
                found[judgement.requirement.id] = judgement

    def first(judgement: Judgement) -> tuple[Any, ...]:
        of_another = judgement.requirement.id not in own
        return of_another, -SEVERITY[judgement.verdict], leading(judgement.requirement)

    return [
        {
            "requirement": judgement.requirement.id,
            "verdict": judgement.verdict.value,
            **({} if judgement.requirement.id in own else {"of_worker": True}),
            "follow": [
                {"requirement": name, "scenarios": list(dict.fromkeys(scenarios))}
                for name, scenarios in following.get(judgement.requirement.id, {}).items()
                if name not in found  # this violation has its own cause
            ],
        }
        for judgement in sorted(found.values(), key=first)
    ]


def _server(subject: Subject) -> dict[str, Any]:
    if not subject.runs:
        return {}
    advertised = [run.advertised for run in subject.runs]
    return {
        "name": next((server.name for server in advertised if server.name), ""),
        "version": ", ".join(dict.fromkeys(server.version for server in advertised if server.version)),
        "flags": sorted({flag for run in subject.runs for flag in run.flags}),
    }


def _sources(capabilities: Sequence[Capability]) -> dict[str, Any]:
    """Collect for each capability the source by which it is known: the user declared it, the server reported
    it, or the run observed it.
    """
    sources: dict[str, Any] = {}
    for capability in sorted(capabilities, key=lambda capability: (capability.name, not capability.seen)):
        if capability.declared or capability.advertised or capability.seen:
            words = {
                "declared": capability.declared,
                "advertised": capability.advertised,
                "seen": capability.established if capability.seen else "",
            }
            sources.setdefault(capability.name, words)
    return sources


def _target(subject: Subject) -> dict[str, Any]:
    capabilities = [capability for run in subject.runs for capability in run.capabilities.values()]
    present = {capability.name: capability for capability in capabilities if capability.present}
    honesty = (run.honesty for run in subject.runs if run.honesty.asked)
    return {
        **({"url": subject.url} if subject.url else {"capture": ", ".join(subject.captures)}),
        "server": _server(subject),
        "dialects": subject.dialects,
        "detected": subject.taken,
        "left_out": subject.left_out,
        "capabilities": sorted(present),
        "established": {name: present[name].established for name in sorted(present)},
        "sources": _sources(capabilities),
        "honesty": [
            {"trusted": found.trusted, "ignored": found.ignored, "refused": found.refused}
            for found in honesty
        ],
        "remarks": subject.remarks,
        "rules": subject.rules,
        "not_asked": subject.not_asked,
        "broken_off": subject.broken_off,
        **({"cut_off": subject.cut_off} if subject.cut_off else {}),
    }


def _standing(standing: Standing, refused: Mapping[str, int]) -> dict[str, Any]:
    """Return the entry of `profiles` or `levels` for one profile, with the reasons for what the server does
    not show. `refused`: the result of `always_refused`.
    """
    needs = levels()[standing.name].needs
    because: dict[str, str] = {}
    for need in standing.missing:
        for name in sorted(needs.get(need, frozenset()) & refused.keys()):
            fields = " and ".join(asked_by()[name].asks)
            requests = "the request" if refused[name] == 1 else f"each of the {refused[name]} requests"
            because.setdefault(need, f"the server refused {requests} with {fields}")
    return {**standing.as_json(), **({"because": because} if because else {})}


def verdict_of_each(judgements: Iterable[Judgement]) -> dict[str, Verdict]:
    """Return the verdict on each requirement, over all scenarios."""
    verdicts: dict[str, list[Verdict]] = {}
    for judgement in judgements:
        verdicts.setdefault(judgement.requirement.id, []).append(judgement.verdict)
    return {name: overall(found) for name, found in verdicts.items()}


def document(
    subject: Subject,
    judgements: Sequence[Judgement],
    exit_status: int,
    *,
    selection: Mapping[str, Any] | None = None,
    baseline: Mapping[str, Any] | None = None,
    profiles: Sequence[Standing] = (),
    twin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the report as one JSON value. Its last key, `footer`, shows that the file is complete.

    `selection`: the options that limited the run. `baseline`: the results of known failures. `profiles`: the
    result for each requested profile. `twin`: the comparison with another deployment.
    """
    counts = Counter(judgement.verdict for judgement in judgements)
    verdicts = verdict_of_each(judgements)
    dated = dated_levels(verdicts, subject.families)
    refused = always_refused(stream for run in subject.runs for stream in run.streams)
    of_worker = workers_own(judgements)
    found = causes(judgements, of_worker)
    return {
        "tool": {"name": "tokenwire", "version": __version__, "spec": _SPEC_VERSION, "profiles": VERSION},
        "target": _plain(_target(subject)),
        "summary": {verdict.value: counts[verdict] for verdict in Verdict},
        "judged": {
            "requirements": len(
                {judgement.requirement.id for judgement in judgements if judgement.verdict in _DECIDED}
            ),
            "of": len(verdicts),
        },
        **({"levels": [_plain(_standing(level, refused)) for level in dated]} if dated else {}),
        **({"profiles": [_plain(_standing(profile, refused)) for profile in profiles]} if profiles else {}),
        "verdicts": _rows(judgements, subject, found, of_worker),
        "causes": _causes(judgements, found.folded, of_worker),
        **({"selection": dict(selection)} if selection is not None else {}),
        **({"baseline": _plain(baseline)} if baseline is not None else {}),
        **({"twin": _plain(twin)} if twin is not None else {}),
        "exit_status": exit_status,
        "footer": True,
    }


def read_report(path: Path) -> Mapping[str, Any]:
    """Read a JSON report from a file. Raises UsageError if the file is not a complete report."""
    try:
        report: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {system_says(error)}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    whole = isinstance(report, dict) and report.get("footer") is True
    if not (whole and isinstance(report.get("target"), dict) and isinstance(report.get("verdicts"), list)):
        raise UsageError(
            f"{path} is not a complete report; write one with tokenwire check --json {path}, uninterrupted"
        )
    return report


def as_json(report: Mapping[str, Any]) -> str:
    """Return a JSON report as text."""
    return json.dumps(report, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
