"""Twins shared out by Ray on this machine: their comparison is that of the same twins one by one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenwire.judging.verdict import ExitStatus

pytest.importorskip("ray", reason="Ray is installed by `nox -s interop`")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_twin.py"
PARTS = 3


def test_tasks_of_ray_compare_as_one_does(start_reference: Callable[..., str], tmp_path: Path) -> None:
    urls = [start_reference("--weight-version", name) for name in ("old", "new")]
    sides = ("--a", urls[0], "--b", urls[1], "--tokens", "64")

    def run(*command: str) -> int:
        return subprocess.run([sys.executable, *command], cwd=tmp_path, check=False).returncode

    shared = run(str(EXAMPLE), *sides, "--parts", str(PARTS), "--json", "ray.json")
    files = [f"{part}.tally.gz" for part in range(PARTS)]
    alone = [
        run("-m", "tokenwire", "twin", *sides, "--part", str(part), "--tally", file)
        for part, file in enumerate(files)
    ]
    merged = run("-m", "tokenwire", "merge", *files, "--json", "merged.json")
    # Two texts are too few for an answer, six are enough.
    undecided = [ExitStatus.NOTHING_EVALUATED] * PARTS
    assert (shared, alone, merged) == (ExitStatus.CONFORMS, undecided, ExitStatus.CONFORMS)
    assert (tmp_path / "ray.json").read_bytes() == (tmp_path / "merged.json").read_bytes()
