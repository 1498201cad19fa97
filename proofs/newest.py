"""Compare the newest releases of servers and clients with the names that Tokenwire knows.

    python -m proofs.newest PATH…            wheels, or folders that contain packages, such as site-packages
    python -m proofs.newest --reasons PATH…  also print the names of `spec/unbound.yaml` with their reasons

The sources are parsed and not imported. `proofs/newest.yaml` lists the modules. A field or a value is known
if its name occurs anywhere in its dialect or in a schema of this dialect. Values of unknown fields are left
out. The default of a known request field is known if the schema of requests has the same `default`. A field
of this schema is gone if the newest release of its family does not have it. An endpoint is known if its path
is in a dialect, in `spec/control/` or in `spec/servers/`. A base of a class is unknown if no source that is
read defines it. Front ends in Rust are not read.

The exit status is 1 if a name is neither known nor listed in `spec/unbound.yaml`, or if a pattern of
`proofs/newest.yaml` matches no name. If all packages are given, it is also 1 if an entry of
`spec/unbound.yaml` matches no name.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from proofs.released_names import VALUED, Name, Release, names_of, releases, without_names
from tokenwire.spec_files import read_yaml, spec_root

WORDED = (
    "chooses",
    "efforts",
    "finish_types",
    "kinds",
    "listed",
    "schema_as",
    "tool",
    "turns",
    "types",
    "volatile",
)
"""Parts of a dialect that contain names of the wire outside pointers."""


def _file_of(dialect: str) -> Path:
    return spec_root() / "dialects" / f"{dialect}.yaml"


def known_words(dialect: str, requests: Mapping[str, str]) -> set[str]:
    """Return the words of a dialect and of its schemas that are names or values on the wire."""
    read = read_yaml(_file_of(dialect))
    words = set(_words(read, worded=False))
    schemas = [read.get("schemas", {}).get(which) for which in ("whole", "stream", "error")]
    for schema in filter(None, (*schemas, requests.get(dialect))):
        words |= set(_of_schema(_schema(schema)))
    if "grammar" in read:
        words |= set(_words(read_yaml(spec_root() / "grammars" / f"{read['grammar']}.yaml"), worded=True))
    return words


def request_fields(schema: str) -> dict[str, set[str]]:
    """Return the fields of a request schema, each with its defaults as JSON. Without one, it is null."""
    fields: defaultdict[str, set[str]] = defaultdict(set)

    def collect(part: Any) -> None:
        properties = part.get("properties") if isinstance(part, dict) else None
        for name, field in properties.items() if isinstance(properties, dict) else ():
            fields[name].add(json.dumps(field.get("default") if isinstance(field, dict) else None))
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            collect(inner)

    collect(_schema(schema))
    return fields


def _schema(name: str) -> Any:
    return json.loads((spec_root() / "schemas" / f"{name}.json").read_text("utf-8"))


def _words(part: Any, *, worded: bool) -> Iterator[str]:
    """Yield the parts of each pointer, and all words of the parts in `WORDED`."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _words(str(key), worded=worded)
            yield from _words(value, worded=worded or key in WORDED)
    elif isinstance(part, list):
        for value in part:
            yield from _words(value, worded=worded)
    elif isinstance(part, str) and (worded or part.startswith("/")):
        yield from re.split(r"[/ ]", part)


def _of_schema(part: Any) -> Iterator[str]:
    """Yield the names of properties, and all strings: constants, enumerations and descriptions. Descriptions
    do not match any name.
    """
    if isinstance(part, Mapping):
        properties = part.get("properties")
        yield from properties if isinstance(properties, Mapping) else ()
        for value in part.values():
            yield from _of_schema(value)
    elif isinstance(part, list):
        for value in part:
            yield from _of_schema(value)
    elif isinstance(part, str):
        yield part


def known_paths(family: str) -> set[str]:
    """Return the paths of all dialects and of the tables of a server family."""
    files = [*sorted((spec_root() / "dialects").glob("*.yaml"))]
    files += [spec_root() / folder / f"{family}.yaml" for folder in ("control", "servers")]
    return {path for file in files if file.exists() for path in _paths(read_yaml(file))}


def _paths(part: Any) -> Iterator[str]:
    for key, value in part.items() if isinstance(part, Mapping) else ():
        if key in ("older_path", "path", "paths"):
            yield from [value] if isinstance(value, str) else value
        yield from _paths(value)
    for value in part if isinstance(part, list) else ():
        yield from _paths(value)


@dataclass(frozen=True)
class Reason:
    """An entry of `spec/unbound.yaml`: names at some places that are intentionally unknown."""

    places: tuple[str, ...]
    pattern: str
    reason: str

    def covers(self, name: Name) -> bool:
        """Return True if the entry applies to the name."""
        return name.place in self.places and fnmatchcase(name.name, self.pattern)


def reasons(listed: Mapping[str, Mapping[str, str]]) -> list[Reason]:
    """Return the entries of a table. A key may contain several places or patterns."""
    return [
        Reason(tuple(places.split()), pattern, reason)
        for places, entries in listed.items()
        for patterns, reason in entries.items()
        for pattern in patterns.split()
    ]


