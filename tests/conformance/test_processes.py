"""Processes that share work: what comes of it is as if one had done it all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import get_context

import pytest

from tokenwire.processes import Helper, shared_out, together


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_comes_of_parts_comes_in_their_order(jobs: int) -> None:
    parts = list(shared_out(lambda part: (part, os.getpid()), iter(range(100)), jobs))
    assert [part for part, _ in parts] == list(range(100))
    assert (os.getpid() in {pid for _, pid in parts}) is (jobs == 1)


def test_one_part_is_no_reason_to_fork() -> None:
    assert list(shared_out(lambda _: os.getpid(), ["one"], jobs=8)) == [os.getpid()]
    assert list(shared_out(lambda _: os.getpid(), [], jobs=8)) == []


def test_a_part_that_takes_long_keeps_no_other_process_from_work() -> None:
    """The first part takes as long as the other process needs for twenty."""
    others_done = get_context("fork").Event()

    def work(part: int) -> bool:
        if part == 20:
            others_done.set()
        return others_done.wait(timeout=20) if part == 0 else True

    assert all(shared_out(work, range(30), jobs=2))


_SHARES_OUT = """
import os, threading
from tokenwire.processes import shared_out

def work(part):
    os.write(1, b"begun\\n")
    threading.Event().wait(20)

list(shared_out(work, range(9), jobs=2))
"""


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_processes_end_with_the_one_that_had_them(ended_by: signal.Signals) -> None:
    """Each of them holds the end of a pipe, which is over when the last one has gone."""
    command = [sys.executable, "-c", _SHARES_OUT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == [b"begun\n"] * 2
        parent.send_signal(ended_by)
        assert parent.communicate(timeout=15) == (b"", None)


def test_few_large_parts_are_put_together_and_more_small_ones() -> None:
    assert list(together([8, 3, 3, 9, 9], lambda size: size, 10)) == [(8, 3), (3, 9), (9,)]
    assert {len(some) for some in together(range(640), lambda _: 0)} == {64}
    assert list(together([], lambda size: size)) == []


def dies_of_none(part: int | None) -> int:
    if part is None:
        os._exit(1)
    return 2 * part


def test_what_comes_after_a_process_that_was_killed_gets_another_one() -> None:
    with closing(Helper(dies_of_none)) as helper:
        assert helper.submit(1).result() == 2
        with pytest.raises(BrokenProcessPool):
            helper.submit(None).result()
        assert [helper.submit(part).result() for part in (2, 3)] == [4, 6]
