"""States that recorded servers were in when a request came: busy, paused, full, or about to abort it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tokenwire.asking.recorder import Recorder
from tokenwire.wire.exchange import Exchange, HttpRequest

LONG_BUDGET = 480
"""New tokens of a request that is aborted while it runs: so many that it cannot have ended."""
TOKENS_BEFORE_ABORT = 48

RENAMED = "v2"
"""The version of the weights after the renaming that was recorded."""


class Stage:
    """Puts requests into the states that the recorded servers had them in."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def _post(self, path: str, body: Any) -> None:
        answer = await self._recorder.send(path, "", HttpRequest("POST", path, body))
        assert answer.status == 200, (path, answer.status, answer.body)

    async def _load(self) -> dict[str, Any]:
        answer = await self._recorder.send("load", "", HttpRequest("GET", "/v1/loads"))
        load: dict[str, Any] = json.loads(answer.body)["loads"][0]
        return load

    async def aborted(self, exchange: Exchange, rid: str | None) -> Exchange:
        """Abort (None: everything) once there is some output."""
        body = dict(exchange.request.body)
        body |= (
            {"sampling_params": {**body["sampling_params"], "max_new_tokens": LONG_BUDGET}}
            if "sampling_params" in body
            else {"max_tokens": LONG_BUDGET}
        )
        request = replace(exchange.request, body=body)
        asking = asyncio.create_task(self._recorder.send(exchange.name, "", request))
        while (await self._load())["num_used_tokens"] < TOKENS_BEFORE_ABORT:
            assert not asking.done(), asking.result()
        await self._post("/abort_request", {"abort_all": True} if rid is None else {"rid": rid})
        return await asking

    async def renamed(self, exchange: Exchange) -> Exchange:
        """Send an exchange while the weights have the version of the recording, and restore the version."""
        names = {"abort_all_requests": False}
        await self._post("/update_weight_version", {**names, "new_version": RENAMED})
        answer = await self._recorder.send(exchange.name, "", exchange.request)
        await self._post("/update_weight_version", {**names, "new_version": "default"})
        return answer

    async def aborted_in_queue(self, exchange: Exchange) -> Exchange:
        """Abort a request that no step has seen."""
        await self._post("/pause_generation", {"mode": "in_place"})
        asking = asyncio.create_task(self._recorder.send(exchange.name, "", exchange.request))
        while (await self._load())["num_waiting_reqs"] < 1:
            assert not asking.done()
        await self._post("/abort_request", {"rid": exchange.request.body["rid"]})
        await self._post("/continue_generation", {})
        return await asking

    async def behind_others(self, exchange: Exchange, others: list[HttpRequest]) -> Exchange:
        """Ask while others wait for a paused engine."""
        await self._post("/pause_generation", {"mode": "in_place"})
        waiting = []
        for request in others:
            waiting.append(asyncio.create_task(self._recorder.send("other", "", request)))
            while (await self._load())["num_waiting_reqs"] < len(waiting):
                assert not waiting[-1].done()
        answer = await self._recorder.send(exchange.name, "", exchange.request)
        await self._post("/continue_generation", {})
        await asyncio.gather(*waiting)
        return answer


Staging = Callable[[Stage, Exchange], Awaitable[Exchange]]


def _abort(rid: str | None) -> Staging:
    return lambda stage, exchange: stage.aborted(exchange, rid)


def _in_queue(stage: Stage, exchange: Exchange) -> Awaitable[Exchange]:
    return stage.aborted_in_queue(exchange)


def _twice(stage: Stage, exchange: Exchange) -> Awaitable[Exchange]:
    return stage.behind_others(exchange, [exchange.request])


def _queue_full(stage: Stage, exchange: Exchange) -> Awaitable[Exchange]:
    body = exchange.request.body
    return stage.behind_others(
        exchange, [replace(exchange.request, body={**body, "rid": f"waiting-{i}"}) for i in range(2)]
    )


ABORTED: dict[str, Staging] = {
    "m_chat_nonstream_aborted": _abort("abort-7"),
    "m_chat_stream_abort": _abort("abort-c"),
    "m_nonstream_aborted": _abort("abort-5"),
    "m_nonstream_aborted_lp": _abort("abort-6"),
    "m_stream_abort_all": _abort(None),
    "m_stream_abort_n2": _abort("abort-n2"),
    "m_stream_abort_with_lp": _abort("abort-4"),
    "m_stream_aborted_by_rid": _abort("abort-1"),
    "m_stream_batch_abort_one": _abort("bb-1"),
    "m_stream_interval8_abort": _abort("abort-8"),
    "q_waiting_aborted": _in_queue,
    "q_waiting_aborted_chat": _in_queue,
    "q_waiting_aborted_chat_stream": _in_queue,
    "q_waiting_aborted_comp": _in_queue,
    "q_waiting_aborted_prompt_ids": _in_queue,
    "q_waiting_aborted_stream": _in_queue,
    "q_waiting_aborted_stream_lp": _in_queue,
}
STAGES: dict[str, Staging] = ABORTED | {
    "m_duplicate_rid_while_running": _twice,
    "m_duplicate_rid_stream_while_running": _twice,
    "m_update_weight_version": Stage.renamed,
    "m_gen_after_version": Stage.renamed,
    "q_queue_full_2": _queue_full,
    "q_queue_full_3": _queue_full,
}
"""Exchanges that need more than being sent, by name."""