@dataclass(frozen=True)
class Difference:
    """The unknown names of releases, the entry of `spec/unbound.yaml` for each of them, and
    unused entries.
    """

    unknown: Mapping[Name, Sequence[str]]
    covered: Mapping[Name, Reason]
    unused: Sequence[str]

    def fails(self) -> bool:
        """Return True if an unknown name has no reason or an entry is unused."""
        return bool(self.unused or self.unknown.keys() - self.covered.keys())


class _Known:
    """The names that the specification has, read once for each dialect and family."""

    def __init__(self, requests: Mapping[str, str]) -> None:
        self._requests = requests
        self._words = cache(lambda dialect: known_words(dialect, requests))
        self._fields = cache(request_fields)
        self._paths = cache(known_paths)

    def has(self, name: Name, family: str) -> bool:
        """Return True if a name is known, or if it is a value or default of a field that is not."""
        field, _, value = name.name.partition("=")
        match name.kind:
            case "endpoint":
                return name.name in self._paths(family)
            case "field":
                return name.name in self._words(name.place)
            case "value":
                words = self._words(name.place)
                return value in words or (field not in words and field not in VALUED)
            case "default":
                schema = self._requests.get(name.place)
                return value in (self._fields(schema) if schema else {}).get(field, {value})
        return False

    def gone(self, present: Set[Name], family: str) -> Iterator[Name]:
        """Yield the fields of request schemas that a release of their family does not have."""
        for dialect in sorted({name.place for name in present if name.kind == "default"}):
            if dialect in self._requests and read_yaml(_file_of(dialect))["family"] == family:
                for field in _schema(self._requests[dialect])["properties"]:
                    if Name(dialect, "field", field) not in present:
                        yield Name(dialect, "gone", field)


def compare(found: Sequence[Release], read: Mapping[str, Any], listed: Mapping[str, Any]) -> Difference:
    """Return the difference between the names of releases and the known or listed names."""
    unknown: defaultdict[Name, list[str]] = defaultdict(list)
    known = _Known(read["requests"])
    unused: list[str] = []
    for release in found:
        package = read["packages"][release.package]
        family = package.get("family", "")
        used, present = set(), set()
        for pattern, name, where in names_of(release, package):
            used.add(pattern)
            present.add(name)
            if not known.has(name, family) and where not in unknown[name]:
                unknown[name].append(where)
        for name in known.gone(present, family):
            unknown[name].append(f"spec/schemas/{read['requests'][name.place]}.json")
        patterns = without_names(package, used)
        unused += [f"proofs/newest.yaml: {pattern} matches no name" for pattern in patterns]
    unknown = defaultdict(list, {name: places for name, places in unknown.items() if places})
    entries = reasons(listed)
    covered = {name: entry for name in unknown for entry in reversed(entries) if entry.covers(name)}
    if {release.package for release in found} == set(read["packages"]):
        for entry in entries:
            if not any(entry.covers(name) for name in unknown):
                places = " ".join(entry.places)
                unused.append(f"spec/unbound.yaml: {places}: {entry.pattern} matches no unknown name")
    return Difference(unknown, covered, unused)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the difference as a table; return 1 if a name has no reason or an entry is unused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--reasons", action="store_true", help="also print names with a reason")
    chosen = parser.parse_args(arguments)
    read = read_yaml(Path(__file__).with_suffix(".yaml"))
    found = [release for path in chosen.paths for release in releases(path, read["packages"])]
    if not found:
        parser.error(f"found none of {', '.join(read['packages'])} in {', '.join(map(str, chosen.paths))}")
    difference = compare(found, read, read_yaml(spec_root() / "unbound.yaml"))
    columns = ("place", "kind", "name", "where", "reason")
    table = Table(*columns[: 5 if chosen.reasons else 4], box=None)
    for name, places in sorted(difference.unknown.items()):
        reason = difference.covered.get(name)
        if chosen.reasons or not reason:
            row = (name.place, name.kind, name.name, "\n".join(places), reason.reason if reason else "")
            table.add_row(*row[: len(table.columns)])
    # in a pipe, lines are not wrapped at the width of a terminal
    console = Console(width=None if sys.stdout.isatty() else 240, highlight=False, markup=False)
    if table.rows:
        console.print(table)
    for line in difference.unused:
        console.print(line)
    unreasoned = len(difference.unknown) - len(difference.covered)
    read_of = ", ".join(f"{release.package} {release.version}" for release in found)
    counts = f"{len(difference.unknown)} unknown names, {unreasoned} without a reason in spec/unbound.yaml"
    console.print(f"{read_of}: {counts}; {len(difference.unused)} unused entries")
    if absent := sorted(read["packages"].keys() - {release.package for release in found}):
        console.print(
            f"{' and '.join(absent)} are missing, so unused entries of spec/unbound.yaml were not searched"
        )
    return int(difference.fails())


if __name__ == "__main__":
    sys.exit(main())
