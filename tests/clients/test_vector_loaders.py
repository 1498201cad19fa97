"""The loaders to copy, in Python and in JavaScript, read every vector as the suite does."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tokenwire.spec_files import beside_packages
from tokenwire_clients.vectors import load_doors, reads_of, whole

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
RUN_BY_NODE = "a480afce77a4918d9224059dbae5dd31e87f9fbd989457b44fcee9a9f605dfec"
"""The digest of the JavaScript loader. Change it where node is: there this test runs the loader first."""
DOORS = sorted(load_doors())
PRINT_CASES = """
const { load } = await import(process.argv[1]);
const { createHash } = await import("node:crypto");
for (const { id, reads, record } of load(process.argv[2])) {
  const hash = createHash("sha256");
  for (const read of reads) hash.update(`${read.length} `).update(read);
  console.log(JSON.stringify([id, hash.digest("hex"), record]));
}
"""


def digest(reads: Iterable[bytes]) -> str:
    """Of the bytes, and of where each read ends."""
    made = hashlib.sha256()
    for read in reads:
        made.update(f"{len(read)} ".encode() + read)
    return made.hexdigest()


@cache
def right(door) -> list[list[object]]:
    cases = load_doors()[door].cases.values()
    return [[case.id, digest(reads_of(case.reads)), whole(case.record)] for case in cases]


def file_of(door) -> Path:
    return beside_packages("vectors") / f"{door}.json"


@pytest.mark.parametrize("door", DOORS)
def test_the_python_loader_reads_every_case(door):
    spec = importlib.util.spec_from_file_location("load", CLIENTS / "load.py")
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    cases = ([case["id"], digest(case["reads"]), case["record"]] for case in loader.load(file_of(door)))
    assert list(cases) == right(door)


@pytest.mark.parametrize("door", DOORS)
def test_the_javascript_loader_reads_every_case(door):
    """Where node is not, its file is the one that node ran."""
    if shutil.which("node"):
        command = ["node", "--input-type=module", "-e", PRINT_CASES, CLIENTS / "load.mjs", file_of(door)]
        lines = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
        assert [json.loads(line) for line in lines] == right(door)
    assert hashlib.sha256((CLIENTS / "load.mjs").read_bytes()).hexdigest() == RUN_BY_NODE


ADAPTERS = sorted(
    path for path in CLIENTS.iterdir() if path.is_file() and path.stem not in {"driver", "load"}
)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda path: path.name)
def test_an_adapter_is_shorter_than_60_lines(adapter):
    assert len(adapter.read_text("utf-8").splitlines()) < 60
