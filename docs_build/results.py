"""Verdicts on recorded servers, for each capture of `fixtures/` and each requirement.

Judging takes minutes, so the verdicts are kept in `.cache/`. The name of a file is a digest of all inputs:
the capture, the model, the suite and the specification.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from docs_build.published import ROOT
from tokenwire.baselines import expected
from tokenwire.disk import write_whole
from tokenwire.judging.judge import Judgement
from tokenwire.judging.tally import how_far
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.record import Place
from tokenwire.report.document import row
from tokenwire.report.excerpt import written
from tokenwire.report.failure import failure
from tokenwire.report.finding import answer_of
from tokenwire.report.subject import Subject
from tokenwire.report.wording import cut

FIXTURES = ROOT / "fixtures"
CACHE = ROOT / ".cache" / "docs"
_LONGEST_EXCERPT = 120
_DECIDING = {".py", ".yaml", ".json"}
_RED = {Verdict.FAIL, Verdict.WARN, Verdict.INFO}


@dataclass(frozen=True)
class Cell:
    """The result of one requirement on one capture."""

    verdict: Verdict
    witnesses: int
    message: str
    """The reason; empty for a PASS."""
    exchange: str = ""
    """The place of the first violation, or of a witness of a PASS; empty if both are missing."""
    event: int | None = None
    pointer: str = ""
    shown: str = ""
    """The failure in the form of the terminal; empty without a violation."""
    time: float = 0.0
    excerpt: str = ""
    """The excerpt of a witness."""


@dataclass(frozen=True)
class Column:
    """One capture: a server that was started in one way."""

    capture: str
    """The file in `fixtures/`."""
    title: str
    """A description of the server: name, version, and its flags."""
    server: str
    version: str
    flags: tuple[str, ...]
    exchanges: int
    cells: Mapping[str, Cell]
    """The cells by requirement id."""
    tokenizer: str = ""
    """The folder of the tokenizer with which the capture was judged, in the repository."""
    families: tuple[str, ...] = ()
    """The families of its dialects."""

    @property
    def uri(self) -> str:
        """The page with the evidence."""
        return f"results/{self.capture.removesuffix('.jsonl.gz').replace('/', '-')}.md"


@cache
def manifest() -> Mapping[str, Any]:
    """Return the facts about each capture of a server: version, flags, model. Servers with faults are left
    out.
    """
    files: Mapping[str, Any] = json.loads((FIXTURES / "manifest.json").read_text("utf-8"))["files"]
    return {name: known for name, known in files.items() if "fault" not in known}


@cache
def _code_digest() -> str:
    """Return a digest of all inputs of verdicts except the captures."""
    folders = (ROOT / "conformance", ROOT / "spec")
    read = [path for folder in folders for path in folder.rglob("*.*") if path.suffix in _DECIDING]
    content = (path.read_bytes() for path in [Path(__file__), *sorted(read)])
    return hashlib.sha256(b"".join(content)).hexdigest()


def _cell(judgements: list[Judgement], subject: Subject) -> Cell:
    """Return the result of a requirement over a whole capture. A PASS has its witness with the longest
    prefix.
    """
    verdict = overall(judgement.verdict for judgement in judgements)
    telling = next(judgement for judgement in judgements if judgement.verdict is verdict)
    cell = Cell(verdict, sum(judgement.witnesses for judgement in judgements), telling.message)
    if verdict is Verdict.PASS:
        best = max(judgements, key=lambda judgement: how_far(judgement.witness))
        if best.witness is None:
            return cell
        answer, place = answer_of(best.run, best.witness), best.witness.place
        excerpt = cut(written(answer.exchange.body, place), _LONGEST_EXCERPT) if answer is not None else ""
        return _at(place, replace(cell, excerpt=excerpt))
    if verdict not in _RED or not telling.violations:
        return cell
    shown = failure(row(telling, subject), without=("sentence",)).replace(f"{ROOT}/", "")
    return _at(telling.violations[0].place, replace(cell, shown=shown))


def _at(place: Place, cell: Cell) -> Cell:
    return replace(cell, exchange=place.exchange, event=place.event, pointer=place.pointer, time=place.time)


def judged(capture: str) -> Column:
    """Judge a capture with the tokenizer of its expected verdicts. Raises KeyError for an unknown capture."""
    (found,) = expected.judged(FIXTURES / capture)
    return _column(capture, found)


def keep(capture: str, found: expected.Judged) -> None:
    """Keep verdicts from another caller, so that the site need not judge the capture again."""
    # The file is written as a whole, because tests and the site may judge a capture at the same time.
    write_whole(_kept(capture), pickle.dumps(_column(capture, found)))


def _column(capture: str, found: expected.Judged) -> Column:
    known = manifest()[capture]
    subject = Subject(captures=(str(FIXTURES / capture),), runs=(found.judgements[0].run,))
    name = found.expected.tokenizer if found.expected else ""
    grouped: dict[str, list[Judgement]] = {}
    for judgement in found.judgements:
        grouped.setdefault(judgement.requirement.id, []).append(judgement)
    return Column(
        capture,
        **{name: known[name] for name in ("title", "server", "version", "exchanges")},
        flags=tuple(known["flags"]),
        cells={name: _cell(judgements, subject) for name, judgements in grouped.items()},
        tokenizer=os.path.relpath(found.file.parent / name, ROOT) if name else "",
        families=tuple(sorted(subject.families)),
    )


def _kept(capture: str) -> Path:
    known = json.dumps(manifest()[capture], sort_keys=True)
    return CACHE / f"{hashlib.sha256(f'{_code_digest()} {known}'.encode()).hexdigest()}.pickle"


def _judged_once(capture: str) -> Column:
    path = _kept(capture)
    if not path.exists():
        keep(capture, *expected.judged(FIXTURES / capture))
    column: Column = pickle.loads(path.read_bytes())  # `keep` wrote this file
    return column


def results() -> list[Column]:
    """Return the results of all captures in the order of the manifest. If TOKENWIRE_RESULTS is set, only
    captures whose names match this pattern are included.
    """
    wanted = filter(partial(fnmatchcase, pat=os.environ.get("TOKENWIRE_RESULTS", "*")), manifest())
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), mp_context=get_context("spawn")) as processes:
        return list(processes.map(_judged_once, wanted))
