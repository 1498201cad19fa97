"""Write the vectors for clients, in one file for each endpoint.

python -m proofs.vectors                          all endpoints
python -m proofs.vectors --door openai-chat       only this endpoint; repeatable
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from proofs.vectors.broken import broken_cases
from proofs.vectors.doors import DOORS, Door
from proofs.vectors.suite import MEDIA_TYPE, Case, legal_cases, long_case, refused_cases, settled
from tokenwire.wire.exchange import Ending
from tokenwire_clients.vectors import sentences

FOLDER = Path(__file__).parents[2] / "vectors"
DATE = "2026-11-25"
_SHORT = 1000
"""The number of events in the short form of the longest stream, which is judged instead of this stream."""
_SEVERAL = 3
"""From this number of reads of equal size on, the text is written once, with the size."""


def cases_of(door: Door) -> Iterator[Case]:
    """Yield all cases of an endpoint, without their results."""
    legal = {case.id: case for case in legal_cases(door)}
    yield from (*legal.values(), *refused_cases(door), *broken_cases(door, legal))
    yield long_case(door)


def judged(door: Door) -> list[Case]:
    """Return all cases of an endpoint with the results of their checks. The long case has its short form."""
    short = settled(long_case(door, _SHORT))
    return [
        replace(case, result=short.result, requirement=short.requirement) if case.rules else settled(case)
        for case in cases_of(door)
    ]


def _rules(reads: Sequence[bytes]) -> list[Any]:
    """Return the reads of a case in the form of the file."""
    body, size = b"".join(reads), len(reads[0])
    if len(reads) >= _SEVERAL and all(len(read) == size for read in reads[:-1]) and len(reads[-1]) <= size:
        return [{"text": body.decode(), "every": size}]
    return [_rule(read) for read in reads]


def _rule(read: bytes) -> Any:
    try:
        return read.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(read).decode()}


def row(case: Case) -> dict[str, Any]:
    """Return a case in the form of the file. Default values are left out."""
    headers = dict(case.headers)
    made: dict[str, Any] = {
        "id": case.id,
        "comment": case.comment,
        "flags": [case.sentence],
        "result": case.result,
        "requirement": case.requirement,
        "follows": case.follows,
        "status": case.status,
        "headers": headers if headers != {"content-type": MEDIA_TYPE} else None,
        "ending": case.ending.value,
        "request": case.request,
        "reads": list(case.rules) or _rules(case.reads),
        "record": case.record,
    }
    usual = {
        "requirement": "",
        "follows": "",
        "status": 200,
        "headers": None,
        "ending": Ending.COMPLETE.value,
    }
    return {key: value for key, value in made.items() if key not in usual or value != usual[key]}


def document(door: Door, cases: Sequence[Case]) -> str:
    """Return the text of a file: its head, and one case in each line."""
    flags = {case.sentence for case in cases}
    head = {
        "schema": "schema.json",
        "generator": "tokenwire, python -m proofs.vectors",
        "license": "Apache-2.0",
        "date": DATE,
        "door": door.name,
        "dialect": door.dialect,
        "path": door.path,
        "number_of_cases": len(cases),
        "results": dict(sorted(Counter(case.result for case in cases).items())),
        "flags": {
            name: f"{row.sentence} ({row.level.value})" for name, row in sentences().items() if name in flags
        },
    }
    written = json.dumps(head, ensure_ascii=False, indent=1)
    rows = ",\n".join(json.dumps(row(case), ensure_ascii=False) for case in cases)
    return f'{written[:-2]},\n "cases": [\n{rows}\n ]\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--door", action="append", choices=DOORS)
    for name in parser.parse_args(arguments).door or DOORS:
        door = DOORS[name]
        text = document(door, judged(door))
        (FOLDER / f"{name}.json").write_text(text, "utf-8")
        print(f"{name}: {text.count(chr(10) + '{')} cases", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
