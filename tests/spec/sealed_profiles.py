"""The versions of the profiles: each member with a seal over what it demands, and whether the rows keep it.

    python tests/spec/sealed_profiles.py v1     writes spec/profiles/v1.yaml from the rows as they are

A version that is published stays as it is: the script does not write it again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping

import yaml

from tokenwire.requirement import CONTRACT_PROFILES, PURPOSES, Requirement, load_requirements
from tokenwire.spec_files import spec_root

PUBLISHED: dict[str, str] = {}
"""SHA-256 of each file that is published. A line is added with a version, and never changed.

Empty until 1.0: nothing was released, and `v1` is a draft that follows the rows.
"""
WAY_OUT = (
    "what is published stays: leave the row as it was, or withdraw it (`excluded:`), and give the new demand "
    "a new id in a new version (spec/README.md, Versions)"
)
_HEADING = """\
# Frozen: each member with the seal of what it demands (spec/README.md, Profiles). A requirement that is added
# or worded anew enters the next version, never this one.
"""


def seal(row: Requirement) -> str:
    """Twelve hexadecimal digits over all of a row that decides whether a target conforms to it."""
    demands = [row.id, row.level.value, row.sentence, row.contract, sorted(row.applies_when)]
    return hashlib.sha256(json.dumps(demands).encode()).hexdigest()[:12]


def sealed(rows: Iterable[Requirement], version: str) -> str:
    """The file of a version that has all of these rows but the withdrawn ones."""
    members: dict[str, list[Requirement]] = {}
    rows = [row for row in rows if not row.excluded]
    subjects = dict.fromkeys(row.profile for row in rows)
    for profile in [*subjects, *CONTRACT_PROFILES, *PURPOSES]:
        members[profile] = [row for row in rows if profile in row.profiles]
    lines = [f"version: {version}", "profiles:"]
    for profile, own in members.items():
        lines += [f"  {profile}:", *(f'    {row.id}: "{seal(row)}"' for row in own)]
    return _HEADING + "\n".join(lines) + "\n"


def broken_seals(file: str, rows: Mapping[str, Requirement]) -> Iterator[str]:
    """What the rows no longer keep of a version, a line for each member. `file` is its text."""
    version = yaml.safe_load(file)
    for profile, members in version["profiles"].items():
        for name, expected in members.items():
            if name not in rows:
                yield f"{name}, which {profile} {version['version']} lists, has no row any more; {WAY_OUT}"
            elif seal(rows[name]) != expected:
                yield f"{name} demands something else than in {profile} {version['version']}; {WAY_OUT}"


def is_as_published(version: str, file: str) -> bool:
    """Whether the text of a version's file is the one that was published; so is every draft."""
    return PUBLISHED.get(version, _digest(file)) == _digest(file)


def _digest(file: str) -> str:
    return hashlib.sha256(file.encode()).hexdigest()


def main(version: str) -> None:
    """Write the file of a version. Exits where it is published."""
    if version in PUBLISHED:
        sys.exit(f"{version} is published and stays as it is; write the next version")
    path = spec_root() / "profiles" / f"{version}.yaml"
    path.write_text(sealed(load_requirements().values(), version), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
