"""The tutorial with the output of its commands: run the commands, and write or compare their output.

python -m proofs.tutorial        run the commands against the reference engine, and write docs/tutorial.md
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
SHOWN_URL = "http://127.0.0.1:30000"
MODEL = "builtin:parrot"
SERVER_FLAGS = ("--incremental-streaming-output", "--enable-faults")
"""The flags of the tutorial's server."""
_EXPECTED = (0, 1)
"""The exit statuses of servers that conform and that do not."""
_DIFFERS = re.compile(r" data: |^[ >]+\d+ +[\d.]+ s  |^ +\^+$| more like it|^  first seen |^  curl ")
_SESSION = re.compile(
    r"(?<=^```console\n)\$ (?P<command>(?:.*\\\n)*.+)\n(?P<printed>(?:.*\n)*?)(?=```$)", re.MULTILINE
)


def shown(markdown: str) -> list[tuple[str, str]]:
    """Return all commands in order, each with its expected output."""
    return [(match["command"], match["printed"]) for match in _SESSION.finditer(markdown)]


def printed(command: str, url: str, folder: Path) -> str:
    """Run a command of the tutorial in a folder, against a server at any URL."""
    program, *arguments = shlex.split(command.replace("\\\n", " ").replace(SHOWN_URL, url))
    if program != "tokenwire":
        raise ValueError(f"the tutorial runs {program!r}; only output of tokenwire can be shown")
    run = [sys.executable, "-m", "tokenwire", *arguments]
    # The width is the one without a terminal. The caller's environment may contain another width in
    # COLUMNS.
    surroundings = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        run, cwd=folder, capture_output=True, text=True, check=False, timeout=300, env=surroundings
    )
    if done.returncode not in _EXPECTED:
        raise RuntimeError(f"{command} ended with status {done.returncode}: {done.stderr}")
    lines = done.stdout.replace(url, SHOWN_URL).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def comparable(text: str) -> Iterator[str]:
    """Yield the lines of an output without parts that differ between runs: numbers, spaces, the
    first event.
    """
    for line in text.splitlines():
        if line.strip() and not _DIFFERS.search(line):
            counted = re.sub(r"\d+(\.\d+)?", "#", " ".join(line.split()))
            yield counted.replace("# output ids", "# output id")


def refreshed(markdown: str, url: str, folder: Path) -> str:
    """Return the tutorial with new output of its commands, which run one after the other in one folder."""

    def turned(match: re.Match[str]) -> str:
        return f"$ {match['command']}\n{printed(match['command'], url, folder)}"

    return _SESSION.sub(turned, markdown)


def main() -> None:
    """Rewrite the tutorial."""
    command = [sys.executable, "-m", "tokenwire_reference", "serve", "--model", MODEL, "--port", "0"]
    with (
        subprocess.Popen([*command, *SERVER_FLAGS], stdout=subprocess.PIPE, text=True) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            TUTORIAL.write_text(refreshed(TUTORIAL.read_text("utf-8"), url, Path(folder)), "utf-8")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
