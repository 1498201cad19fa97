"""What becomes of a server whose cache breaks: every client is told, and the process ends as a failure."""

from __future__ import annotations

import subprocess
import sys

import loopback

SERVER = """
import sys
from tokenwire_reference.core.kv import PageAccountingError
from tokenwire_reference.cli import main
from tokenwire_reference.core.engine_runner import EngineOnLoop
from tokenwire_reference.core.scheduler import Scheduler

def advance(*_):
    raise PageAccountingError("page 7 is in two places at once")

def start(thread, really=EngineOnLoop.start):  # what probes the engine before that must succeed
    Scheduler.advance = advance
    really(thread)

EngineOnLoop.start = start
sys.argv = ["tokenwire-reference", "serve", "--model", "builtin:scripted", "--port", "0"]
main()
"""


def test_every_client_is_told_and_the_process_fails():
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        response = loopback.post(f"{url}/generate", json={"input_ids": [5]})
        _, complaints = server.communicate()
    assert (response.status_code, "two places at once" in response.text) == (500, True)
    assert server.returncode == 1
    assert complaints.splitlines()[-1] == (
        "tokenwire-reference: the engine stopped: page 7 is in two places at once"
    )
