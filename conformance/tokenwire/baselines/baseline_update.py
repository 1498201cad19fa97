"""Rewriting a baseline from reports: what still fails stays as it is written, to the last comment.

The file is edited as text, block by block: a block is one entry with the comments right above it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenwire.asking.scenario import Budget
from tokenwire.baselines.baseline import (
    FAILURE,
    FLAKY,
    Baseline,
    BaselineError,
    Entry,
    parse_baseline,
    read_baseline,
)
from tokenwire.baselines.failure_kind import FailureKind
from tokenwire.baselines.tolerance import told_in
from tokenwire.judging.verdict import ExitStatus

_HEAD = re.compile(rf"^\s*\[\[\s*({FAILURE}|{FLAKY})\s*\]\]")
_INTRODUCTION = """\
# Known failures. `tokenwire check --baseline FILE` tolerates exactly these: an entry that no longer fails,
# that fails differently, that names nothing or that has expired fails the run. Give each its reason and the
# address of an issue. `tokenwire baseline update` rewrites this file, and keeps comments, reasons and links.
"""

Key = tuple[str, str, FailureKind]
"""Requirement, scenario, and how it fails."""


class RefusedUpdate(ValueError):  # noqa: N818  # a fact about the reports
    """A baseline cannot be rewritten from these reports; the message says why."""


@dataclass(frozen=True)
class Update:
    """A baseline as it will be, and what changed."""

    text: str
    kept: int
    added: tuple[str, ...]
    """Names of the entries that are new; each wants a reason and a link."""
    removed: tuple[str, ...]


def why_not_whole(report: Mapping[str, Any], budget: Budget | None) -> str:
    """Why a report cannot speak for all of a baseline of this budget, in words; empty where it can."""
    selection = report.get("selection") or {"filters": [], "budget": None}
    if selection["filters"]:
        return f"was made with {' '.join(selection['filters'])}; update from a run without filters"
    if report["target"].get("broken_off"):
        return f"is of a run that was broken off ({report['target']['broken_off']}); run it again"
    if report["exit_status"] == ExitStatus.HARNESS_ERROR:
        return "is of a run in which the suite itself failed; report that, and update afterwards"
    if report["exit_status"] == ExitStatus.NOTHING_EVALUATED:
        return "holds no evaluated requirement; check that the target answers"
    asked = Budget(selection["budget"]) if selection["budget"] else None
    if budget is not None and (asked is None or not asked.covers(budget)):
        words = f"asked with --budget {asked}" if asked else "of a recording"
        return f"is {words}, and the baseline was written from {budget}; ask with --budget {budget}"
    return ""


def _failed(report: Mapping[str, Any]) -> set[Key]:
    return {(told.requirement, told.scenario, kind) for told in told_in(report) for kind in told.kinds}


def _quoted(text: str) -> str:
    """The text as a basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _block(key: Key, failures: int, runs: int) -> str:
    """A new entry; one that did not fail in every run is flaky."""
    requirement, scenario, kind = key
    flaky = failures < runs
    lines = [
        f"[[{FLAKY if flaky else FAILURE}]]",
        f"requirement = {_quoted(requirement)}",
        f"scenario = {_quoted(scenario)}",
        f"dialect = {_quoted(kind.dialect)}",
        f"says = {_quoted(kind.says)}",
        f"fingerprint = {_quoted(kind.fingerprint)}",
        *([f'at-most = "{failures} of {runs}"', f"failures = {failures}", f"runs = {runs}"] if flaky else []),
        'reason = ""',
        'link = ""',
    ]
    return "\n".join(lines) + "\n"


def _blocks(text: str) -> list[str]:
    """The head of a file, and then one block for each entry, with the comments right above it."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if _HEAD.match(line):
            own: list[str] = []
            while blocks[-1] and blocks[-1][-1].lstrip().startswith("#"):
                own.insert(0, blocks[-1].pop())
            blocks.append(own)
        blocks[-1].append(line)
    return ["".join(lines) for lines in blocks]


def _counted(block: str, entry: Entry, failures: int, runs: int) -> str:
    """The block of a flaky entry with these runs counted too."""
    for name, number in (("failures", entry.failures + failures), ("runs", entry.runs + runs)):
        line = f"{name} = {number}"
        block, found = re.subn(rf"^{name}\s*=\s*\d+", line, block, count=1, flags=re.MULTILINE)
        if not found:
            block = f"{block.rstrip()}\n{line}\n"
    return block


def _entry_blocks(path: Path, text: str, baseline: Baseline) -> list[tuple[str, Entry]]:
    """Each block with its entry. Raises BaselineError where the text cannot be taken apart so."""
    _, *blocks = _blocks(text)
    found = [(block, parse_baseline(path, block).entries) for block in blocks]
    entries = Counter(entry for _, several in found for entry in several)
    if any(len(several) != 1 for _, several in found) or entries != Counter(baseline.entries):
        raise BaselineError(f"baseline {path} cannot be edited: write each entry as a table of its own")
    return [(block, entry) for block, (entry,) in found]


def updated(path: Path, reports: Mapping[str, Mapping[str, Any]]) -> Update:
    """The baseline rewritten from reports, one for each run; a new one where there is no file.

    Raises RefusedUpdate where a report does not speak for everything, BaselineError.
    """
    text = path.read_text("utf-8") if path.is_file() else ""
    baseline = read_baseline(path) if text else Baseline(path)
    for name, report in reports.items():
        if why := why_not_whole(report, baseline.budget):
            raise RefusedUpdate(f"{name} {why}")
    failed = [_failed(report) for report in reports.values()]
    often = Counter(key for run in failed for key in run)
    judged = {row["requirement"] for report in reports.values() for row in report["verdicts"]}
    kept: list[str] = []
    removed: list[str] = []
    said: set[Key] = set()
    for block, entry in _entry_blocks(path, text, baseline):
        key = (entry.requirement, entry.scenario, entry.kind)
        if key in said or (entry.at_most is None and not often[key] and entry.requirement in judged):
            removed.append(entry.name)
        elif entry.at_most is not None:
            kept.append(_counted(block, entry, often[key], len(failed)))
        else:
            kept.append(block)
        said.add(key)
    new = sorted(often.keys() - said, key=lambda key: (key[0], key[1], key[2].dialect, key[2].says))
    head = _blocks(text)[0] if text else _beginning(reports)
    whole = _joined([head, *kept, *(_block(key, often[key], len(failed)) for key in new)])
    parse_baseline(path, whole)
    return Update(whole, len(kept), tuple(f"{key[0]}[{key[1]}]" for key in new), tuple(removed))


def _joined(blocks: Sequence[str]) -> str:
    return "\n\n".join(stripped for block in blocks if (stripped := block.strip("\n"))) + "\n"


def _beginning(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """The head of a new baseline: the smallest budget that any of its reports was asked with."""
    asked = [(report.get("selection") or {}).get("budget") for report in reports.values()]
    budgets = [Budget(one) for one in asked if one is not None]
    if len(budgets) < len(asked):
        return _INTRODUCTION
    smallest = min(budgets, key=list(Budget).index)
    return f'{_INTRODUCTION}budget = "{smallest}"\n'
