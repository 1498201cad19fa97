"""An engine is at most one step ahead of what its consumers have taken."""

from __future__ import annotations

import asyncio
import threading

from tokenwire_reference.running.handover import Handover


def test_the_next_rows_wait_until_consumers_took_the_last():
    seen, woken = [], asyncio.Event()

    async def consume():
        while len(seen) < 6:
            await woken.wait()
            woken.clear()
            seen.append("taken")

    def deliver(rows):
        seen.append(rows)
        woken.set()

    async def serve():
        handover = Handover(asyncio.get_running_loop(), deliver)
        engine = threading.Thread(target=lambda: [handover([step]) for step in range(3)])
        engine.start()
        await consume()
        await asyncio.to_thread(engine.join)

    asyncio.run(serve())
    assert seen == [[0], "taken", [1], "taken", [2], "taken"]


def test_a_failing_delivery_does_not_stop_the_next(caplog):
    seen = []

    def deliver(rows):
        seen.append(rows)
        raise RuntimeError("no")

    async def serve():
        handover = Handover(asyncio.get_running_loop(), deliver)
        await asyncio.to_thread(lambda: [handover([step]) for step in range(3)])
        await asyncio.sleep(0)

    asyncio.run(serve())
    assert seen == [[0], [1], [2]]


def test_nobody_waits_for_a_loop_that_has_ended():
    loop = asyncio.new_event_loop()
    handover = Handover(loop, lambda rows: None)
    handover(["never taken"])
    handover(["nobody there"])
    loop.close()
