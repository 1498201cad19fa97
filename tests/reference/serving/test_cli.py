"""The command line."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest
from forked_program import run_forked

from tokenwire_reference.cli import serve
from tokenwire_reference.server_args import ServerArgs


def test_every_server_argument_is_a_flag_with_its_default():
    options = {name: parameter.default for name, parameter in inspect.signature(serve).parameters.items()}
    assert {name: option.default for name, option in options.items()} == dataclasses.asdict(ServerArgs())
    assert all(option.help for option in options.values())
    assert options["model_path"].param_decls == ("--model-path", "--model")
    assert options["log_requests"].param_decls == ("--log-requests",), "and no --no-log-requests"


def test_help_does_not_wait_for_torch():
    code = "import sys, tokenwire_reference.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    command = [sys.executable, "-m", "tokenwire_reference", "serve", "--help"]
    helped = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (helped.returncode, "--stream-interval" in helped.stdout) == (0, True)
    assert "stop at most 32 items, at most 1024 characters;" in " ".join(helped.stdout.split())


@pytest.mark.parametrize(
    ("missing", "words"), [("torch", ["serve", "--port", "0"]), ("starlette", ["faults"]), ("orjson", ["-h"])]
)
def test_an_installation_without_the_engine_says_how_to_get_it(missing: str, words: list[str]) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from tokenwire_reference.__main__ import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"tokenwire-reference: the reference engine needs the package {missing}, which is not installed: "
        "`pip install '.[reference]'` in Tokenwire's folder\n"
    )


def test_what_cannot_be_served_is_said_in_one_line(tmp_path):
    for arguments, reason in (
        (("--model", "/nowhere"), "/nowhere"),
        (("--sampling-backend", "nobody"), "nobody"),
        (("--stream-interval", "0"), "--stream-interval is 0"),
        (("--api-key", "env:TOKENWIRE_NO_SUCH_VARIABLE"), "--api-key is empty"),
    ):
        failed = run_forked("tokenwire-reference", "serve", "--port", "0", *arguments, folder=tmp_path)
        assert failed.returncode == 2
        assert reason in failed.stderr
        assert failed.stderr.count("\n") == 1
