"""A file of settings decides what is sent or run only where the user trusts it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tokenwire.commands.trust import remember
from tokenwire.judging.verdict import ExitStatus

NOBODY = "http://127.0.0.1:1"
Run = Callable[..., CompletedProcess[str]]
BROUGHT = {
    "target": f'target = "{NOBODY}"\n',
    "worker": f'worker = "{NOBODY}"\n',
    "restart": 'restart = "touch PWNED"\n',
    "headers.X-Leak": 'headers = { X-Leak = "env:HOME" }\n',
}


def write(folder: Path, text: str) -> Path:
    file = folder / "tokenwire.toml"
    file.write_text(text, "utf-8")
    return file


def printed(ran: CompletedProcess[str]) -> str:
    return " ".join((ran.stdout + ran.stderr).replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "key"),
    [
        *(((command, *words), key) for key in BROUGHT for command, *words in [("check",), ("record", "rec")]),
        (("watch", "--listen", "127.0.0.1:0"), "headers.X-Leak"),
        (("watch", "--listen", "127.0.0.1:0"), "watch.record"),
        (("compare", NOBODY, NOBODY), "headers.X-Leak"),
    ],
)
def test_what_a_file_decides_is_shown_and_refused(
    tokenwire: Run, tmp_path: Path, command: tuple[str, ...], key: str
) -> None:
    write(tmp_path, {**BROUGHT, "watch.record": '[watch]\nrecord = "rec"\n'}[key])
    target = ("--target", NOBODY) if key != "target" and command[0] != "compare" else ()
    ran = tokenwire(*command, *target)
    assert ran.returncode == ExitStatus.USAGE, ran.stdout
    assert f"tokenwire.toml decides what is sent or run: {key} = " in printed(ran)
    assert "--trust" in printed(ran)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenwire.toml"]


def test_a_flag_trusts_and_a_command_line_needs_none(tokenwire: Run, tmp_path: Path) -> None:
    write(tmp_path, BROUGHT["target"] + BROUGHT["headers.X-Leak"])
    assert tokenwire("check", "--trust").returncode == ExitStatus.NOTHING_EVALUATED
    said_all = ("--target", NOBODY, "--header", "x-leak: mine")
    assert tokenwire("check", *said_all).returncode == ExitStatus.NOTHING_EVALUATED
    write(tmp_path, "timeout = 5\n")
    assert tokenwire("check", "--target", NOBODY).returncode == ExitStatus.NOTHING_EVALUATED


def test_what_was_trusted_is_trusted_until_it_changes(tokenwire: Run, tmp_path: Path) -> None:
    file = write(tmp_path, BROUGHT["target"])
    remember(file, {"target": NOBODY, "restart": "mine"})
    assert tokenwire("check").returncode == ExitStatus.NOTHING_EVALUATED
    write(tmp_path, BROUGHT["target"] + BROUGHT["restart"])
    assert tokenwire("check").returncode == ExitStatus.USAGE
    write(tmp_path, f'target = "{NOBODY}/elsewhere"\n')
    assert tokenwire("check").returncode == ExitStatus.USAGE


@pytest.mark.parametrize(
    ("answer", "status"), [("y", ExitStatus.NOTHING_EVALUATED), ("n", 1)], ids=["yes", "no"]
)
def test_a_terminal_is_asked_once(tokenwire: Run, tmp_path: Path, answer: str, status: int) -> None:
    write(tmp_path, BROUGHT["target"])
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode("ascii"))
    command = [sys.executable, "-m", "tokenwire", "check"]
    ran = subprocess.run(
        command, cwd=tmp_path, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, check=False
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "Do you trust it?" in shown
    assert ran.returncode == status
    assert tokenwire("check").returncode == (status if answer == "y" else ExitStatus.USAGE)
