"""What becomes of a server whose cache breaks: every client is told, and the process ends as a failure."""

from __future__ import annotations

import os

import loopback
from forked_program import forked


def test_every_client_is_told_and_the_process_fails(tmp_path):
    reader, writer = os.pipe()
    words = ("broken_engine", "serve", "--model", "builtin:scripted", "--port", "0")
    with (
        os.fdopen(reader) as output,
        os.fdopen(writer) as stdout,
        (tmp_path / "complaints").open("w+") as stderr,
        forked(*words, stdout=stdout, stderr=stderr) as server,
    ):
        stdout.close()
        url = output.readline().split()[-1]
        response = loopback.post(f"{url}/generate", json={"input_ids": [5]})
        server.join()
        status = server.exitcode
        stderr.seek(0)
        complaints = stderr.read()
    assert (response.status_code, "two places at once" in response.text) == (500, True)
    assert status == 1
    assert complaints.splitlines()[-1] == (
        "tokenwire-reference: the engine stopped: page 7 is in two places at once"
    )
