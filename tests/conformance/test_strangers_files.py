"""Captures and tallies of strangers: a small file takes neither all memory nor a traceback."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import request, whole, write_folder
from test_hostile_names import write_capture

from tokenwire import __version__
from tokenwire.judging.verdict import ExitStatus
from tokenwire.wire.json_lines import LONGEST, CaptureError, lines, unzipped, value_of

_MOST_KIB = 300 << 10
_MEBIBYTE = b" " * (1 << 20)


MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stderr=subprocess.STDOUT)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(f"\\n{usage.ru_maxrss}", end="")
sys.exit(process.returncode)
"""
# A process begins with the peak of the one that started it, and a worker of the tests is large.


def run(*words: str) -> tuple[int, str, int]:
    """Exit status, output, and the largest resident size in KiB of a command line."""
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "tokenwire", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    output, _, size = done.stdout.rpartition("\n")
    return done.returncode, output, int(size)


def zipped(path: Path, content: Iterator[bytes]) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.writelines(content)
    return path


HEAD = {"kind": "head", "format": 1, "tokenwire": __version__, "requirements": []}
BEGUN = {
    "replay": b'{"kind": "request", "format": 1, "name": "a", "scenario": "", "started": "", "server": {}, '
    b'"method": "POST", "path": "/generate", "headers": [], "body": [',
    "merge": json.dumps(HEAD).encode() + b'\n{"kind": "judged", "judgements": [',
}
"""All before the values of a line."""


def endless_line(begun: bytes) -> Iterator[bytes]:
    yield begun
    yield from [_MEBIBYTE] * 300


def many_values(begun: bytes) -> Iterator[bytes]:
    yield begun
    yield b'{"a":1},' * (6 << 20)
    yield b"0]}\n"


def many_lines(begun: bytes) -> Iterator[bytes]:
    """Each is short; all together are not."""
    first, _, last = begun.rpartition(b"\n")
    yield first + b"\n" * bool(first)
    yield from [last + b'{"a":1},' * (1 << 14) + b"0]}\n"] * 600


@pytest.mark.parametrize(
    ("command", "make"),
    [
        ("replay", endless_line),
        ("replay", many_values),
        ("merge", endless_line),
        ("merge", many_values),
        ("merge", many_lines),
    ],
)
def test_a_small_file_takes_no_memory(
    command: str, make: Callable[[bytes], Iterator[bytes]], tmp_path: Path
) -> None:
    file = zipped(tmp_path / "stranger.jsonl.gz", make(BEGUN[command]))
    status, output, size = run(command, str(file))
    assert status == ExitStatus.USAGE, output
    assert "Traceback" not in output
    assert "stranger.jsonl.gz" in output
    assert size < _MOST_KIB


@pytest.mark.parametrize("depth", [199, 201, 900, 100_000])
def test_a_request_of_any_depth_is_read_or_refused_in_a_sentence(depth: int, tmp_path: Path) -> None:
    body = f'{{"input_ids": [1], "deep": {"[" * depth}{"]" * depth}}}'
    exchange = replace(whole("deep"), request=replace(request(stream=False), body="here"))
    folder = write_folder(tmp_path / "rec", exchange)
    (file,) = folder.iterdir()
    file.write_text(file.read_text().replace('"here"', body))
    status, output, _ = run("replay", str(folder))
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    assert status == (ExitStatus.USAGE if depth > 198 else ExitStatus.NOTHING_EVALUATED), output
    assert ("more than 200 deep" in output) is (depth > 198)


def test_a_line_is_as_long_as_it_may_be(tmp_path: Path) -> None:
    def text(size: int) -> Iterator[bytes]:
        yield b'"' + b"a" * (size - 2) + b'"\n'

    file = zipped(tmp_path / "a.gz", iter([os.urandom(1 << 20), b"\n", *text(LONGEST)]))
    *_, last = lines(file, unzipped(file))
    assert len(value_of(last)) == LONGEST - 2
    longer = zipped(tmp_path / "b.gz", iter([os.urandom(1 << 20), b"\n", *text(LONGEST + (2 << 20))]))
    with pytest.raises(CaptureError, match=r"line \d+: the line is longer than the limit of 64 MiB"):
        list(lines(longer, unzipped(longer)))


def test_a_line_is_one_value() -> None:
    assert value_of(b'{"a": "\\ud800", "b": NaN}')["a"] == "\ud800"
    for wrong in (b"1, 2", b"", b"[1], [2]"):
        with pytest.raises(ValueError, match=r"."):
            value_of(wrong)


def test_a_whole_capture_is_read_as_before(tmp_path: Path) -> None:
    file = write_capture(tmp_path / "a.jsonl", [whole("a")])
    assert run("replay", str(file))[0] == ExitStatus.CONFORMS
