"""Verdicts on the recorded servers: each capture of `fixtures/`, judged by requirement.

Judging takes minutes, so verdicts are kept in `.cache/` under a digest of everything that they depend on: the
capture, the model, the suite and the specification.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from docs_build.published import ROOT
from tokenwire.baselines import expected
from tokenwire.disk import write_whole
from tokenwire.judging.judge import Judgement
from tokenwire.judging.tally import how_far
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.report.document import row
from tokenwire.report.excerpt import written
from tokenwire.report.failure import failure
from tokenwire.report.finding import answer_of
from tokenwire.report.subject import Subject
from tokenwire.report.wording import cut

FIXTURES = ROOT / "fixtures"
CACHE = ROOT / ".cache" / "docs"
_LONGEST_EXCERPT = 120
_RED = {Verdict.FAIL, Verdict.WARN, Verdict.INFO}


@dataclass(frozen=True)
class Cell:
    """One requirement on one capture."""

    verdict: Verdict
    witnesses: int
    message: str
    """Why; empty for a PASS."""
    exchange: str = ""
    """The place of the first violation, or of a witness of a PASS; empty without both."""
    event: int | None = None
    pointer: str = ""
    shown: str = ""
    """The failure as the terminal prints it; empty where nothing is violated."""
    time: float = 0.0
    excerpt: str = ""
    """What stood there, of a witness."""


@dataclass(frozen=True)
class Column:
    """One capture: a server that was started in one way."""

    capture: str
    """The file, below `fixtures/`."""
    title: str
    """What stood behind it, for a reader: server, version, and how it was started."""
    server: str
    version: str
    flags: tuple[str, ...]
    exchanges: int
    cells: Mapping[str, Cell]
    """By the id of the requirement."""
    tokenizer: str = ""
    """The folder of that with which it was judged, below the repository."""
    families: tuple[str, ...] = ()
    """Those whose dialects it speaks."""

    @property
    def uri(self) -> str:
        """The page with the evidence."""
        return f"results/{self.capture.removesuffix('.jsonl.gz').replace('/', '-')}.md"


@cache
def manifest() -> Mapping[str, Any]:
    """Read the facts about each capture of a server: version, flags, model. Servers with faults are
    left out.
    """
    files: Mapping[str, Any] = json.loads((FIXTURES / "manifest.json").read_text("utf-8"))["files"]
    return {name: known for name, known in files.items() if "fault" not in known}


@cache
def _code_digest() -> str:
    """Compute a digest of all that decides a verdict beside the capture."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    folders = (ROOT / "conformance" / "tokenwire", ROOT / "spec")
    for path in sorted(
        p for folder in folders for p in folder.rglob("*") if p.suffix in {".py", ".yaml", ".json"}
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _cell(judgements: list[Judgement], subject: Subject) -> Cell:
    """Return a requirement over a whole capture."""
    verdict = overall(judgement.verdict for judgement in judgements)
    telling = next(judgement for judgement in judgements if judgement.verdict is verdict)
    witnesses = sum(judgement.witnesses for judgement in judgements)
    if verdict is Verdict.PASS:
        return _passed(judgements, witnesses)
    if verdict not in _RED or not telling.violations:
        return Cell(verdict, witnesses, telling.message)
    shown = failure(row(telling, subject), without=("sentence",)).replace(f"{ROOT}/", "")
    place = telling.violations[0].place
    return Cell(verdict, witnesses, telling.message, place.exchange, place.event, place.pointer, shown)


def _passed(judgements: list[Judgement], witnesses: int) -> Cell:
    """Return a PASS, with the witness that lies furthest into a stream."""
    best = max(judgements, key=lambda judgement: how_far(judgement.witness))
    if best.witness is None:
        return Cell(Verdict.PASS, witnesses, "")
    place, answer = best.witness.place, answer_of(best.run, best.witness)
    excerpt = cut(written(answer.exchange.body, place), _LONGEST_EXCERPT) if answer is not None else ""
    return Cell(
        Verdict.PASS,
        witnesses,
        "",
        place.exchange,
        place.event,
        place.pointer,
        time=place.time,
        excerpt=excerpt,
    )


def judged(capture: str) -> Column:
    """Judge a capture, with the tokenizer of its expected verdicts. Raises KeyError for an unknown one."""
    (found,) = expected.judged(FIXTURES / capture)
    return _column(capture, found)


def keep(capture: str, found: expected.Judged) -> None:
    """Keep what another has just judged, so that the site need not judge it again."""
    # Whole: tests and the site may judge a capture at one time.
    write_whole(_kept(capture), json.dumps(asdict(_column(capture, found))))


def _column(capture: str, found: expected.Judged) -> Column:
    known = manifest()[capture]
    subject = Subject(captures=(str(FIXTURES / capture),), runs=(found.judgements[0].run,))
    name = found.expected.tokenizer if found.expected else ""
    grouped: dict[str, list[Judgement]] = {}
    for judgement in found.judgements:
        grouped.setdefault(judgement.requirement.id, []).append(judgement)
    cells = {name: _cell(judgements, subject) for name, judgements in grouped.items()}
    flags = tuple(known["flags"])
    about = (known["title"], known["server"], known["version"], flags, known["exchanges"])
    folder = os.path.relpath(found.file.parent / name, ROOT) if name else ""
    return Column(capture, *about, cells, folder, tuple(sorted(subject.families)))


def _kept(capture: str) -> Path:
    known = json.dumps(manifest()[capture], sort_keys=True)
    digest = hashlib.sha256(f"{_code_digest()} {known}".encode()).hexdigest()
    return CACHE / f"{digest}.json"


def _recalled(path: Path) -> Column:
    stored = json.loads(path.read_text("utf-8"))
    cells = {
        name: Cell(**{**cell, "verdict": Verdict(cell["verdict"])}) for name, cell in stored["cells"].items()
    }
    return Column(
        **{**stored, "flags": tuple(stored["flags"]), "families": tuple(stored["families"]), "cells": cells}
    )


def _judged_once(capture: str) -> Column:
    path = _kept(capture)
    if not path.exists():
        (found,) = expected.judged(FIXTURES / capture)
        keep(capture, found)
    return _recalled(path)


def results(captures: Iterable[str] | None = None) -> list[Column]:
    """Return all captures, or these, in the order of the manifest; of them those whose names fit the pattern
    in TOKENWIRE_RESULTS, where it is set.
    """
    pattern = os.environ.get("TOKENWIRE_RESULTS", "*")
    wanted = [name for name in manifest() if captures is None or name in set(captures)]
    wanted = [name for name in wanted if fnmatchcase(name, pattern)]
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), mp_context=get_context("spawn")) as processes:
        return list(processes.map(_judged_once, wanted))
