"""Store the failures of the last run in the user's state folder, for `tokenwire again`.

For each working folder, the state has the options of the last run, and its failing exchanges in the format of
`--record`. Credentials are never stored.
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
from tokenwire.state import make_private, state_of
from tokenwire.usage_error import UsageError
from tokenwire.wire.capture import CaptureWriter
from tokenwire.wire.credentials import from_environment
from tokenwire.wire.exchange import Exchange
from tokenwire.wire.redaction import Headers, names_credential

_LAST = "last"
_NOTE = "run.json"
_MOST_EXCHANGES = 100
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Failed:
    """A requirement that was violated in a scenario."""

    requirement: str
    scenario: str
    message: str = ""
    known: str = ""
    """The reason why the baseline tolerates the violation. Empty if the violation is not tolerated."""


@dataclass(frozen=True)
class LastRun:
    """The target, the options and the failures of a run."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options, by the parameter names of `tokenwire check`."""
    headers: Headers = ()
    """The headers, with names of environment variables instead of values."""
    withheld: tuple[str, ...] = ()
    """The names of headers with credentials, which the user must give again."""
    failed: tuple[Failed, ...] = ()
    """The failures of the run, and the failures of earlier runs that were not repeated."""


def last_run(target: str, options: Mapping[str, Any], headers: Headers) -> LastRun:
    """Return the parts of a run that may be stored."""
    secret = [name for name, value in headers if names_credential(name) and not from_environment(value)]
    kept = tuple((name, value) for name, value in headers if name not in secret)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    return LastRun(target, plain, kept, tuple(secret))


def failures(judgements: Iterable[Judgement]) -> tuple[Failed, ...]:
    """Return all failures, including those that the baseline tolerates, because a change may fix them."""
    return tuple(
        Failed(judgement.requirement.id, judgement.scenario, judgement.message, judgement.known)
        for judgement in judgements
        if judgement.verdict is Verdict.FAIL
    )


def _exchanges(judgements: Iterable[Judgement]) -> Iterator[Exchange]:
    """Yield the exchanges of failures, and the exchanges with which they were compared.

    Each exchange is yielded once, and the limits on the stored size apply.
    """
    seen: set[str] = set()
    size = 0
    for judgement in judgements:
        if judgement.verdict is not Verdict.FAIL:
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


def folder_of_last(checked: Path = Path()) -> Path:
    """Return the state folder for runs that were started in the folder `checked`."""
    return state_of(checked) / _LAST


def keep(run: LastRun, judgements: Sequence[Judgement], checked: Path = Path()) -> int:
    """Store a run and its failures in place of the run that was stored before.

    Return the number of stored exchanges. Raises OSError.
    """
    last = folder_of_last(checked)
    if last.exists() and not (last / _NOTE).is_file():
        raise FileExistsError(0, f"{last} was not created by tokenwire; move it away")
    # The new run is written to another folder and then moved, so that an interrupted command does not lose
    # the old one.
    made = make_private(last.parent) / f"next-{os.getpid()}"
    try:
        made.mkdir()
        writer, count = CaptureWriter(made), 0
        for exchange in _exchanges(judgements):
            with writer.open(exchange.name) as file:
                file.exchange(exchange)
            count += 1
        failed = [asdict(failure) for failure in (*run.failed, *failures(judgements))]
        note = json.dumps({**asdict(run), "failed": failed}, indent=1)
        (made / _NOTE).write_text(note + "\n", "utf-8")
        if last.exists():
            shutil.rmtree(last)
        made.replace(last)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return count


def read_last(checked: Path = Path()) -> LastRun:
    """Return the last run that was started in the folder `checked`. Raises UsageError."""
    path = folder_of_last(checked) / _NOTE
    try:
        note = json.loads(path.read_text("utf-8"))
        return LastRun(
            str(note["target"]),
            dict(note["options"]),
            tuple((str(name), str(value)) for name, value in note["headers"]),
            tuple(map(str, note["withheld"])),
            tuple(Failed(**failure) for failure in note["failed"]),
        )
    except FileNotFoundError as error:
        raise UsageError(
            f"no stored failures for {checked.resolve()}; run `tokenwire check` first"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} cannot be read ({error}); run `tokenwire check` again") from error
