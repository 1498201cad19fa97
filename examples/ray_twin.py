"""Decide if two fleets serve one model: twins on the machines of a Ray cluster, and one comparison of all.

    pip install ray
    python examples/ray_twin.py --a http://old-{1,2,3}:30000 --b http://new-{1,2,3}:30000 --html twin.html

Each task compares a replica of one deployment with one of the other, by texts that no other task asks for,
and returns its tally. `tokenwire merge` makes the comparison, with the options that are not known here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from itertools import cycle
from pathlib import Path

import ray

TOKENWIRE = (sys.executable, "-m", "tokenwire")


@ray.remote(num_cpus=1)
def tally(first: str, second: str, part: int, tokens: int) -> bytes:
    """Return the tally of the comparison of two replicas, for a merge."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tally.gz"
        command = [*TOKENWIRE, "twin", "--a", first, "--b", second, "--part", str(part)]
        command += ["--tokens", str(tokens), "--tally", str(file)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if not file.exists():
            raise RuntimeError(ran.stderr or f"{' '.join(command)} ended with status {ran.returncode}")
        return file.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--a", nargs="+", required=True, metavar="URL", help="replicas of one deployment")
    parser.add_argument("--b", nargs="+", required=True, metavar="URL", help="replicas of the other")
    parser.add_argument(
        "--parts", type=int, metavar="N", help="how many tasks; each replica has one by default"
    )
    parser.add_argument("--tokens", type=int, default=3000, help="that each task has scored")
    options, of_merge = parser.parse_known_args()
    parts = options.parts or max(len(options.a), len(options.b))
    ray.init(log_to_driver=False)
    pairs = zip(range(parts), cycle(options.a), cycle(options.b), strict=False)
    tasks = [tally.remote(first, second, part, options.tokens) for part, first, second in pairs]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, task in enumerate(tasks):
            files.append(Path(folder) / f"{number}.tally.gz")
            files[-1].write_bytes(ray.get(task))
        return subprocess.run([*TOKENWIRE, "merge", *map(str, files), *of_merge], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
