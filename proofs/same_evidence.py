"""The same evidence: compare the observations of all checks in all fixtures with recorded digests.

A verdict may stay the same while its evidence becomes weaker: fewer witnesses, another event, another value.
This proof covers all observations, in all recorded captures and in damaged copies of their answers: the
number of witnesses, the furthest witness, and for each violation its place, both values and its level.
Messages are left out. The repository contains a digest for each requirement and capture. A change of the
checks must not change a digest, or the commit that updates the digests must give the reason.

    python -m proofs.same_evidence                       compare, and print the differences
    python -m proofs.same_evidence sglang/0.5.23         only captures whose paths contain this text
    python -m proofs.same_evidence --lines DIR A_base    write the evidence to files, for diff
    python -m proofs.same_evidence --update              write all digests
    python -m proofs.same_evidence --requirement ID      only this requirement; also for --update
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenwire.baselines.expected import expected_file, read_expected
from tokenwire.checks.check import CHECKS
from tokenwire.checks.evidence import Observation
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.observing import evidence
from tokenwire.judging.run import Run
from tokenwire.judging.tally import Tally, tally
from tokenwire.record import Place, Stream
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements
from tokenwire.target.tokenizer import LocalTokenizer
from tokenwire.wire.exchange import Exchange, Read

FIXTURES = Path(__file__).parents[1] / "fixtures"
DIGESTS = Path(__file__).parent / "evidence" / "digests.json.gz"
DAMAGED_ANSWERS = 24
"""The number of answers of each capture that are judged in damaged copies."""
COPIES = 3
LARGEST_DAMAGED = 200_000
"""In bytes. A larger answer takes too long to judge several times."""
DAMAGED = "damaged"

Digests = dict[str, dict[str, str]]
"""The digests of each capture by its path in `fixtures/`, one for each requirement with observations."""


def lines(capture: Path, requirements: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the evidence in a capture and in damaged copies of its answers: pairs of a requirement and a
    line.

        requirements: only these ids; all ids if empty.
    """
    rows = [row for name, row in load_requirements().items() if not requirements or name in requirements]
    checks = {row.id: CHECKS[row.id] for row in rows if row.id in CHECKS}
    for run in replay([capture], tokenizer=_tokenizer(capture)).runs:
        for requirement, scenario, seen in evidence(run, rows):
            for line in _evidence_lines(seen):
                yield requirement, f"{scenario} {line}"
        for stream in damaged_streams(run, capture.name):
            for requirement, check in checks.items():
                if check.on_stream is not None:
                    seen = tally(check.on_stream, stream, run.target, position=0)
                    for line in _evidence_lines(seen):
                        yield requirement, f"{DAMAGED} {stream.exchange.name} {line}"


def _tokenizer(capture: Path) -> LocalTokenizer | None:
    """Return the tokenizer that the expected verdicts of a capture give."""
    expectation = expected_file(str(capture))
    folder = read_expected(expectation).tokenizer if expectation.is_file() else ""
    return LocalTokenizer(expectation.parent / folder) if folder else None


def _evidence_lines(seen: Tally) -> Iterator[str]:
    if not seen.saw and seen.crash is None:
        return
    furthest = None
    if seen.furthest is not None:
        place = seen.furthest.observation.place
        furthest = place.exchange, place.event
    yield f"{seen.witnesses} witnesses, furthest {furthest}{', crashed' if seen.crash else ''}"
    for violation in seen.differing:
        yield _line(violation.observation)


def _line(seen: Observation) -> str:
    places = " ".join(map(_where, (seen.place, *seen.related)))
    values = f"{seen.expected!r} / {seen.actual!r}"
    return f"{places} {values} {seen.level} {seen.by_chance} {seen.condition_only} {seen.witnesses}"


def _where(place: Place) -> str:
    return f"{place.exchange}#{place.event}{place.pointer}[{place.start}:{place.end}]"


def damaged_streams(run: Run, seed: str) -> Iterator[Stream]:
    """Yield answers of a run in which one or two JSON values are changed. The changes are the same in each
    call.
    """
    dialects = load_dialects()
    sound = [
        stream
        for stream in run.answers
        if stream.answered and stream.dialect in dialects and stream.exchange.size < LARGEST_DAMAGED
    ]
    dice = random.Random(seed)
    for stream in dice.sample(sound, min(DAMAGED_ANSWERS, len(sound))):
        sound_exchange = stream.exchange.load()
        for copy in range(COPIES):
            body = damaged(sound_exchange.body, random.Random(f"{seed} {stream.exchange.name} {copy}"))
            if body is not None:
                exchange = _with_body(sound_exchange, body)
                dialect = dialects[stream.dialect]
                yield dialect.read(exchange, delivery_hint=run.advertised.delivery)


def _with_body(exchange: Exchange, body: bytes) -> Exchange:
    """Return an exchange with another body, in a single read."""
    return replace(exchange, reads=(Read(0.1, body),))


