"""Judge captures on all machines of a Ray cluster, and make one report of them.

    pip install ray
    python examples/ray_replay.py /shared/captures/*.jsonl.gz --report report

Every machine reaches the captures by the same paths, which begin at the root. A task judges some of them and
gives back its tally; `tokenwire merge` makes the report, with the options that are not known here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import ray

TOKENWIRE = (sys.executable, "-m", "tokenwire")


@ray.remote(num_cpus=1)
def tally(captures: list[str]) -> bytes:
    """Return the tally of one replay of some captures, for a merge."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tally.gz"
        command = [*TOKENWIRE, "replay", *captures, "--quiet", "--tally", str(file)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if not file.exists():
            raise RuntimeError(ran.stderr or f"{' '.join(command)} ended with status {ran.returncode}")
        return file.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("captures", nargs="+", help="one file for each server, in the order of the report")
    parser.add_argument("--together", type=int, default=4, help="how many captures a task judges")
    options, of_merge = parser.parse_known_args()
    starts = range(0, len(options.captures), options.together)
    ray.init(log_to_driver=False)
    tasks = [tally.remote(options.captures[start : start + options.together]) for start in starts]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, task in enumerate(tasks):
            files.append(Path(folder) / f"{number}.tally.gz")
            files[-1].write_bytes(ray.get(task))
        return subprocess.run([*TOKENWIRE, "merge", *map(str, files), *of_merge], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
