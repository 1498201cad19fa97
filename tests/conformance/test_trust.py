"""A file of settings decides what is sent or run only where the user trusts it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import loopback
import pytest

from tokenwire.commands.trust import Brought, brought, remember
from tokenwire.demo_server import demo_server
from tokenwire.judging.verdict import ExitStatus
from tokenwire.settings import OPTIONS, Settings

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
    assert f"tokenwire.toml decides what is sent, executed or written: {key} = " in printed(ran)
    assert "--trust" in printed(ran)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenwire.toml"]


DIALECT = """name: evil
title: Evil
family: evil
endpoint: {method: POST, path: /flush_cache}
"""
ASKED = {
    "dialects": 'dialects = ["evil.yaml"]\n',
    "model": 'model = "the-dearest"\n',
    "capabilities": 'capabilities = ["weight-updates"]\n',
    "budget": 'budget = "soak"\n',
    "max-concurrency": "max-concurrency = 17\n",
    "price": 'price = "0,0"\n',
    "wait": "wait = 300\n",
    "tokenizer": 'tokenizer = "model"\n',
    "twin": f'twin = "{NOBODY}"\n',
    "watch.listen": '[watch]\nlisten = "0.0.0.0:0"\n',
    "watch.admin": '[watch]\nadmin = "0.0.0.0:0"\n',
    "watch.record-cap": "[watch]\nrecord-cap = 1\n",
}


@pytest.mark.parametrize("key", ASKED)
def test_what_changes_a_byte_on_the_wire_or_a_file_is_refused(
    tokenwire: Run, tmp_path: Path, key: str
) -> None:
    write(tmp_path, ASKED[key])
    (tmp_path / "evil.yaml").write_text(DIALECT, "utf-8")
    command = ["check"] if not key.startswith("watch.") else ["watch", "--listen", "127.0.0.1:0"]
    if key == "watch.listen":
        command = ["watch"]
    ran = tokenwire(*command, "--target", NOBODY)
    assert ran.returncode == ExitStatus.USAGE, ran.stdout
    assert f"decides what is sent, executed or written: {key} = " in printed(ran)
    assert all(len(line) <= 80 for line in ran.stderr.splitlines() if str(tmp_path) not in line)


LESS = """dialects = ["sglang-generate"]
without = ["crowd"]
gentle = true
budget = "quick"
timeout = 5
max-concurrency = 4
max-tokens = 1000
max-requests = 100
rate = 100
profiles = ["core"]
keep-failures = false
"""


def test_what_asks_less_waits_or_judges_less_is_taken_unasked(tokenwire: Run, tmp_path: Path) -> None:
    write(tmp_path, LESS)
    assert tokenwire("check", "--target", NOBODY).returncode == ExitStatus.NOTHING_EVALUATED


def test_every_setting_of_a_file_says_which_of_its_values_are_harmless() -> None:
    assert [option.name for option in OPTIONS.values() if option.key and option.unasked is None] == []
    assert [option.name for option in OPTIONS.values() if option.unasked and not option.key] == []


def test_a_setting_that_says_nothing_is_not_harmless() -> None:
    option = replace(OPTIONS["timeout"], unasked=None)
    assert option.needs_trust(5.0)
    assert not option.needs_trust(option.default)


def test_a_file_that_a_setting_names_is_trusted_until_it_changes(tokenwire: Run, tmp_path: Path) -> None:
    file = write(tmp_path, ASKED["dialects"])
    dialect = tmp_path / "evil.yaml"
    dialect.write_text(DIALECT, "utf-8")
    settings = Settings(dialect=(str(dialect),))
    remember(file, brought(settings, [OPTIONS["dialect"]]))
    assert "decides what" not in printed(tokenwire("check", "--target", NOBODY))
    dialect.write_text(DIALECT.replace("flush_cache", "pause_generation"), "utf-8")
    assert "decides what is sent, executed or written: dialects = " in printed(
        tokenwire("check", "--target", NOBODY)
    )


def test_what_init_wrote_is_trusted(tokenwire: Run, tmp_path: Path) -> None:
    with demo_server() as url:
        words = ("--target", url, "--model", "demo", "--timeout", "30", "--header", "X-Own: env:HOME")
        assert tokenwire("init", *words).returncode == 0
        for command in ("check", "compare"):
            more = (url, url) if command == "compare" else ()
            ran = tokenwire(command, *more, "--max-requests", "1")
            assert "decides what" not in printed(ran)


def test_a_configured_baseline_is_rewritten_only_where_it_is_the_usual_one(
    tokenwire: Run, tmp_path: Path
) -> None:
    write(tmp_path, 'baseline = "../elsewhere.toml"\n')
    update = ("baseline", "update", "--from", "report.json")
    (tmp_path / "report.json").write_text("{}", "utf-8")
    ran = tokenwire(*update)
    assert ran.returncode == ExitStatus.USAGE
    assert "decides what is sent, executed or written: baseline = " in printed(ran)
    assert "decides what" not in printed(tokenwire(*update, "--trust"))
    write(tmp_path, 'baseline = "tokenwire-baseline.toml"\n')
    assert "decides what" not in printed(tokenwire(*update))


SHADOWS = ("json", "typing", "ssl", "tokenwire", "yaml", "sitecustomize")


def test_no_module_of_a_checkout_is_imported(tmp_path: Path) -> None:
    """The judge of a watcher was started by `python -m`, which imports from the working directory first."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"open('PWNED-{name}', 'w').close()\n", "utf-8")
    extension = tmp_path / "evil-1.dist-info"
    extension.mkdir()
    (extension / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n", "utf-8")
    (extension / "entry_points.txt").write_text("[tokenwire.extensions]\nevil = yaml\n", "utf-8")
    (tmp_path / "conftest.py").write_text("open('PWNED-conftest', 'w').close()\n", "utf-8")
    program = str(Path(sys.executable).with_name("tokenwire"))
    with demo_server() as url:
        watch = [program, "watch", "--listen", "127.0.0.1:0", "--target", url]
        with subprocess.Popen(watch, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                listening = process.stdout.readline().split()[1]
                loopback.get(f"{listening}/model_info")
            finally:
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=60)
        quick = [program, "check", "--target", url, "--scenario", "request-id"]
        subprocess.run(quick, cwd=tmp_path, capture_output=True, check=False)
    assert "gaps: none" in said
    assert sorted(tmp_path.glob("PWNED-*")) == []


def test_a_flag_trusts_and_a_command_line_needs_none(tokenwire: Run, tmp_path: Path) -> None:
    write(tmp_path, BROUGHT["target"] + BROUGHT["headers.X-Leak"])
    assert tokenwire("check", "--trust").returncode == ExitStatus.NOTHING_EVALUATED
    said_all = ("--target", NOBODY, "--header", "x-leak: mine")
    assert tokenwire("check", *said_all).returncode == ExitStatus.NOTHING_EVALUATED
    write(tmp_path, "timeout = 5\n")
    assert tokenwire("check", "--target", NOBODY).returncode == ExitStatus.NOTHING_EVALUATED


def test_what_was_trusted_is_trusted_until_it_changes(tokenwire: Run, tmp_path: Path) -> None:
    file = write(tmp_path, BROUGHT["target"])
    remember(file, Brought({"target": NOBODY, "restart": "mine"}))
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
