"""What failed in the last run, kept without a flag: in `.tokenwire/last`, below the folder that it ran in.

The exchanges of the failures lie there as `--record` would write them, so that `tokenwire replay` judges
them, beside a note of what was asked. `tokenwire again` asks that anew. Git ignores the folder; a credential
is never written there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokenwire.judging.judge import Judgement
from tokenwire.judging.verdict import Verdict
from tokenwire.wire.capture import CaptureWriter
from tokenwire.wire.credentials import from_environment
from tokenwire.wire.exchange import Exchange
from tokenwire.wire.redaction import Headers, names_credential

FOLDER = Path(".tokenwire")
LAST = FOLDER / "last"
_NOTE = "run.json"
_MOST_EXCHANGES = 100
_MOST_BYTES = 16 << 20


class NothingKeptError(ValueError):
    """There is no last run to go back to; the message says why, and the way out."""


@dataclass(frozen=True)
class Failed:
    """A requirement that was violated in a scenario."""

    requirement: str
    scenario: str
    message: str = ""


@dataclass(frozen=True)
class LastRun:
    """What was asked of whom, and what failed."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """How it was asked, by the parameters of `tokenwire check`."""
    headers: Headers = ()
    """As they were named, with the names of environment variables."""
    withheld: tuple[str, ...] = ()
    """Names of headers that hold a credential themselves: they have to be given again."""
    failed: tuple[Failed, ...] = ()
    """What is known to fail already, where it is kept beside new failures."""


def last_run(target: str, options: Mapping[str, Any], headers: Headers) -> LastRun:
    """What a run asks, as far as it may be written down."""
    secret = [name for name, value in headers if names_credential(name) and not from_environment(value)]
    kept = tuple((name, value) for name, value in headers if name not in secret)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    return LastRun(target, plain, kept, tuple(secret))


def failures(judgements: Iterable[Judgement]) -> tuple[Failed, ...]:
    """What failed and no baseline knows."""
    return tuple(
        Failed(judgement.requirement.id, judgement.scenario, judgement.message)
        for judgement in judgements
        if judgement.verdict is Verdict.FAIL and not judgement.known
    )


def _exchanges(judgements: Iterable[Judgement]) -> Iterator[Exchange]:
    """Those that the failures lie in, and what they were held against, each once, as far as they are kept."""
    seen: set[str] = set()
    size = 0
    for judgement in judgements:
        if judgement.verdict is not Verdict.FAIL or judgement.known:
            continue
        first = judgement.violations[0]
        for place in (first.place, *first.related):
            stream = judgement.run.by_exchange.get(place.exchange)
            if stream is None or place.exchange in seen:
                continue
            seen.add(place.exchange)
            size += stream.exchange.size
            if len(seen) > _MOST_EXCHANGES or size > _MOST_BYTES:
                return
            yield stream.exchange.load()


def keep(run: LastRun, judgements: Sequence[Judgement], beneath: Path = Path()) -> int:
    """Put this run in the place of the last one, with what fails in it; how many exchanges were kept.

    Raises OSError.
    """
    home, last = beneath / FOLDER, beneath / LAST
    if last.exists() and not (last / _NOTE).is_file():
        raise FileExistsError(0, f"{last} is no folder of tokenwire's; move it away")
    home.mkdir(exist_ok=True)
    (home / ".gitignore").write_text("*\n", "utf-8")
    made = home / f"next-{os.getpid()}"
    try:
        made.mkdir()
        writer, count = CaptureWriter(made), 0
        for exchange in _exchanges(judgements):
            with writer.open(exchange.name) as file:
                file.exchange(exchange)
            count += 1
        failed = [asdict(one) for one in (*run.failed, *failures(judgements))]
        note = json.dumps({**asdict(run), "failed": failed}, indent=1)
        (made / _NOTE).write_text(note + "\n", "utf-8")
        if last.exists():
            shutil.rmtree(last)
        made.replace(last)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return count


def read_last(beneath: Path = Path()) -> LastRun:
    """The last run. Raises NothingKeptError."""
    path = beneath / LAST / _NOTE
    try:
        told = json.loads(path.read_text("utf-8"))
        return LastRun(
            str(told["target"]),
            dict(told["options"]),
            tuple((str(name), str(value)) for name, value in told["headers"]),
            tuple(map(str, told["withheld"])),
            tuple(Failed(**one) for one in told["failed"]),
        )
    except FileNotFoundError as error:
        raise NothingKeptError(
            f"there is no {path}: no check failed in this folder yet; `tokenwire check` comes first"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NothingKeptError(f"{path} cannot be read ({error}); run `tokenwire check` again") from error
