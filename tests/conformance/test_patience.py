"""A target that falls silent is given up, and then nothing more is sent to it."""

from __future__ import annotations

import asyncio

import pytest
from canned import CannedSender

from tokenwire.asking.patience import LEAST, PatientSender, StoppedAnswering
from tokenwire.wire.exchange import Ending, HttpRequest

GET = HttpRequest("GET", "/")


def silent(ending: Ending = Ending.TIMEOUT) -> CannedSender:
    return CannedSender(b"", None, ending=ending, detail="nothing came")


def send(sender: PatientSender, times: int) -> None:
    async def often() -> None:
        for place in range(times):
            await sender.send(f"x/{place}", "s", GET)

    asyncio.run(often())


@pytest.mark.parametrize("ending", [Ending.TIMEOUT, Ending.UNREACHABLE, Ending.OUTGROWN])
def test_so_many_in_a_row_and_no_more(ending: Ending) -> None:
    inner = silent(ending)
    sender = PatientSender(inner)
    send(sender, LEAST - 1)
    with pytest.raises(
        StoppedAnswering, match=rf"{LEAST} exchanges in a row ended by {ending}.*nothing came"
    ):
        send(sender, 1)
    with pytest.raises(asyncio.CancelledError):
        send(sender, 1)
    assert len(inner.names) == LEAST


def test_as_many_as_are_under_way_may_fail_together() -> None:
    with pytest.raises(StoppedAnswering, match="20 exchanges"):
        send(PatientSender(silent(), patience=20), 20)


def test_one_answer_renews_the_patience_and_what_we_ended_counts_as_one() -> None:
    inner = silent()
    sender = PatientSender(inner)
    send(sender, LEAST - 1)
    inner.ending = Ending.TRUNCATED
    send(sender, 1)
    inner.ending = Ending.TIMEOUT
    send(sender, LEAST - 1)
    assert len(inner.names) == 2 * LEAST - 1