def damaged(body: bytes, dice: random.Random) -> bytes | None:
    """Return a body with a change in one event or in its single document; None if it contains no JSON."""
    text = body.decode("utf-8", "replace")
    if not text.startswith("data:"):
        changed = _changed(text, dice)
        return None if changed is None else changed.encode()
    parts = text.split("\n\n")
    nth = dice.randrange(max(1, len(parts) - 2))
    changed = _changed(parts[nth].removeprefix("data:"), dice)
    if changed is None:
        return None
    parts[nth] = f"data: {changed}"
    if dice.random() < 0.2:
        del parts[dice.randrange(len(parts))]
    return "\n\n".join(parts).encode()


def _changed(text: str, dice: random.Random) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    for _ in range(dice.choice((1, 1, 2))):
        spots = list(_spots(value))
        if spots:
            _change(*dice.choice(spots), dice)
    return json.dumps(value)


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all objects and arrays in a JSON value, with each of their keys or positions."""
    keys: Iterable[Any] = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _spots(value[key])


def _change(holder: Any, key: Any, dice: random.Random) -> None:
    value, chance = holder[key], dice.random()
    if isinstance(value, list) and chance < 0.6:
        holder[key] = dice.choice([value[:-1], value + value[-1:], [], None, value[1:]])
    elif isinstance(value, bool) or value is None:
        holder[key] = dice.choice([None, True, False, 1, "x", []])
    elif isinstance(value, int):
        holder[key] = dice.choice([value + 1, value - 1, None, float(value), str(value), -value, True])
    elif isinstance(value, float):
        holder[key] = dice.choice([0.5, None, -value, value * 2, int(value)])
    elif isinstance(value, str):
        holder[key] = dice.choice([value + "x", "", None, value[:-1], 5])
    elif isinstance(holder, dict) and chance < 0.5:
        del holder[key]
    else:
        holder[key] = dice.choice([None, 1, "x", []])


def digests(capture: Path, requirements: Collection[str] = ()) -> dict[str, str]:
    """Return the digest of the evidence of each requirement with observations in a capture."""
    hashes: dict[str, Any] = {}
    for requirement, line in lines(capture, requirements):
        hashes.setdefault(requirement, hashlib.sha256()).update(line.encode("utf-8", "surrogatepass"))
    return {requirement: found.hexdigest()[:12] for requirement, found in sorted(hashes.items())}


def differing(written: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the requirements whose evidence differs from the recorded evidence."""
    return [name for name in sorted({*written, *now}) if written.get(name) != now.get(name)]


def captures(parts: Sequence[str] = ()) -> list[Path]:
    """Return the captures in `fixtures/` whose paths contain one of these texts; all captures if no text is
    given.
    """
    every = sorted(FIXTURES.rglob("*.jsonl.gz"))
    return [path for path in every if not parts or any(part in str(path) for part in parts)]


def read_digests() -> Digests:
    """Read the recorded digests. Raises OSError, ValueError."""
    written: Digests = json.loads(gzip.decompress(DIGESTS.read_bytes()))
    return written


def _write_digests(found: Digests) -> None:
    DIGESTS.parent.mkdir(exist_ok=True)
    DIGESTS.write_bytes(gzip.compress(json.dumps(found, sort_keys=True).encode(), mtime=0))


def updated(written: Digests, found: Digests, requirements: Collection[str] = ()) -> Digests:
    """Return the recorded digests, replaced where there are new ones.

    requirements: the ids that were compared; all ids if empty.
    """
    kept = {
        capture: {
            name: digest for name, digest in written.get(capture, {}).items() if name not in requirements
        }
        for capture in found
        if requirements
    }
    return written | {capture: kept.get(capture, {}) | rows for capture, rows in found.items()}


def _write_lines(folder: Path, requirements: Collection[str], capture: Path) -> None:
    """Write the evidence of a capture, in a file for each requirement."""
    for requirement, line in lines(capture, requirements):
        file = folder / capture.relative_to(FIXTURES).with_suffix("").with_suffix("") / f"{requirement}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8", errors="surrogatepass") as out:
            out.write(line + "\n")


def main() -> int:
    """Print the differences. Return 1 if there are differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--lines", type=Path, metavar="DIR")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--requirement", action="append", default=[], metavar="ID", choices=sorted(CHECKS))
    asked = parser.parse_args()
    requirements = frozenset(asked.requirement)
    chosen = captures(asked.parts)
    with ProcessPoolExecutor(asked.jobs) as pool:
        if asked.lines:
            list(pool.map(partial(_write_lines, asked.lines, requirements), chosen))
            return 0
        results = pool.map(partial(digests, requirements=requirements), chosen)
        found = {
            str(path.relative_to(FIXTURES)): result for path, result in zip(chosen, results, strict=True)
        }
    written = read_digests() if DIGESTS.exists() else {}
    if asked.update:
        _write_digests(updated(written, found, requirements))
        return 0
    changed = {name: differing(written.get(name, {}), now) for name, now in found.items()}
    if requirements:
        changed = {name: [row for row in rows if row in requirements] for name, rows in changed.items()}
    changed = {name: rows for name, rows in changed.items() if rows}
    for name, rows in changed.items():
        print(f"{name}: {', '.join(rows)}")
    print(f"{len(found)} captures; the evidence of {len(changed)} differs from what was written down")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
